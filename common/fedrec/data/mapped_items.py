"""The training items of many users, in mapped files of neighbouring users."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedrec.durable import unwritten
from fedrec.own_folder import OwnFolder

PREFIX = "fedrec-users-"
"""Begins the names of folders with items."""


class MappedItems:
    """An int64 array in files, indexed by a slice without step or by an array of positions.

    A file has the smallest type that holds its items. Each access maps the files that it needs and
    returns a copy, so that no pages of the files stay in memory.

    Args:
        files: path, type and number of items of each file.
    """

    dtype = np.dtype(np.int64)

    def __init__(self, files: Sequence[tuple[str, str, int]]) -> None:
        self._files = tuple(files)
        self._ends = np.cumsum([0, *(size for _, _, size in files)])
        self.shape = (int(self._ends[-1]),)

    @classmethod
    def written(cls, parts: Iterable[NDArray[np.integer[Any]]], folder: Path) -> MappedItems:
        """Return items in files that are deleted with it, or after a kill by the next process.

        Args:
            parts: the items of each file.
            folder: the folder for a folder with the files, created if it is missing.

        Raises:
            DiskFull: the disk has no room for them, and nothing is left of them.
            SettingsError: the folder can't be written.
        """
        files = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            own = OwnFolder(folder, PREFIX)
            try:
                for number, part in enumerate(parts):
                    stored = part.astype(np.min_scalar_type(int(part.max(initial=0))))
                    path = own.path / f"{number:05}.items"
                    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                    # `ndarray.tofile` doesn't notice a full disk while it closes the file.
                    with os.fdopen(handle, "wb") as file:
                        file.write(stored.data)
                    files.append((str(path), str(stored.dtype), len(part)))
            except BaseException:
                own.remove()
                raise
        except OSError as error:
            raise unwritten(folder, error) from error
        found = cls(files)
        weakref.finalize(found, own.remove)
        return found

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, wanted: slice | NDArray[np.int64]) -> NDArray[np.int64]:
        if isinstance(wanted, slice):
            begin, end, _ = wanted.indices(len(self))
            parts: list[NDArray[Any]] = [np.empty(0, dtype=self.dtype)]
            first = int(np.searchsorted(self._ends, begin, side="right")) - 1
            for number in range(first, int(np.searchsorted(self._ends, end))):
                start = self._ends[number]
                parts.append(self._file(number)[max(begin - start, 0) : max(end - start, 0)])
            return np.concatenate(parts)
        files = np.searchsorted(self._ends, wanted, side="right") - 1
        found = np.empty(len(wanted), dtype=self.dtype)
        for number in np.unique(files).tolist():
            here = files == number
            found[here] = self._file(number)[wanted[here] - self._ends[number]]
        return found

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def _file(self, number: int) -> NDArray[np.unsignedinteger[Any]]:
        path, dtype, size = self._files[number]
        return np.memmap(path, dtype=dtype, mode="r", shape=(size,)) if size else np.empty(0, dtype)

    def tobytes(self) -> bytes:
        """Return the bytes of the array."""
        return self[:].tobytes()

    def to_json(self) -> list[tuple[str, str, int]]:
        """Return the input of `MappedItems` in another process of this account."""
        return list(self._files)
