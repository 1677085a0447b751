"""At most one coordinator on a state folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import suppress
from pathlib import Path

from fedrec.errors import SettingsError

__all__ = ["FolderLock"]


class FolderLock:
    """An advisory lock that the kernel drops when its process ends, however it ends.

    Raises:
        SettingsError: naming the process that holds the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _holder(os.pread(self._file, 4096, 0))
            os.close(self._file)
            raise SettingsError(
                f"coordinator.state: the folder {folder.name!r} is in use by {holder}.",
                remedy="Stop that coordinator first, or choose another folder.",
            ) from None
        owner = {"pid": os.getpid(), "host": socket.gethostname()}
        with suppress(OSError):
            # The lock counts, not its words: a full disk is told by who needs the space.
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(owner).encode(), 0)

    def release(self) -> None:
        """Let go of the folder."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _holder(raw: bytes) -> str:
    try:
        owner = json.loads(raw)
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
