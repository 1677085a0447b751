"""Users' private tables: in memory, or in memory-mapped files where they outgrow it.

A mapped table is an array like any other. What differs is that whoever reads or writes many of its
rows does so block by block and gives the pages back in between: they stay in the system's cache,
which any process may claim, and no longer count as memory of this one.

The files have no name: nobody else can open them, and the system frees them with the last array
that looks into them, even if the process is killed. They are no storage; see
`fedrec.model.tensor_file` for that.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import StorageError

__all__ = ["BLOCK_BYTES", "TableRoom", "copy_rows", "give_back", "is_mapped", "rows_of"]

BLOCK_BYTES = 4 << 20
"""Bytes of a mapped table that are looked at before its pages are given back."""

Table = NDArray[np.float32]


class TableRoom:
    """Where private tables lie.

    Args:
        memory_bytes: tables that together take more are mapped.
        folder: where their files are made; None for the system's temporary folder.
    """

    def __init__(self, memory_bytes: int, folder: Path | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.folder = folder

    def is_enough_for(self, n_users: int, widths: Mapping[str, tuple[int, ...]]) -> bool:
        """Return whether tables of so many users fit into memory.

        Args:
            widths: the shape of one user's row, by name.
        """
        values = sum(int(np.prod(width, dtype=np.int64)) for width in widths.values())
        return 4 * n_users * values <= self.memory_bytes

    def empty(self, n_users: int, widths: Mapping[str, tuple[int, ...]]) -> dict[str, Table]:
        """Return tables to be filled, float32 (n_users, ...) by name.

        Raises:
            StorageError: they have to be mapped, and the disk has no room for them.
        """
        shapes = {name: (n_users, *width) for name, width in widths.items()}
        if self.is_enough_for(n_users, widths):
            return {name: np.empty(shape, dtype=np.float32) for name, shape in shapes.items()}
        return {name: self._mapped(name, shape) for name, shape in shapes.items()}

    def _mapped(self, name: str, shape: tuple[int, ...]) -> Table:
        size = 4 * max(1, int(np.prod(shape, dtype=np.int64)))
        folder = Path(tempfile.gettempdir()) if self.folder is None else self.folder
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                _reserve(file, size)
                return np.memmap(file, dtype=np.float32, mode="r+", shape=shape)
        except OSError as error:
            raise StorageError(
                f"The private table {name} takes {size >> 20} MiB, more than client.memory_mib "
                f"allows, and cannot be laid out in {folder}: {error}.",
                remedy=f"Free {size >> 20} MiB there, choose another folder (client.state for a "
                "client, output.runs for a simulation), or raise client.memory_mib.",
            ) from error


def _reserve(file: IO[bytes], size: int) -> None:
    """Take the disk's blocks now: a disk that fills up later would kill whoever writes."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    for begin in range(0, size, BLOCK_BYTES):
        file.write(bytes(min(BLOCK_BYTES, size - begin)))
    file.flush()


def is_mapped(table: NDArray[Any]) -> bool:
    """Return whether a table lies in a file."""
    return isinstance(table, np.memmap)


def give_back(table: NDArray[Any]) -> None:
    """Drop a mapped table's pages from this process; the file keeps what they hold."""
    pages = getattr(table, "_mmap", None)
    if pages is not None:
        pages.madvise(mmap.MADV_DONTNEED)


def rows_of(table: Table, rows: NDArray[np.int64]) -> Table:
    """Return a copy of some rows, in memory."""
    if not is_mapped(table):
        return table[rows]
    found = np.empty((len(rows), *table.shape[1:]), dtype=table.dtype)
    copy_rows(table, found, from_rows=rows, to_rows=np.arange(len(rows)))
    return found


def copy_rows(
    source: Table, target: Table, *, from_rows: NDArray[np.int64], to_rows: NDArray[np.int64]
) -> None:
    """Copy rows of one table to other rows of another, both of which may be mapped."""
    width = source.itemsize * int(np.prod(source.shape[1:], dtype=np.int64))
    at_once = max(1, BLOCK_BYTES // max(1, width))
    for begin in range(0, len(from_rows), at_once):
        part = slice(begin, begin + at_once)
        target[to_rows[part]] = source[from_rows[part]]
        give_back(source)
        give_back(target)
