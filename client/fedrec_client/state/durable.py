"""Files of the state folder: named by their content, and checked when they are read."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedrec.disk import unwritten
from fedrec.durable import write_whole
from fedrec.errors import StorageError

__all__ = [
    "FileRef",
    "FolderLock",
    "Parts",
    "checked_path",
    "make_private_folder",
    "read_checked",
    "write_blob",
]

Parts = Callable[[], Iterable[bytes]]
"""Yields a content in parts, the same ones in every call."""

_DAMAGED = "Restore the state folder from a backup, or start again with an empty one."
_UNWRITABLE = "Check that the folder is writable, then start again."


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRef:
    """Names a file of the state folder and what it must contain.

    Attributes:
        sha256: hexadecimal digest of the content.
    """

    name: str
    length: int
    sha256: str


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritten(path, error, _UNWRITABLE) from error


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner may enter; tighten it where it exists already."""
    with _reported(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)


def write_blob(folder: Path, kind: str, data: bytes | Parts) -> FileRef:
    """Write `data` under a name that follows from its content, and return its reference.

    Args:
        data: the content, or a function that yields it in parts and is called twice.
    """
    hashed, length = hashlib.sha256(), 0
    for part in _parts(data):
        hashed.update(part)
        length += len(part)
    sha256 = hashed.hexdigest()
    ref = FileRef(name=f"{kind}-{sha256[:32]}.bin", length=length, sha256=sha256)
    write_whole(folder / ref.name, _parts(data), private=True, remedy=_UNWRITABLE)
    return ref


def _parts(data: bytes | Parts) -> Iterable[bytes]:
    return [data] if isinstance(data, bytes) else data()


def read_checked(folder: Path, ref: FileRef) -> bytes:
    """Return a file's content.

    Raises:
        StorageError: the file is missing, or is not what was written.
    """
    path = folder / ref.name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}.", remedy=_DAMAGED) from error
    _check_content(path, ref, len(data), hashlib.sha256(data).hexdigest())
    return data


def checked_path(folder: Path, ref: FileRef) -> Path:
    """Return where a file lies whose content was checked without holding it in memory.

    Raises:
        StorageError: the file is missing, or is not what was written.
    """
    path = folder / ref.name
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            length = file.tell()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}.", remedy=_DAMAGED) from error
    _check_content(path, ref, length, found)
    return path


def _check_content(path: Path, ref: FileRef, length: int, found: str) -> None:
    if length != ref.length or found != ref.sha256:
        raise StorageError(
            f"{path} is damaged: it has {length} bytes with SHA-256 {found}, expected "
            f"{ref.length} bytes with {ref.sha256}.",
            remedy=_DAMAGED,
        )


class FolderLock:
    """Keeps a second process out of a state folder; the system frees it when this one dies."""

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            StorageError: another process holds it.
        """
        path = folder / "lock"
        with _reported(path):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._handle)
            raise StorageError(
                f"The state folder {folder} is used by another process (pid {holder}).",
                remedy="Stop that process, or give this one a folder of its own.",
            ) from None
        with suppress(OSError):
            # Only who holds the lock matters; the number is for people, and a full disk passes.
            os.ftruncate(self._handle, 0)
            os.write(self._handle, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let the next process in."""
        os.close(self._handle)
