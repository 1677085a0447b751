"""Key files that are complete or absent, and that nobody else on the machine reads."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedrec.durable import WRITABLE, make_private, sync, unwritten, write_new, write_whole
from fedrec.errors import KeysError

MAX_SECRET_BYTES = 64 * 1024


def write_secret(path: Path, content: bytes) -> None:
    """Create a file that only its owner reads; an existing one is never replaced.

    The content is durable under a temporary name before it appears under its own.

    Raises:
        KeysError: when the file exists.
        StorageError: when the disk refuses.
        SettingsError: when nothing may be written there.
    """
    remedy = "Keys are never overwritten; load it, or move it away and keep a copy."
    _create(path, content, private=True, remedy=remedy)


def read_secret(path: Path, *, remedy: str, max_bytes: int = MAX_SECRET_BYTES) -> bytes:
    """Return the content of a key file.

    Args:
        path: the file.
        remedy: what to do when it does not exist.
        max_bytes: the longest that it may be.

    Raises:
        KeysError: when it is missing, too long, or readable by others than its owner.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise KeysError(
                    f"{path} has mode {mode:04o}; a key file must be readable by its owner only.",
                    remedy=f"Run `chmod 600 {path}`, and make new keys if others may have read it.",
                )
            return _bounded(path, file.read(max_bytes + 1), max_bytes)
    except FileNotFoundError:
        raise KeysError(f"{path} does not exist.", remedy=remedy) from None
    except OSError as error:
        raise KeysError(
            f"{path} cannot be read: {error.strerror}.", remedy="Check its owner and its folder."
        ) from error


def replace_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads, replacing an older one in one step.

    For records that change; keys are made once, by `write_secret`.

    Raises:
        StorageError: when the disk refuses.
        SettingsError: when nothing may be written there.
    """
    _replace(path, content, private=True)


def destroy_secret(path: Path) -> None:
    """Overwrite a file with zeros and delete it; one that is gone already is no error.

    Disks and file systems that write elsewhere may keep the old blocks for a while.

    Raises:
        StorageError: when the disk refuses.
        SettingsError: when nothing may be written there.
    """
    try:
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
        sync(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise unwritten(path, error) from error


def write_public(path: Path, content: bytes) -> None:
    """Write a file that anybody may read, replacing an older one in one step.

    Raises:
        StorageError: when the disk refuses.
        SettingsError: when nothing may be written there.
    """
    _replace(path, content, private=False)


def write_new_public(path: Path, content: bytes) -> None:
    """Create a file that anybody may read; an existing one is never replaced.

    Raises:
        KeysError: when the file exists.
        StorageError: when the disk refuses.
        SettingsError: when nothing may be written there.
    """
    remedy = "Name a new file, or move this one away."
    _create(path, content, private=False, remedy=remedy)


def _create(path: Path, content: bytes, *, private: bool, remedy: str) -> None:
    try:
        make_private(path.parent)
        write_new(path, content, private=private)
    except FileExistsError:
        raise KeysError(f"{path} exists already.", remedy=remedy) from None
    except OSError as error:
        raise unwritten(path, error) from error


def _replace(path: Path, content: bytes, *, private: bool) -> None:
    try:
        make_private(path.parent)
    except OSError as error:
        raise unwritten(path, error) from error
    write_whole(path, content, private=private, remedy=WRITABLE)


def read_public(path: Path, *, max_bytes: int, remedy: str) -> bytes:
    """Return the content of a file that holds no secret.

    Raises:
        KeysError: when it is missing, unreadable or longer than `max_bytes`.
    """
    try:
        with path.open("rb") as file:
            return _bounded(path, file.read(max_bytes + 1), max_bytes)
    except FileNotFoundError:
        raise KeysError(f"{path} does not exist.", remedy=remedy) from None
    except OSError as error:
        raise KeysError(f"{path} cannot be read: {error.strerror}.", remedy=remedy) from error


def _bounded(path: Path, content: bytes, max_bytes: int) -> bytes:
    if len(content) > max_bytes:
        raise KeysError(
            f"{path} is longer than {max_bytes} bytes.", remedy="Check that it is the right file."
        )
    return content
