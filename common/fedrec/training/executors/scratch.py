"""Mapped files that an executor shares with its workers, including users' private tables."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import StorageError
from fedrec.model.blocked_table import BLOCK_BYTES, BlockedTable, Table
from fedrec.model.state import PrivateState
from fedrec.model.tables import (
    BlockWriter,
    NewBlocks,
    NewTable,
    TableRoom,
    copy_rows,
    give_back,
    reserve,
)
from fedrec.own_folder import WORKERS_PREFIX, OwnFolder, map_file

Form = tuple[str, Sequence[int]]
_ALIGNED = 64
CANDIDATES = ("items", "usable")
"""The names of drawn candidates among the arrays of a ranking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayPlace:
    """The location of an array in a file.

    Attributes:
        path: the file.
        offset: the number of bytes before the array.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def to_json(self) -> dict[str, Any]:
        """Return the location as JSON for `of_json`."""
        return asdict(self)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> ArrayPlace:
        """Read a location that was sent."""
        return cls(**{**values, "shape": tuple(values["shape"])})

    def open(self, mode: Literal["r+", "c"] = "c") -> NDArray[Any]:
        """Return the mapped array. With mode "c", writes stay in this process.

        Raises:
            StorageError: the file is gone.
        """
        return map_file(self.path, self.dtype, self.shape, mode=mode, offset=self.offset)


def opened(
    places: Mapping[str, Mapping[str, Any]], mode: Literal["r+", "c"] = "c"
) -> dict[str, NDArray[Any]]:
    """Return the arrays at locations that were sent, by name."""
    return {name: ArrayPlace.of_json(place).open(mode) for name, place in places.items()}


class Scratch:
    """A folder for one executor's files.

    Args:
        parent: the folder in which it is made, or None for the system's temporary folder.
    """

    def __init__(self, parent: Path | None) -> None:
        try:
            self._folder = OwnFolder(parent, WORKERS_PREFIX)
        except OSError as error:
            within = Path(tempfile.gettempdir()) if parent is None else parent
            raise self._failed(within, 0, error) from error
        self.path = self._folder.path
        self._n_files = 0

    def lay_out(self, forms: Mapping[str, Form]) -> dict[str, ArrayPlace]:
        """Return places for arrays of zeros in one new file.

        Args:
            forms: the type and shape of each array, by name.

        Raises:
            StorageError: the disk has no room for them.
        """
        self._n_files += 1
        path, places, end = self.path / f"{self._n_files}.tables", {}, 0
        for name, (dtype, shape) in forms.items():
            own = tuple(int(n) for n in shape)
            places[name] = ArrayPlace(path=str(path), dtype=dtype, shape=own, offset=end)
            n_bytes = np.dtype(dtype).itemsize * int(np.prod(own, dtype=np.int64))
            end += -(-n_bytes // _ALIGNED) * _ALIGNED
        try:
            with path.open("xb") as file:
                if end:
                    reserve(file, end)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise self._failed(self.path, end, error) from error
        return places

    def keep(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, ArrayPlace]:
        """Write arrays to a new file, and return their places."""
        places = self.lay_out({name: (str(own.dtype), own.shape) for name, own in arrays.items()})
        for name, values in arrays.items():
            _fill(places[name].open("r+"), values)
        return places

    def copy(self, values: Table) -> ArrayPlace:
        """Copy a table of users to a new file, and return its place."""
        place = self.lay_out({"": (str(values.dtype), values.shape)})[""]
        _fill(place.open("r+"), values)
        return place

    def remove(self) -> None:
        """Delete the folder. Arrays that are mapped from it stay intact."""
        self._folder.remove()

    @staticmethod
    def _failed(folder: Path, n_bytes: int, error: OSError) -> StorageError:
        size = f"{max(1, n_bytes >> 20)} MiB"
        return StorageError(
            f"Worker processes share tables of {size} in files, but they don't fit into {folder}: "
            f"{error.strerror or error}.",
            remedy=f"Free {size} there, or choose another folder: client.state for a client, "
            "output.runs for a simulation, else TMPDIR. You can also set client.workers = "
            "1 to train in this process.",
        )


def _fill(target: NDArray[Any], values: Table) -> None:
    """Copy an array in parts, so that few pages of mapped files are in memory at once."""
    if not values.shape:
        target[...] = values
        return
    at_once = max(1, BLOCK_BYTES * len(values) // max(1, values.nbytes))
    for begin in range(0, len(values), at_once):
        target[begin : begin + at_once] = values[begin : begin + at_once]
        for own in (target, values):
            give_back(own)


class PrivateRound:
    """The private tables of one round."""

    def __init__(self, scratch: Scratch, private: PrivateState, room: TableRoom) -> None:
        self._scratch, self._private = scratch, private
        n_users = len(next(iter(private.tensors.values()), ()))
        self._blocks: Mapping[str, NewTable] = (
            room.new(n_users, private.widths()) if private.in_files else {}
        )
        self._places: dict[str, ArrayPlace] = {}
        self._sent: dict[str, dict[str, Any]] = {"old": {}, "new": {}}
        for name, values in private.tensors.items():
            new = self._blocks.get(name)
            if isinstance(values, BlockedTable):
                # Workers trust the paths that they receive.
                values.check()
                assert isinstance(new, NewBlocks)
                self._tell(name, values.to_json(), new.writer.to_json())
            else:
                self._places[name] = self._laid_out(values)
                self._tell(name, self._copied(values).to_json(), self._places[name].to_json())

    def _tell(self, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        self._sent["old"][name], self._sent["new"][name] = old, new

    def _laid_out(self, like: NDArray[Any]) -> ArrayPlace:
        return self._scratch.lay_out({"": (str(like.dtype), like.shape)})[""]

    def _copied(self, values: NDArray[Any]) -> ArrayPlace:
        place = self._scratch.copy(values)
        self._places[f"old {len(self._places)}"] = place
        return place

    def finish(self, trained: NDArray[np.int64], *, finite: bool) -> tuple[PrivateState, bool]:
        """Return all users' tables, and whether all values are finite.

        Args:
            trained: the users whose rows are in the new tables.
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
        """Return the places of the tables, in the form for workers."""
        return self._sent

    def close(self) -> None:
        """Delete the files of the round."""
        for place in self._places.values():
            Path(place.path).unlink(missing_ok=True)


def old_tables(sent: Mapping[str, Mapping[str, Any]]) -> dict[str, Table]:
    """Return the tables at the start of a round, in a worker."""
    return {
        name: BlockedTable.of_json(table) if "blocks" in table else ArrayPlace.of_json(table).open()
        for name, table in sent.items()
    }


def new_tables(sent: Mapping[str, Mapping[str, Any]]) -> dict[str, BlockWriter | NDArray[Any]]:
    """Return the tables into which a worker writes trained rows."""
    return {
        name: BlockWriter.of_json(table)
        if "blocks" in table
        else ArrayPlace.of_json(table).open("r+")
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
