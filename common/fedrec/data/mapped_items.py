"""The training items of many users, in mapped files of neighbouring users."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

from fedrec.durable import unwritten
from fedrec.own_folder import ITEMS_PREFIX, OwnFolder, map_file


class MappedItems(NDArrayOperatorsMixin):
    """A read-only int64 array (n,) in files.

    A file has the smallest type that holds its items. Items by position come from the files that
    have them, as a copy, so that no pages of the files stay in memory. Everything else that an
    array can do loads the whole array first: methods, numpy's functions and operators, `copy` and
    `pickle`. Each access raises a `StorageError` if a file is gone.

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
            own = OwnFolder(folder, ITEMS_PREFIX)
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

    def __getitem__(self, wanted: Any) -> NDArray[np.int64]:
        """Return a copy of the items at these places, given as in numpy."""
        if isinstance(wanted, slice):
            begin, end, step = wanted.indices(len(self))
            if step != 1:
                return self[np.arange(begin, end, step)]
            parts: list[NDArray[Any]] = [np.empty(0, dtype=self.dtype)]
            first = int(np.searchsorted(self._ends, begin, side="right")) - 1
            for number in range(first, int(np.searchsorted(self._ends, end))):
                start = self._ends[number]
                parts.append(self._file(number)[max(begin - start, 0) : max(end - start, 0)])
            return np.concatenate(parts)
        given = np.asarray(wanted)
        if isinstance(wanted, tuple) or given.dtype.kind not in "biu":
            chosen: NDArray[np.int64] = self[:][wanted]
            return chosen
        if given.dtype == np.bool_:
            given = np.arange(len(self))[given]
        places = given.astype(np.int64)
        places = np.where(places < 0, places + len(self), places)
        if places.size and not 0 <= places.min() <= places.max() < len(self):
            raise IndexError(f"a place is outside the {len(self)} items")
        files = np.searchsorted(self._ends, places, side="right") - 1
        found = np.empty(places.shape, dtype=self.dtype)
        for number in np.unique(files).tolist():
            here = files == number
            found[here] = self._file(number)[places[here] - self._ends[number]]
        return found[()]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def __iter__(self) -> Iterator[np.int64]:
        return iter(self[:])

    def __reduce__(self) -> str | tuple[Any, ...]:
        # The files are deleted with their owner, so a copy or a pickle has the items.
        return self[:].__reduce__()

    def __getattr__(self, name: str) -> Any:
        # numpy would read the memory that `__array_interface__` names after its array is gone.
        if name.startswith("_"):
            raise AttributeError(f"MappedItems has no attribute {name!r}")
        return getattr(self._loaded(), name)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *given: Any, **named: Any
    ) -> NDArray[Any]:
        def read(one: Any) -> Any:
            return one._loaded() if isinstance(one, MappedItems) else one

        if "out" in named:
            named["out"] = tuple(map(read, named["out"]))
        found: NDArray[Any] = getattr(ufunc, method)(*map(read, given), **named)
        return found

    def _loaded(self) -> NDArray[np.int64]:
        """Return all items, in an array that refuses changes, which would never reach the files."""
        found = self[:]
        found.flags.writeable = False
        return found

    def _file(self, number: int) -> NDArray[np.unsignedinteger[Any]]:
        path, dtype, size = self._files[number]
        return map_file(path, dtype, (size,))

    def to_json(self) -> list[tuple[str, str, int]]:
        """Return the input of `MappedItems` in another process of this account."""
        return list(self._files)
