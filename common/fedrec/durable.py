"""Files that appear whole or not at all, and are still there after a power cut.

A file is written under another name, forced to disk and put in place, and then the folder is forced
to disk, too.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from fedrec.disk import unwritten

__all__ = [
    "append_line",
    "begin_writing_back",
    "replacing",
    "replacing_text",
    "sync",
    "write_new",
    "write_whole",
]

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
