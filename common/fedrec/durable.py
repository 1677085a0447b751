"""Write files atomically and durably, and report why a disk refused."""

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
"""Error numbers that the path or its owner causes, not fedrec or the disk."""

_SPACE = "Free disk space. Files from before are intact."
WRITABLE = "Choose a folder in which this user may write."


class DiskFull(StorageError):
    """No space is left, and nothing was changed. The process retries until there is space."""

    def __init__(self, message: str, *, remedy: str = _SPACE) -> None:
        super().__init__(message, remedy=remedy)


def unwritten(path: Path, error: OSError, remedy: str = WRITABLE) -> FedrecError:
    """Return the error for a file that could not be written.

    Args:
        remedy: the advice if the cause is not a lack of space.
    """
    message = f"{path} cannot be written: {error.strerror or error}."
    if error.errno in FULL:
        return DiskFull(message)
    kind = SettingsError if error.errno in UNUSABLE else StorageError
    return kind(message, remedy=remedy)


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, accessible to their owner alone.

    `mkdir` with parents sets the mode of the last one only and leaves the others to the umask.

    Raises:
        OSError: the folder cannot be created.
    """
    for path in (*reversed(folder.parents), folder):
        if path == folder or not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


def require_writable(folder: Path, setting: str, *files: str) -> None:
    """Make a private folder if it is missing, and check that files can be written in it.

    Free space is not checked, because a process without space waits for it.

    Args:
        setting: the setting that names the folder, for the error.
        files: names of files in the folder that must be writable if they exist.

    Raises:
        SettingsError: the folder cannot be created or is not writable.
    """
    try:
        make_private(folder)
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(f"{setting}: '{folder}' cannot be created: {error.strerror}.") from error
        raise SettingsError(
            f"{setting}: '{folder}' cannot be created: {error.strerror}.", remedy=WRITABLE
        ) from None
    # Write a file, because for root `os.access` ignores an immutable folder.
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
    """Atomically replace a file. A crash leaves either the old or the new content.

    Args:
        data: the content, as one value or in parts.
        private: use mode 0600 from the first byte on, otherwise 0644.
        remedy: the advice if the cause is not a lack of space.

    Raises:
        DiskFull: there is no space. The old content is intact.
        SettingsError: the folder is not writable.
        StorageError: writing failed for another reason.
    """
    try:
        with replacing(path, private=private) as file:
            file.writelines([data] if isinstance(data, bytes) else data)
    except OSError as error:
        raise unwritten(path, error, remedy) from error


@contextmanager
def replaced_after(path: Path, data: bytes, *, private: bool) -> Iterator[None]:
    """Store a file's new content on disk, and replace the file if the block succeeds.

    After the block, only the rename is left, which needs no space.

    Args:
        private: use mode 0600 from the first byte on, otherwise 0644.

    Raises:
        DiskFull: there is no space. The old content is intact.
        SettingsError: the folder is not writable.
        StorageError: writing failed for another reason.
    """
    try:
        with replacing(path, private=private) as file:
            file.write(data)
            _force(file)
            yield
    except OSError as error:
        raise unwritten(path, error, _REMEDY) from error


@contextmanager
def replacing(
    path: Path, *, private: bool, named: Callable[[], str] | None = None
) -> Iterator[BinaryIO]:
    """Open a temporary file next to `path`, and rename it to `path` if the block succeeds.

    After an exception nothing has changed.

    Args:
        private: use mode 0600 from the first byte on, otherwise 0644.
        named: returns the final name, if it depends on the content. It replaces the path's name.

    Raises:
        OSError: writing failed.
    """
    with _beside(path) as (file, temporary):
        yield file
        _force(file)
        if not private:
            temporary.chmod(0o644)
        os.replace(temporary, path if named is None else path.with_name(named()))
        sync(path.parent)


@contextmanager
def replacing_text(path: Path, *, private: bool = False) -> Iterator[TextIO]:
    """Replace a UTF-8 text file as `replacing` does. Line ends are written as given."""
    with replacing(path, private=private) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            # `replacing` closes the file.
            text.detach()


def write_new(path: Path, data: bytes, *, private: bool = True) -> None:
    """Write a file atomically under a name that does not exist yet.

    Args:
        private: use mode 0600, otherwise 0644.

    Raises:
        FileExistsError: the file exists. It was not changed.
        OSError: writing failed.
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
    """Append one line to a file of mode 0600 and force it to disk, in full or not at all.

    Raises:
        DiskFull: there is no space.
        SettingsError: the folder is not writable.
        StorageError: writing failed for another reason.
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
    """Force a file, or a folder's list of files, to disk.

    Raises:
        OSError: the disk failed.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def begin_writing_back(file: int, start: int, length: int) -> None:
    """Start writing a part of a file to disk early, so that syncing takes less time later."""
    # Linux queues the range's dirty pages and returns. This is only a hint and may fail.
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file, start, length, os.POSIX_FADV_DONTNEED)


@contextmanager
def _beside(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Open a new file of mode 0600 in the same folder, and delete it if the block fails."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, temporary
    except BaseException:
        # On a full disk an incomplete file would take the space that others wait for.
        temporary.unlink(missing_ok=True)
        raise


def _force(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
