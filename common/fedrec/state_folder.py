"""State folders: a lock for one process at a time, and a high-water mark of the database.

SQLite reads its write-ahead log up to the first damaged page, so one flipped bit silently loses all
later commits. A person may also restore an older copy of the database alone. So each commit is
counted in the database and, once it is durable, in a file next to it. A database behind its mark is
refused at the start.

The mark is overwritten in place, which needs no space, and synced soon after a round is published.
It is written after its commit is durable, so a power cut may leave it behind the database but never
ahead of it. No call waits for that sync, because a kill loses nothing that was written.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType

from fedrec.durable import sync, unwritten
from fedrec.errors import FolderInUse, StateWentBack, StorageError

_LOOK_SECONDS = 0.02


class FolderLock:
    """An advisory lock, which the system releases when its process ends for any reason.

    Args:
        folder: the folder of the lock's file, which names the owning process.
        setting: the setting that names the folder, for the error.
        name: the file's name in the folder. Each exclusive activity has its own.
        wait_seconds: how long to wait for another process. 0 refuses at once.

    Raises:
        FolderInUse: another process has it. The message names the folder and the process.
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
                remedy = "Stop that process first, or choose another folder."
                raise FolderInUse(
                    f"{setting}: the folder '{folder.absolute()}' is in use by process "
                    f"{holder or 'unknown'}"
                    + (f", after waiting {wait_seconds:g} s." if wait_seconds else "."),
                    remedy="Stop that process if it hangs." if wait_seconds else remedy,
                )
            time.sleep(_LOOK_SECONDS)
        with suppress(OSError):
            # The lock counts, not its text, which is for people. A full disk is no obstacle.
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

    @staticmethod
    def is_held(path: Path) -> bool:
        """Return whether a process holds the lock of this file, which may be missing.

        It takes the lock for a moment, so the folder's users should wait for it that long.
        """
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(file)
        return False

    def release(self) -> None:
        """Release the lock for the next process."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


FILE = "highwater"
_MAGIC = b"fedrec highwater 1 "
_DIGITS = 20


class Highwater:
    """The high-water mark of a state folder.

    Args:
        folder: the state folder.
        name: a name of the folder, for errors.
        remedy: the advice for an incomplete folder.
    """

    def __init__(self, folder: Path, name: str, remedy: str) -> None:
        self._path = folder / FILE
        self._name, self._remedy = name, remedy
        self._file = -1

    def check(self, commits: int | None, *, may_be_missing: bool = False) -> None:
        """Compare the mark with the database, and create it for a new folder.

        Args:
            commits: the database's count, or None if there is no database.
            may_be_missing: whether a database may lack a mark. `note` creates it then.

        Raises:
            StateWentBack: the database lost commits, or one of the two is missing.
            StorageError: the mark cannot be read.
        """
        found = self._read(may_be_empty=not commits)
        if found is None and may_be_missing:
            return
        if found is None and commits is None:
            self.note(0)
            self.sync()
            sync(self._path.parent)
            return
        if found is None:
            raise StateWentBack(
                f"The file {FILE!r} of {self._name} is missing: the folder is incomplete.",
                remedy=self._remedy,
            )
        # A process that was killed between creating the mark and the database left it at 0.
        if found > (commits or 0):
            raise StateWentBack(
                f"The database in {self._name} has {commits or 0} commits, expected at least "
                f"{found}. It is an older copy, or it lost commits.",
                remedy=self._remedy,
            )
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)

    def note(self, commits: int) -> None:
        """Raise the mark to a durable commit.

        Raises:
            OSError: writing failed.
        """
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, record(commits), 0)

    def sync(self) -> None:
        """Make the mark survive a power cut, too.

        It may run in any thread, in parallel with `note`.

        Raises:
            OSError: writing failed.
        """
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, *, may_be_empty: bool) -> int | None:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return None
        if not raw and may_be_empty:
            # Killed before the first mark.
            return 0
        number = raw[len(_MAGIC) : len(_MAGIC) + _DIGITS]
        if not number.isdigit() or raw != record(int(number)):
            raise StorageError(
                f"The file {FILE!r} of {self._name} is damaged.", remedy=self._remedy
            )
        return int(number)


def record(commits: int) -> bytes:
    """Return the bytes of a mark, always of the same length."""
    header = _MAGIC + f"{commits:0{_DIGITS}d}".encode()
    return header + sha256(header).hexdigest().encode()
