"""Files that appear whole or not at all; and why a disk takes nothing."""

from __future__ import annotations

import errno
import io
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from fedrec.errors import FedrecError, SettingsError, StorageError

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


_REMEDY = "Check that the folder exists and is writable."


def write_whole(
    path: Path, data: bytes | Iterable[bytes], *, private: bool, remedy: str = _REMEDY
) -> None:
    """Put a file in place in one step; a crash leaves the old one or the new one.

    Args:
        data: the content, as a whole or in parts.
        private: give it mode 0600 from its first byte on; otherwise 0644.
        remedy: what to do where it is not for want of space.

    Raises:
        DiskFull: there is no space; what was there before is intact.
        SettingsError: nothing may be written there.
        StorageError: it cannot be written for another reason.
    """
    try:
        with replacing(path, private=private) as file:
            file.writelines([data] if isinstance(data, bytes) else data)
    except OSError as error:
        raise unwritten(path, error, remedy) from error


@contextmanager
def replacing(
    path: Path, *, private: bool, named: Callable[[], str] | None = None
) -> Iterator[BinaryIO]:
    """Open a file beside `path`, and put it in place when the block ends well.

    After an exception nothing has changed.

    Args:
        private: give it mode 0600 from its first byte on; otherwise 0644.
        named: returns the name in place of the path's, where it follows from what was written.

    Raises:
        OSError: it cannot be written.
    """
    with _beside(path) as (file, temporary):
        yield file
        _force(file)
        if not private:
            temporary.chmod(0o644)
        os.replace(temporary, path if named is None else path.with_name(named()))
        sync(path.parent)


@contextmanager
def replacing_text(path: Path) -> Iterator[TextIO]:
    """Do as `replacing` does for a public file of UTF-8 text; line ends are written as given."""
    with replacing(path, private=False) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            # The file is closed where it was opened.
            text.detach()


def write_new(path: Path, data: bytes, *, private: bool = True) -> None:
    """Put a file in place where there is none.

    Args:
        private: give it mode 0600; otherwise 0644.

    Raises:
        FileExistsError: there is one, which is as it was.
        OSError: it cannot be written.
    """
    with _beside(path) as (file, temporary):
        file.write(data)
        _force(file)
        if not private:
            temporary.chmod(0o644)
        os.link(temporary, path)
        temporary.unlink()
        sync(path.parent)


def append_line(path: Path, line: str, *, remedy: str = _REMEDY) -> None:
    """Add one line to a file of mode 0600 and force it to disk; all of it, or nothing.

    Raises:
        DiskFull: there is no space.
        SettingsError: nothing may be written there.
        StorageError: it cannot be written for another reason.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            before, rest = os.fstat(handle).st_size, line.encode() + b"\n"
            try:
                while rest:
                    rest = rest[os.write(handle, rest) :]
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, before)
                raise
        finally:
            os.close(handle)
    except OSError as error:
        raise unwritten(path, error, remedy) from error


def sync(path: Path) -> None:
    """Force a file to disk, or which files a folder has.

    Raises:
        OSError: the disk refuses.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def begin_writing_back(file: int, start: int, length: int) -> None:
    """Have the disk write a part of a file while the next one is made: syncing waits less then."""
    # Linux hands the range's dirty pages to the disk and returns. Only a hint: it may fail.
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file, start, length, os.POSIX_FADV_DONTNEED)


@contextmanager
def _beside(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Open a new file of mode 0600 beside another; it is gone if the block ends badly."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, temporary
    except BaseException:
        # On a full disk a torso takes the space that others wait for.
        temporary.unlink(missing_ok=True)
        raise


def _force(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
