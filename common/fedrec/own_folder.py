"""Folders for the files of one process, which disappear with it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

MOST_FILE_USERS = 100_000
"""The maximum number of users whose rows are in one file."""

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
    """
    found: list[Path] = []
    with suppress(OSError):
        found.extend(within.glob(f"{prefix}*"))
    for folder in found:
        try:
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # In use, another account's, or just being created.
            continue
