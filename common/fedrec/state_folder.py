"""One process at a time on a state folder, and how far its database has come, in a file beside it.

SQLite reads its write-ahead log up to the first damaged page. One flipped bit loses all later
commits without an error. Somebody may also bring back an older copy of the database alone. So each
commit is counted in the database and, once it is durable, here. At the start a database that is
behind its mark is refused.

The mark is written over in place, which needs no room on the disk, and synced soon after a round is
published: as it is noted after its commit is durable, whatever moment's mark the disk has, a power
cut may leave it behind the database, never ahead of it. Nobody has to wait for that sync, as a kill
loses nothing that was written.
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


FILE = "highwater"
_MAGIC = b"fedrec highwater 1 "
_DIGITS = 20


class Highwater:
    """The mark of one state folder.

    Args:
        folder: the state folder.
        name: of the folder, for errors.
        remedy: what to do about a folder that is not whole.
    """

    def __init__(self, folder: Path, name: str, remedy: str) -> None:
        self._path = folder / FILE
        self._name, self._remedy = name, remedy
        self._file = -1

    def check(self, commits: int | None, *, may_be_missing: bool = False) -> None:
        """Compare the mark with the database, and make it for a new folder.

        Args:
            commits: that the database counts; None where there is no database yet.
            may_be_missing: whether there are databases without a mark; `note` makes it then.

        Raises:
            StateWentBack: the database knows less than it once did, or one of the two is missing.
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
                f"The file {FILE!r} of {self._name} is missing: the folder is not whole.",
                remedy=self._remedy,
            )
        # A process that was killed between making the mark and the database left it at 0.
        if found > (commits or 0):
            raise StateWentBack(
                f"The database in {self._name} has {commits or 0} commits, and had {found}: it is "
                "older than it was, or lost what it had committed.",
                remedy=self._remedy,
            )
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)

    def note(self, commits: int) -> None:
        """Raise the mark to a commit that is durable.

        Raises:
            OSError: it cannot be written.
        """
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, record(commits), 0)

    def sync(self) -> None:
        """Let what was noted survive a power cut, too; beside `note` it may run in any thread.

        Raises:
            OSError: it cannot be written.
        """
        os.fsync(self._file)

    def close(self) -> None:
        """Let go of the file."""
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
    """Return a mark's bytes, which always are as many."""
    said = _MAGIC + f"{commits:0{_DIGITS}d}".encode()
    return said + sha256(said).hexdigest().encode()
