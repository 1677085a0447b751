"""Users' private tables where workers read and write them: old ones and new ones, in files."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.model.state import PrivateState
from fedrec.model.tables import copy_rows, is_mapped
from fedrec.training.engines.scratch import Place, Scratch

__all__ = ["PrivateFiles", "PrivateRound"]


class PrivateFiles:
    """An engine's private tables; those that outgrow memory stay in the files of the last round."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self._places: dict[int, Place] = {}

    def begin(self, private: PrivateState) -> PrivateRound:
        """Return a round's tables."""
        return PrivateRound(self, private)

    def place_of(self, table: NDArray[Any]) -> Place | None:
        """Return the file of a table that an earlier round left behind."""
        return self._places.get(id(table))

    def remember(self, table: NDArray[Any], place: Place) -> None:
        """Keep a table's file as long as somebody has the table."""
        self._places[id(table)] = place
        weakref.finalize(table, self._forget, id(table), place)

    def _forget(self, number: int, place: Place) -> None:
        self._places.pop(number, None)
        Path(place.path).unlink(missing_ok=True)


class PrivateRound:
    """A round's private tables.

    Attributes:
        old, new: where workers read and write them.
    """

    def __init__(self, files: PrivateFiles, private: PrivateState) -> None:
        self._files, self._private = files, private
        self._mapped = any(map(is_mapped, private.tensors.values()))
        self._own: list[Place] = []
        self.old: dict[str, Place] = {}
        self.new: dict[str, Place] = {}
        for name, values in private.tensors.items():
            known = files.place_of(values)
            self.old[name] = self._copied(values) if known is None else known
            self.new[name] = self._laid_out(values)

    def _laid_out(self, like: NDArray[Any]) -> Place:
        place = self._files.scratch.lay_out({"": (str(like.dtype), like.shape)})[""]
        self._own.append(place)
        return place

    def _copied(self, values: NDArray[Any]) -> Place:
        place, rows = self._laid_out(values), np.arange(len(values))
        copy_rows(values, place.open("r+"), from_rows=rows, to_rows=rows)
        return place

    def finish(self, trained: NDArray[np.int64], *, finite: bool) -> tuple[PrivateState, bool]:
        """Return all users' tables, and whether all values are finite.

        Args:
            trained: users whose rows are in the new tables.
            finite: whether these rows are.
        """
        tables: dict[str, NDArray[Any]] = {}
        others = np.ones(self._n_users, dtype=np.bool_)
        others[trained] = False
        rest = np.nonzero(others)[0]
        for name, values in self._private.tensors.items():
            new = self.new[name].open("r+")
            if self._mapped:
                copy_rows(values, new, from_rows=rest, to_rows=rest)
                self._own.remove(self.new[name])
                self._files.remember(new, self.new[name])
                tables[name] = new
            else:
                tables[name] = values.copy()
                tables[name][trained] = new[trained]
                finite = finite and bool(np.isfinite(tables[name]).all())
        return PrivateState(MappingProxyType(tables)), finite

    @property
    def _n_users(self) -> int:
        return len(next(iter(self._private.tensors.values()), ()))

    def sent(self) -> Mapping[str, Any]:
        """Return where the tables are, as workers are told."""
        return {
            "old": {name: place.to_json() for name, place in self.old.items()},
            "new": {name: place.to_json() for name, place in self.new.items()},
        }

    def remove(self) -> None:
        """Delete the files that nobody needs any more."""
        for place in self._own:
            Path(place.path).unlink(missing_ok=True)
