"""Why a disk takes nothing: it is full, which passes, or the path is one that cannot be written."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from fedrec.errors import FedrecError, SettingsError, StorageError

__all__ = [
    "FULL",
    "UNUSABLE",
    "WRITABLE",
    "DiskFull",
    "make_private",
    "require_writable",
    "unwritten",
]

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
UNUSABLE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENAMETOOLONG,
    }
)
"""What a path or its owner is the cause of, not fedrec and not the disk."""

_SPACE = "Free disk space; what was kept before is intact."
WRITABLE = "Name a folder in which this user may write."


class DiskFull(StorageError):
    """Nothing was changed; the process that serves or trains tries again until there is space."""

    def __init__(self, message: str, *, remedy: str = _SPACE) -> None:
        super().__init__(message, remedy=remedy)


def unwritten(path: Path, error: OSError, remedy: str = WRITABLE) -> FedrecError:
    """Return the error for a file that could not be written.

    Args:
        remedy: what to do where it is not for want of space.
    """
    message = f"{path} cannot be written: {error.strerror or error}."
    if error.errno in FULL:
        return DiskFull(message)
    kind = SettingsError if error.errno in UNUSABLE else StorageError
    return kind(message, remedy=remedy)


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, for their owner alone.

    `mkdir` with parents gives only the last one its mode, and the others what the umask leaves.

    Raises:
        OSError: it cannot be made.
    """
    for path in (*reversed(folder.parents), folder):
        if path == folder or not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


def require_writable(folder: Path, setting: str, *files: str) -> None:
    """Make a private folder where it is missing, and refuse one in which nothing could be kept.

    Whether there is space is not looked at: who is without it waits.

    Args:
        setting: what names the folder, for the error.
        files: names of files in the folder that are to be written where they exist.

    Raises:
        SettingsError: it cannot be made, or nothing can be written there.
    """
    try:
        make_private(folder)
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(f"{setting}: '{folder}' cannot be made: {error.strerror}.") from error
        raise SettingsError(
            f"{setting}: '{folder}' cannot be made: {error.strerror}.", remedy=WRITABLE
        ) from None
    # A file, not `os.access`: for root that knows nothing of a folder that was made immutable.
    tried = folder / f".{secrets.token_hex(8)}.tried"
    try:
        os.close(os.open(tried, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        tried.unlink()
    except OSError as error:
        if error.errno not in FULL:
            raise SettingsError(
                f"{setting}: '{folder}' cannot be written: {error.strerror}.", remedy=WRITABLE
            ) from None
    for path in (folder / name for name in files):
        if path.exists() and not os.access(path, os.W_OK):
            raise SettingsError(f"{setting}: '{path}' cannot be written.", remedy=WRITABLE)
