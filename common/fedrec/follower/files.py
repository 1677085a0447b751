"""Files of the state folder: named by their content, and checked when they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedrec.durable import begin_writing_back, make_private, replacing, unwritten
from fedrec.errors import StorageError

Content = bytes | Iterable[bytes]
"""A file's, as a whole or in parts."""

_PART_BYTES = 1 << 20

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


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner may enter; tighten it where it exists already."""
    try:
        make_private(folder)
        folder.chmod(0o700)
    except OSError as error:
        raise unwritten(folder, error, _UNWRITABLE) from error


def write_blob(folder: Path, kind: str, data: Content) -> FileRef:
    """Write `data` under a name that follows from its content, and return its reference.

    Raises:
        DiskFull: there is no space; what was there before is intact.
        SettingsError: nothing may be written there.
        StorageError: it cannot be written for another reason.
    """
    hashed, length = hashlib.sha256(), 0

    def name() -> str:
        return f"{kind}-{hashed.hexdigest()[:32]}.bin"

    try:
        with replacing(folder / kind, private=True, named=name) as file:
            for part in _parts(data):
                file.write(part)
                # While the disk writes what is there, the rest is hashed.
                begin_writing_back(file.fileno(), length, len(part))
                hashed.update(part)
                length += len(part)
    except OSError as error:
        raise unwritten(folder / kind, error, _UNWRITABLE) from error
    return FileRef(name=name(), length=length, sha256=hashed.hexdigest())


def _parts(data: Content) -> Iterable[bytes | memoryview]:
    if not isinstance(data, bytes):
        return data
    view = memoryview(data)
    return (view[at : at + _PART_BYTES] for at in range(0, len(view), _PART_BYTES))


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
