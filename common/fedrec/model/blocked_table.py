"""Read a table too large for memory, from files of consecutive users each.

A version of a table is a list of file names. Versions with the same block name the same file, so
three versions, two of which differ in a few users, take little more space than one. Nothing is
mapped: rows are read on access.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedrec.durable import unwritten
from fedrec.errors import StorageError
from fedrec.own_folder import MOST_FILE_USERS

BLOCK_BYTES = 4 << 20
"""Bytes of a table to read or write at once: few for memory, many for a disk."""

_WHOLE_BELOW = 1 << 16
_DAMAGED = "Restore the folder from a backup, or start again with an empty one."
_UNWRITABLE = "Check that the folder is writable, then start again. Files from before are intact."


def users_of_block(width: tuple[int, ...]) -> int:
    """Return the number of users whose rows of this shape are in one file."""
    row_bytes = max(1, 4 * int(np.prod(width, dtype=np.int64)))
    return min(MOST_FILE_USERS, max(1, BLOCK_BYTES // row_bytes))


def by_block(
    rows: NDArray[np.int64], users_per_block: int
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (block, places of `rows` that are in it), by ascending block."""
    blocks = rows // users_per_block
    order = np.argsort(blocks, kind="stable")
    found, begins = np.unique(blocks[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, begins[1:]), strict=True)


class BlockedTable:
    """One version of a table, read-only.

    It is indexed like an array, by a row, a slice or an array of rows, and returns arrays in
    memory.

    Args:
        path: the folder of the blocks.
        shape: (n_users, ...).
        names: files, of `users_per_block` users each except the last.
        check: called with a name before the first read of that file.
    """

    dtype = np.dtype(np.float32)
    itemsize = 4

    def __init__(
        self,
        path: Path,
        shape: Sequence[int],
        users_per_block: int,
        names: Sequence[str],
        check: Callable[[str], None] | None = None,
    ) -> None:
        self.path = path
        self.shape = tuple(shape)
        self.users_per_block = users_per_block
        self.names = tuple(names)
        self._check = check

    @property
    def row_bytes(self) -> int:
        """Bytes of one user's row."""
        return self.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.shape[0] * self.row_bytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, wanted: int | slice | NDArray[np.int64]) -> NDArray[np.float32]:
        if isinstance(wanted, slice):
            return self.rows(np.arange(*wanted.indices(len(self))))
        rows = np.asarray(wanted, dtype=np.int64)
        if rows.size and not (-len(self) <= rows.min() and rows.max() < len(self)):
            raise IndexError(f"A table of {len(self)} users has no row {wanted}.")
        rows = np.where(rows < 0, rows + len(self), rows)
        return self.rows(rows) if rows.ndim else self.rows(rows[None])[0]

    def rows(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return a copy of some rows, (n_rows, ...).

        Raises:
            StorageError: a block is missing or damaged.
        """
        found = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        if not found.size:
            return found
        flat = found.reshape(len(rows), -1)
        for block, places in by_block(rows, self.users_per_block):
            self._read(block, rows[places] - block * self.users_per_block, places, flat)
        return found

    def users_in(self, block: int) -> int:
        """Return the number of users whose rows are in a block."""
        return min(self.users_per_block, len(self) - block * self.users_per_block)

    def _read(
        self,
        block: int,
        rows: NDArray[np.int64],
        places: NDArray[np.int64],
        target: NDArray[np.float32],
    ) -> None:
        """Read rows of a block, numbered within it, into places of a flat target."""
        name = self.names[block]
        if self._check is not None:
            self._check(name)
        with reported(self.path / name):
            handle = os.open(self.path / name, os.O_RDONLY)
            try:
                if self.row_bytes < _WHOLE_BELOW:
                    whole = np.empty((self.users_in(block), target.shape[1]), dtype=self.dtype)
                    _read_into(handle, whole, 0)
                    target[places] = whole[rows]
                    return
                for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                    _read_into(handle, target[place], row * self.row_bytes)
            finally:
                os.close(handle)

    def check(self) -> None:
        """Check all blocks that this process has not checked yet, if it checks blocks.

        Raises:
            StorageError: a block is missing or damaged.
        """
        if self._check is not None:
            for name in self.names:
                self._check(name)

    def to_json(self) -> dict[str, Any]:
        """Return the input for `of_json` in another process of this account."""
        return {"blocks": str(self.path), **self.stored()}

    def stored(self) -> dict[str, Any]:
        """Return a version's record of the table, stored in the same folder as the version."""
        return {
            "shape": list(self.shape),
            "users_per_block": self.users_per_block,
            "names": list(self.names),
        }

    @classmethod
    def of_json(cls, sent: Mapping[str, Any]) -> BlockedTable:
        """Return a table that another process keeps and has checked."""
        return cls(Path(sent["blocks"]), sent["shape"], sent["users_per_block"], sent["names"])


@contextmanager
def reported(path: Path, verb: Literal["read", "written"] = "read") -> Iterator[None]:
    """Report the system's error about a file as a storage error."""
    try:
        yield
    except OSError as error:
        if verb == "written":
            raise unwritten(path, error, _UNWRITABLE) from error
        message = f"{path} cannot be read: {error.strerror or error}."
        raise StorageError(message, remedy=_DAMAGED) from error


def _read_into(handle: int, target: NDArray[np.float32], offset: int) -> None:
    view = memoryview(target.data).cast("B")
    done = 0
    while done < len(view):
        got = os.preadv(handle, [view[done:]], offset + done)
        if not got:
            raise OSError(f"it ends {len(view) - done} bytes too early")
        done += got


Table = NDArray[np.float32] | BlockedTable
