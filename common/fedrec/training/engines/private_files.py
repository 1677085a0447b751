"""Users' private tables where workers read and write them: in files of the round, or in blocks.

Tables that fit memory are copied to a file of the round, and trained rows come back from another.
Tables that lie in blocks stay there: workers read rows of the old ones and write new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.model.new_table import BlockWriter, NewBlocks
from fedrec.model.state import PrivateState
from fedrec.model.tables import BlockedTable, NewTable, Table, TableRoom, copy_rows
from fedrec.training.engines.scratch import Place, Scratch

__all__ = ["PrivateRound", "new_tables", "old_tables", "write_rows"]


class PrivateRound:
    """A round's private tables."""

    def __init__(self, scratch: Scratch, private: PrivateState, room: TableRoom) -> None:
        self._scratch, self._private = scratch, private
        n_users = len(next(iter(private.tensors.values()), ()))
        self._blocks: Mapping[str, NewTable] = (
            room.new(n_users, private.widths()) if private.in_files else {}
        )
        self._places: dict[str, Place] = {}
        self._sent: dict[str, dict[str, Any]] = {"old": {}, "new": {}}
        for name, values in private.tensors.items():
            new = self._blocks.get(name)
            if isinstance(values, BlockedTable):
                # Workers trust what they are told of.
                values.check()
                assert isinstance(new, NewBlocks)
                self._tell(name, values.to_json(), new.writer.to_json())
            else:
                self._places[name] = self._laid_out(values)
                self._tell(name, self._copied(values).to_json(), self._places[name].to_json())

    def _tell(self, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        self._sent["old"][name], self._sent["new"][name] = old, new

    def _laid_out(self, like: NDArray[Any]) -> Place:
        return self._scratch.lay_out({"": (str(like.dtype), like.shape)})[""]

    def _copied(self, values: NDArray[Any]) -> Place:
        place, rows = self._laid_out(values), np.arange(len(values))
        self._places[f"old {len(self._places)}"] = place
        copy_rows(values, place.open("r+"), from_rows=rows, to_rows=rows)
        return place

    def finish(self, trained: NDArray[np.int64], *, finite: bool) -> tuple[PrivateState, bool]:
        """Return all users' tables, and whether all values are finite.

        Args:
            trained: users whose rows are in the new tables.
            finite: whether these rows are.
        """
        tables: dict[str, Table] = {}
        for name, values in self._private.tensors.items():
            if isinstance(values, BlockedTable):
                self._blocks[name].note(trained)
                tables[name] = self._blocks[name].finish(values)
            else:
                tables[name] = found = values.copy()
                found[trained] = self._places[name].open("r+")[trained]
                finite = finite and bool(np.isfinite(found).all())
        return PrivateState.of(tables), finite

    def sent(self) -> Mapping[str, Any]:
        """Return where the tables are, as workers are told."""
        return self._sent

    def remove(self) -> None:
        """Delete the files of the round."""
        for place in self._places.values():
            Path(place.path).unlink(missing_ok=True)


def old_tables(sent: Mapping[str, Mapping[str, Any]]) -> dict[str, Table]:
    """Return the tables that a round starts from, in a worker."""
    return {
        name: BlockedTable.of_json(table) if "blocks" in table else Place.of_json(table).open()
        for name, table in sent.items()
    }


def new_tables(sent: Mapping[str, Mapping[str, Any]]) -> dict[str, BlockWriter | NDArray[Any]]:
    """Return where a worker writes trained rows."""
    return {
        name: BlockWriter.of_json(table) if "blocks" in table else Place.of_json(table).open("r+")
        for name, table in sent.items()
    }


def write_rows(
    target: BlockWriter | NDArray[Any], rows: NDArray[np.int64], values: NDArray[np.float32]
) -> None:
    """Write trained rows in a worker."""
    if isinstance(target, BlockWriter):
        target.write(rows, values)
    else:
        copy_rows(values, target, from_rows=np.arange(len(rows)), to_rows=rows)
