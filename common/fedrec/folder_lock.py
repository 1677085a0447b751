"""At most one process on a state folder."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedrec.disk import unwritten
from fedrec.errors import FedrecError

__all__ = ["FolderLock"]


class FolderLock:
    """An advisory lock that the system drops when its process ends, however it ends.

    Args:
        folder: holds the file `lock`, which says who has it.
        in_use: makes the error from what that file says, such as "12 on host".

    Raises:
        FedrecError: that of `in_use`; or the file cannot be written.
    """

    def __init__(self, folder: Path, in_use: Callable[[str], FedrecError]) -> None:
        path = folder / "lock"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unwritten(path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 4096, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise in_use(holder or "unknown") from None
        with suppress(OSError):
            # The lock counts, not its words, which are for people: a full disk passes.
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let the next process in."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
