"""Build a new table: rows of users in any order, then the others unchanged.

A table that fits memory becomes an array. A larger one becomes files, one for each block with a
changed user, in the folder of the existing blocks. Other blocks are not touched.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from fedrec.model.blocked_table import BlockedTable, Table, by_block, reported, users_of_block

if TYPE_CHECKING:
    from fedrec.model.block_folder import BlockFolder


class NewTable(ABC):
    """Takes rows, then becomes a table.

    Args:
        shape: (n_users, ...).
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._written = np.zeros(shape[0], dtype=np.bool_)

    def write(self, rows: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Write rows, (n_rows, ...), at their places.

        Raises:
            StorageError: the disk has no room for them.
        """
        self._put(rows, values)
        self.note(rows)

    def note(self, rows: NDArray[np.int64]) -> None:
        """Count rows as written, for instance by another process."""
        self._written[rows] = True

    @abstractmethod
    def _put(self, rows: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Write rows at their places."""

    @abstractmethod
    def finish(self, before: Table | None = None) -> Table:
        """Return the table.

        Args:
            before: has the rows of users that were not written. None if all were.

        Raises:
            StorageError: the disk has no room for it, or `before` is damaged.
        """


class NewArray(NewTable):
    """A table in memory."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self._values = np.empty(shape, dtype=np.float32)

    def _put(self, rows: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        self._values[rows] = values

    def finish(self, before: Table | None = None) -> NDArray[np.float32]:
        """Return the array. See `NewTable.finish`."""
        rest = np.nonzero(~self._written)[0]
        if len(rest) and before is not None:
            self._values[rest] = before[rest]
        return self._values


class BlockWriter:
    """Writes rows into the files of new blocks. Several processes can write at once.

    Args:
        path: folder of the blocks.
        token: prefix of the names of unfinished files.
    """

    def __init__(
        self, path: Path, token: str, shape: tuple[int, ...], users_per_block: int
    ) -> None:
        self.path, self.token = path, token
        self.shape, self.users_per_block = shape, users_per_block
        self.row_bytes = 4 * int(np.prod(shape[1:], dtype=np.int64))

    def write(self, rows: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Write rows at their places. See `NewTable.write`."""
        if not len(rows) or not self.row_bytes:
            return
        flat = np.ascontiguousarray(values, dtype=np.float32).reshape(len(rows), -1)
        for block, places in by_block(rows, self.users_per_block):
            self.write_block(block, rows[places] - block * self.users_per_block, flat[places])

    def write_block(self, block: int, rows: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Write rows, (n_rows, values of a row), at their places, numbered within their block."""
        path = self.file_of(block)
        with reported(path, "written"):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                # A run of neighbouring rows is written at once.
                order = np.argsort(rows, kind="stable")
                breaks = np.nonzero(np.diff(rows[order]) != 1)[0] + 1
                for run in np.split(order, breaks):
                    _write_all(handle, values[run], int(rows[run[0]]) * self.row_bytes)
            finally:
                os.close(handle)

    def file_of(self, block: int) -> Path:
        """Return the unfinished file of a block."""
        return self.path / f".{self.token}-{block}.new"

    def to_json(self) -> dict[str, Any]:
        """Return the input for `of_json` in another process of this account."""
        return {
            "blocks": str(self.path),
            "token": self.token,
            "shape": list(self.shape),
            "users_per_block": self.users_per_block,
        }

    @classmethod
    def of_json(cls, sent: Mapping[str, Any]) -> BlockWriter:
        """Return a writer into the same files."""
        return cls(
            Path(sent["blocks"]), sent["token"], tuple(sent["shape"]), sent["users_per_block"]
        )


class NewBlocks(NewTable):
    """A table in the files of a folder.

    Attributes:
        writer: receives rows. Report rows that other processes write with it to `note`.
    """

    def __init__(self, folder: BlockFolder, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self._folder = folder
        self.writer = BlockWriter(
            folder.open(), uuid4().hex, shape, users_of_block(tuple(shape[1:]))
        )
        # The folder stays as long as its writer is counted. Then the same holds for its finished
        # files.
        self._used = [self.writer.token]
        folder.hold(self.writer.token)
        self._end = weakref.finalize(self, _end, folder, self.writer, self._used, os.getpid())

    def _put(self, rows: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        self.writer.write(rows, values)

    def finish(self, before: Table | None = None) -> BlockedTable:
        """Return the table, on disk. See `NewTable.finish`."""
        held = self.writer.users_per_block
        same = (
            before
            if isinstance(before, BlockedTable)
            and (before.path, before.users_per_block) == (self.writer.path, held)
            else None
        )
        names = []
        for block, begin in enumerate(range(0, self.shape[0], held)):
            rest = begin + np.nonzero(~self._written[begin : begin + held])[0]
            size = min(held, self.shape[0] - begin)
            if same is not None and len(rest) == size:
                names.append(same.names[block])
                continue
            if len(rest) and before is not None and self.writer.row_bytes:
                flat = np.asarray(before[rest]).reshape(len(rest), -1)
                self.writer.write_block(block, rest - begin, flat)
            n_bytes = size * self.writer.row_bytes
            name = self._folder.take_in(self.writer.file_of(block), n_bytes)
            self._used.append(name)
            names.append(name)
        self._folder.force()
        table = self._folder.table(self.shape, held, names, checked=True)
        self._end()
        return table


def _write_all(handle: int, values: NDArray[np.float32], offset: int) -> None:
    view = memoryview(np.ascontiguousarray(values).data).cast("B")
    done = 0
    while done < len(view):
        done += os.pwrite(handle, view[done:], offset + done)


def _end(folder: BlockFolder, writer: BlockWriter, used: list[str], owner: int) -> None:
    """Delete unfinished files."""
    if os.getpid() != owner:
        return
    for file in writer.path.glob(f".{writer.token}-*.new"):
        file.unlink(missing_ok=True)
    folder.release(used)
