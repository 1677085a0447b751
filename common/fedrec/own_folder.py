"""Folders for the files of one process and its workers, which disappear with it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import StorageError

MOST_FILE_USERS = 100_000
"""The maximum number of users whose rows are in one file."""

ITEMS_PREFIX = "fedrec-users-"
"""Begins the names of folders with users' items."""
WORKERS_PREFIX = "fedrec-workers-"
"""Begins the names of folders that worker processes share."""
_LOCK = "lock"


class OwnFolder:
    """A new folder with a lock in it.

    Folders of the same prefix whose processes were killed are removed first.

    Args:
        parent: folder in which it is created. None for the system's temporary one.

    Raises:
        OSError: the folder cannot be created.
    """

    def __init__(self, parent: Path | None, prefix: str) -> None:
        # Python 3.11's `mkdtemp` returns a relative path in a relative folder.
        within = (Path(tempfile.gettempdir()) if parent is None else parent).absolute()
        remove_abandoned(within, prefix)
        self._owner = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
        # Locked before it has its name, so that no other process treats it as abandoned.
        self._lock: IO[bytes] = (self.path / "new").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.path / "new").rename(self.path / _LOCK)

    def remove(self) -> None:
        """Delete the folder, unless this is a forked child. Mapped arrays stay valid."""
        if os.getpid() == self._owner:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.close()


def remove_abandoned(within: Path, prefix: str) -> None:
    """Delete the folders of processes that were killed together with all their workers.

    Args:
        within: folder in which they are. It may be missing or unreadable.
        prefix: the prefix of their names. Before it, there may be a pattern of the folders between.
    """
    found: list[Path] = []
    with suppress(OSError):
        # The letters that `mkdtemp` adds. A run folder's name ends in a longer stamp.
        found.extend(within.glob(f"{prefix}{'?' * 8}"))
    for folder in found:
        try:
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # In use, another account's, or just being created.
            continue


def map_file(
    path: str,
    dtype: str,
    shape: tuple[int, ...],
    *,
    mode: Literal["r", "r+", "c"] = "r",
    offset: int = 0,
) -> NDArray[Any]:
    """Map an array in a file of such a folder.

    Args:
        offset: the number of bytes before the array.

    Raises:
        StorageError: the file is gone, too short or can't be opened.
    """
    if 0 in shape:
        return np.empty(shape, dtype=dtype)
    try:
        return np.memmap(path, dtype=dtype, mode=mode, offset=offset, shape=shape)
    except (OSError, ValueError) as error:
        found = f"Users' tables in {path} can't be read: {error}."
        remedy = "Remove the cause."
        if isinstance(error, FileNotFoundError | ValueError):
            found += " Another program removed or changed the file."
            remedy = "Let no program clean up in this folder while fedrec runs."
        raise StorageError(
            f"{found} The version before this round is intact.",
            remedy=f"{remedy} Then run the same command again, with --resume for a simulation: it "
            "writes these files again.",
        ) from error
