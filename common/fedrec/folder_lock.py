"""One process at a time on a folder: for its life, or for one change."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from fedrec.durable import unwritten
from fedrec.errors import FolderInUse

_LOOK_SECONDS = 0.02


class FolderLock:
    """An advisory lock that the system drops when its process ends, however it ends.

    Args:
        folder: holds the lock's file, which says who has it.
        setting: what names the folder, for the error.
        name: of the file, seen from the folder, which has one for each thing that one process does
            at a time.
        wait_seconds: how long another process may have it; 0 refuses at once.

    Raises:
        FolderInUse: naming the folder and the process.
        FedrecError: the file cannot be written.
    """

    def __init__(
        self, folder: Path, setting: str, *, name: str = "lock", wait_seconds: float = 0.0
    ) -> None:
        path, until = folder / name, time.monotonic() + wait_seconds
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unwritten(path, error) from error
        while not self._taken():
            if time.monotonic() >= until:
                holder = os.pread(self._file, 4096, 0).decode(errors="replace").strip()
                self.release()
                remedy = "Stop that process first, or name another folder."
                raise FolderInUse(
                    f"{setting}: the folder '{folder.absolute()}' is in use by process "
                    f"{holder or 'unknown'}"
                    + (f"; it was waited for, {wait_seconds:g} s." if wait_seconds else "."),
                    remedy="Stop that process where it hangs." if wait_seconds else remedy,
                )
            time.sleep(_LOOK_SECONDS)
        with suppress(OSError):
            # The lock counts, not its words, which are for people: a full disk passes.
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Let the next process in."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
