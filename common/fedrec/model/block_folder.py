"""The files of blocked tables: named by their content, deleted when no version needs them.

Two kinds of users keep a block: tables in use in this process, and committed versions (`keep`). If
the process dies at any moment, the blocks of committed versions are still there. The next process
that opens the folder deletes all others.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from fedrec.errors import StorageError
from fedrec.model.blocked_table import BlockedTable, reported
from fedrec.own_folder import OwnFolder
from fedrec.state_folder import FolderLock

_NAME = re.compile(r"block-[0-9a-f]{64}\.bin")
_FOLDERS: weakref.WeakValueDictionary[Path, BlockFolder] = weakref.WeakValueDictionary()


class BlockFolder:
    """A folder of blocks, for which a process has a single object. See `at`.

    It creates nothing before the first write.

    Args:
        path: the folder. None for the process's own, which is deleted with it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._own: OwnFolder | None = None
        self._unlock: weakref.finalize[[], BlockFolder] | None = None
        self._owner = os.getpid()
        # The garbage collector may end tables at any moment, also while the lock is held.
        self._lock = threading.RLock()
        self._live: Counter[str] = Counter()
        # None until the committed versions are known: before that, no block can be superseded.
        self._kept: frozenset[str] | None = None
        self._checked: set[str] = set()

    @staticmethod
    def at(path: Path) -> BlockFolder:
        """Return this process's object for a folder."""
        place = path.absolute()
        found = _FOLDERS.get(place)
        if found is None:
            found = _FOLDERS[place] = BlockFolder(place)
        return found

    @property
    def path(self) -> Path:
        """The folder.

        Raises:
            StorageError: the folder is the process's own, and nothing was written yet.
        """
        if self._path is None:
            raise StorageError("No table has been written here yet.")
        return self._path

    def open(self) -> Path:
        """Create the folder if it is missing, lock other processes out, and return its path.

        Raises:
            FolderInUse: another process writes there.
            StorageError: the folder cannot be created.
        """
        with self._lock:
            if self._path is None:
                with reported(Path("the system's temporary folder"), "written"):
                    self._own = OwnFolder(None, "fedrec-blocks-")
                self._path = self._own.path
                weakref.finalize(self, self._own.remove)
            elif self._own is None and self._unlock is None:
                self._take_lock(self._path)
            return self._path

    def _take_lock(self, path: Path) -> None:
        with reported(path, "written"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._unlock = weakref.finalize(self, FolderLock(path, "Private tables").release)
        # Unfinished files of a killed process.
        for file in path.glob(".*.new"):
            file.unlink(missing_ok=True)

    def room(self) -> tuple[Path, int]:
        """Return the folder for blocks, which may not exist yet, and the bytes that fit in it.

        Raises:
            StorageError: the system does not report it.
        """
        place = Path(tempfile.gettempdir()) if self._path is None else self._path
        with reported(place):
            here = 0
            if place == self._path and place.is_dir():
                here = sum(file.stat().st_size for file in place.glob("*.bin"))
            while not place.exists():
                place = place.parent
            return place, here + shutil.disk_usage(place).free

    def take_in(self, file: Path, n_bytes: int) -> str:
        """Move a finished file into the folder and return its name, in use until `release`.

        Args:
            n_bytes: its size, to which it is filled up with zeros.
        """
        with reported(file, "written"):
            handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
            with os.fdopen(handle, "r+b") as content:
                content.truncate(n_bytes)
                name = f"block-{hashlib.file_digest(content, 'sha256').hexdigest()}.bin"
                target = self.path / name
                with self._lock:
                    # Before the file is there: no other thread may treat it as superseded in
                    # between.
                    self._live[name] += 1
                    if target.exists() and name in self._checked:
                        file.unlink()
                        return name
                if self._own is None:
                    os.fsync(content.fileno())
                os.replace(file, target)
        with self._lock:
            self._checked.add(name)
        return name

    def force(self) -> None:
        """Force the names of new files to disk."""
        if self._own is None and self._path is not None:
            with reported(self._path, "written"):
                handle = os.open(self._path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def table(
        self,
        shape: Sequence[int],
        users_per_block: int,
        names: Sequence[str],
        *,
        checked: bool = False,
    ) -> BlockedTable:
        """Return a table of these blocks, which are kept as long as it is used.

        Args:
            checked: whether this process already wrote or read the files.
        """
        own = tuple(names)
        table = BlockedTable(
            self.path, shape, users_per_block, own, check=None if checked else self.check
        )
        with self._lock:
            self._live.update(own)
        # The callback keeps this folder's object as long as the table is used.
        weakref.finalize(table, self.release, own)
        return table

    def check(self, name: str) -> None:
        """Check, once per process, that a block has its original content.

        Raises:
            StorageError: the block is missing or damaged.
        """
        with self._lock:
            if name in self._checked:
                return
        path = self.path / name
        with reported(path), path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if name != f"block-{found}.bin":
            raise StorageError(
                f"{path} is damaged: its content has the SHA-256 {found}.",
                remedy="Restore the folder from a backup, or start again with an empty one.",
            )
        with self._lock:
            self._checked.add(name)

    def keep(self, names: Iterable[str]) -> None:
        """Set the blocks that committed versions need. All others are superseded.

        Raises:
            StorageError: another process writes here.
        """
        kept = frozenset(names)
        with self._lock:
            if self._path is None or (not kept and not self._path.is_dir()):
                self._kept = kept
                return
            self.open()
            self._kept = kept
            self._delete(file.name for file in self._path.iterdir() if _NAME.fullmatch(file.name))

    def close(self) -> None:
        """Let another process write here. Tables stay readable as long as it keeps their blocks."""
        with self._lock:
            if self._own is not None:
                return
            if self._unlock is not None:
                self._unlock()
            # From now on, other processes decide what is committed.
            self._unlock = self._kept = None
            if _FOLDERS.get(self._path or Path()) is self:
                del _FOLDERS[self._path or Path()]

    def hold(self, name: str) -> None:
        """Count names as in use, until `release`. A writer may also use a name."""
        with self._lock:
            self._live[name] += 1

    def release(self, names: Sequence[str]) -> None:
        """Release names, once each, and delete blocks that are no longer needed."""
        # A forked child has copies of the tables and must not delete anything.
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._live.subtract(names)
            gone = [name for name in set(names) if self._live[name] <= 0]
            for name in gone:
                del self._live[name]
            # A process that only reads, while another one owns the folder, deletes nothing.
            if self._own is not None or self._kept is not None:
                self._delete(gone)

    def _delete(self, names: Iterable[str]) -> None:
        assert self._path is not None
        kept = self._kept or frozenset()
        for name in names:
            if name not in kept and not self._live.get(name):
                with suppress(OSError):
                    (self._path / name).unlink()
                self._checked.discard(name)
        if not kept and not self._live and self._own is None:
            self._close()

    def _close(self) -> None:
        """Remove the folder if nothing is left in it."""
        assert self._path is not None
        if any(self._path.glob("*.bin")) or any(self._path.glob(".*.new")):
            return
        if self._unlock is not None:
            self._unlock()
            self._unlock = None
        with suppress(OSError):
            (self._path / "lock").unlink()
            self._path.rmdir()
