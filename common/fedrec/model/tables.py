"""Users' private tables, in memory or in files, and the stored form of the latter."""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import StorageError
from fedrec.model.block_folder import BlockFolder
from fedrec.model.blocked_table import BLOCK_BYTES, BlockedTable, Table
from fedrec.model.new_table import NewArray, NewBlocks, NewTable


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


def give_back(table: NDArray[Any]) -> None:
    """Drop a mapped table's pages from this process. The file keeps their content."""
    pages = getattr(table, "_mmap", None)
    if pages is not None:
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
