"""A folder that belongs to one process and goes with it, even if the process is killed."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import IO

_LOCK = "lock"


class OwnFolder:
    """A new folder with a lock in it.

    Folders of the same prefix whose processes were killed are removed first.

    Args:
        parent: folder in which it is made; None for the system's temporary one.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, parent: Path | None, prefix: str) -> None:
        within = Path(tempfile.gettempdir()) if parent is None else parent
        _remove_abandoned(within, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
        # Locked before it has its name, so that nobody takes it for abandoned.
        self._lock: IO[bytes] = (self.path / "new").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.path / "new").rename(self.path / _LOCK)

    def remove(self) -> None:
        """Delete the folder; arrays that are mapped from it stay as they are."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_abandoned(within: Path, prefix: str) -> None:
    """Delete the folders of processes that were killed together with all their workers."""
    for folder in within.glob(f"{prefix}*"):
        try:
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # In use, another account's, or just being made.
            continue
