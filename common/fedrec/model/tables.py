"""Users' private tables, in memory or in files, new versions of them, and the stored form."""

from __future__ import annotations

import json
import mmap
import os
import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import StorageError
from fedrec.model.block_folder import BlockFolder
from fedrec.model.blocked_table import (
    BLOCK_BYTES,
    BlockedTable,
    Table,
    by_block,
    reported,
    users_of_block,
)


class NewTable(ABC):
    """Takes rows of users in any order, then becomes a table, with the others unchanged.

    A table that fits memory becomes an array. A larger one becomes files, one for each block with a
    changed user, in the folder of the existing blocks. Other blocks are not touched.

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


class TableRoom:
    """The place for private tables.

    Args:
        memory_bytes: tables that together take more are kept in files.
        blocks: the folder of these files. None for a temporary folder.
    """

    def __init__(self, memory_bytes: int, blocks: BlockFolder | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.blocks = BlockFolder() if blocks is None else blocks

    def is_enough_for(self, n_users: int, widths: Mapping[str, tuple[int, ...]]) -> bool:
        """Return whether tables of this number of users fit into memory.

        Args:
            widths: the shape of one user's row, by name.
        """
        return table_bytes(n_users, widths) <= self.memory_bytes

    def new(self, n_users: int, widths: Mapping[str, tuple[int, ...]]) -> dict[str, NewTable]:
        """Return new tables to write, (n_users, ...) by name.

        Raises:
            StorageError: the tables need files, and their folder cannot be used.
        """
        shapes = {name: (n_users, *width) for name, width in widths.items()}
        if self.is_enough_for(n_users, widths):
            return {name: NewArray(shape) for name, shape in shapes.items()}
        return {name: NewBlocks(self.blocks, shape) for name, shape in shapes.items()}

    def make_ready(self, n_users: int, widths: Mapping[str, tuple[int, ...]]) -> None:
        """Check, before a run, that the disk has room for tables that will be in files.

        Raises:
            StorageError: the disk lacks the room.
        """
        size = table_bytes(n_users, widths)
        if size <= self.memory_bytes:
            return
        place, room = self.blocks.room()
        missing = room_on_disk(size) - room
        if missing > 0:
            raise StorageError(
                f"The private tables of {n_users} users take {size >> 20} MiB, more than "
                f"client.memory_mib = {self.memory_bytes >> 20} allows in memory. A run keeps up "
                f"to {room_on_disk(size) >> 20} MiB of them in files, but {place} has room for "
                f"{room >> 20} MiB.",
                remedy=f"Free {-(-missing // (1 << 20))} MiB there, choose another folder "
                "(client.state for a client, output.runs for a simulation), or raise "
                "client.memory_mib.",
            )

    def has(self, table: Table) -> bool:
        """Return whether a table is in this room's files."""
        return isinstance(table, BlockedTable) and table.path == self.blocks.path


def room_in(folder: Path | None, memory_bytes: int) -> TableRoom:
    """Return a room whose files are in a folder of blocks, inside a run's or a client's folder.

    Args:
        folder: the run's or client's folder. None for a temporary one.
    """
    return TableRoom(memory_bytes, None if folder is None else BlockFolder.at(folder / BLOCKS))


def room_on_disk(size: int) -> int:
    """Return the largest size of a run's tables in files, in bytes.

    These are three versions: the agreed one, the best one and the new one. A fifth of another is
    for partly filled blocks and the system's overhead.
    """
    return size * 16 // 5


def table_bytes(n_users: int, widths: Mapping[str, tuple[int, ...]]) -> int:
    """Return the size of tables of float32 in bytes, in memory or in files."""
    values = sum(int(np.prod(width, dtype=np.int64)) for width in widths.values())
    return 4 * n_users * values


def reserve(file: IO[bytes], size: int) -> None:
    """Reserve the disk's blocks now: a disk that fills up later would kill the writing process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    for begin in range(0, size, BLOCK_BYTES):
        file.write(bytes(min(BLOCK_BYTES, size - begin)))
    file.flush()


def is_in_files(table: Table) -> bool:
    """Return whether a private table is in files."""
    return isinstance(table, BlockedTable)


def array_of(table: Table) -> NDArray[np.float32]:
    """Return a whole table in memory."""
    if isinstance(table, BlockedTable):
        return table[:]
    return np.array(table) if isinstance(table, np.memmap) else table


def give_back(table: NDArray[Any] | BlockedTable) -> None:
    """Drop a mapped array's pages from this process. The file keeps their content."""
    pages = getattr(table, "_mmap", None)
    # The file doesn't have the changes of a copy-on-write array.
    if pages is not None and getattr(table, "mode", "") != "c":
        pages.madvise(mmap.MADV_DONTNEED)


def rows_of(table: Table, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return a copy of some rows, in memory."""
    if not isinstance(table, np.memmap):
        return table[rows]
    found = np.empty((len(rows), *table.shape[1:]), dtype=table.dtype)
    copy_rows(table, found, from_rows=rows, to_rows=np.arange(len(rows)))
    return found


def copy_rows(
    source: Table,
    target: NDArray[np.float32],
    *,
    from_rows: NDArray[np.int64],
    to_rows: NDArray[np.int64],
) -> None:
    """Copy rows of one table to other rows of another. Arrays may be mapped."""
    width = source.itemsize * int(np.prod(source.shape[1:], dtype=np.int64))
    at_once = max(1, BLOCK_BYTES // max(1, width))
    for begin in range(0, len(from_rows), at_once):
        part = slice(begin, begin + at_once)
        target[to_rows[part]] = source[from_rows[part]]
        for table in (source, target):
            if isinstance(table, np.memmap):
                give_back(table)


BLOCKS = "blocks"
"""The folder of the blocks, in the same folder as the versions that name them."""

_FORMAT = "fedrec private blocks"
_VERSION = 1
_BEGIN = b'{"format": "' + _FORMAT.encode() + b'"'
_NAME = re.compile(r"block-[0-9a-f]{64}\.bin")


def manifest_of(tables: Mapping[str, BlockedTable]) -> bytes:
    """Return the list of a state's files."""
    record = {
        "format": _FORMAT,
        "version": _VERSION,
        "tables": {name: table.stored() for name, table in sorted(tables.items())},
    }
    return json.dumps(record).encode()


def read_manifest(path: Path) -> dict[str, dict[str, Any]] | None:
    """Return a stored state's record of its tables, or None if it contains the tables itself.

    Returns:
        by table: shape, users_per_block and names, as in `BlockedTable.stored`.

    Raises:
        StorageError: the content begins like a list, but is not one.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_BEGIN)) != _BEGIN:
                return None
        record = json.loads(path.read_bytes())
        if record["version"] != _VERSION:
            raise ValueError(f"its version is {record['version']!r}, expected {_VERSION}")
        tables: dict[str, dict[str, Any]] = record["tables"]
        for table in tables.values():
            _check(table)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{path} is not a stored private state: {error}.",
            remedy="Restore the file from a backup, or start with an empty state folder.",
        ) from None
    return tables


def names_in(tables: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the files of all tables."""
    return {name for table in tables.values() for name in table["names"]}


def _check(table: Mapping[str, Any]) -> None:
    numbers = [*table["shape"], table["users_per_block"]]
    if not table["shape"] or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"it has a table of the shape {table['shape']}")
    wanted = -(-table["shape"][0] // max(1, table["users_per_block"]))
    if len(table["names"]) != wanted or not all(map(_NAME.fullmatch, table["names"])):
        raise ValueError(f"it has a table of {len(table['names'])} blocks, expected {wanted}")
