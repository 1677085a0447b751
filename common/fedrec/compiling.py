"""Compile functions without the interpreter's lock, and cache the result for the next start.

Importing this module imports numba, so only compiled code does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba

from fedrec.data.public import cache_folder
from fedrec.errors import SettingsError

_PACKAGE = Path(__file__).parent
_SOURCES = "algorithms/accelerators/*.py"
"""Functions that are inlined into functions of other files."""
_DIGEST_LETTERS = 16
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


def _sources() -> str:
    """Return a digest of the sources that are compiled.

    numba detects changes in a function's own file only, and would reuse old versions of functions
    inlined from other files.
    """
    found = hashlib.sha256()
    for path in sorted(_PACKAGE.glob(_SOURCES)):
        found.update(path.read_bytes())
    return found.hexdigest()[:_DIGEST_LETTERS]


def folder_for_compiled(chosen: Path | None, own: Path) -> Path | None:
    """Return the user's folder for compiled code, or None if there is none.

    Args:
        chosen: the preferred folder. If it belongs to an image on a read-only file system, it is
            copied to `own`, because numba needs a writable folder. Code for another kind of
            processor is compiled again.
        own: the folder to use otherwise.
    """
    if chosen is not None:
        if _is_ours(chosen):
            return chosen
        if not own.exists():
            with suppress(OSError):
                _copy(chosen, own)
    return own if _is_ours(own) else None


def _is_ours(folder: Path) -> bool:
    """Create a folder if it is missing, and return whether this user owns and can write it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError:
        return False
    return owner == os.geteuid() and os.access(folder, os.W_OK | os.X_OK)


def _copy(given: Path, own: Path) -> None:
    """Copy an image's compiled code, unless other users could have changed it."""
    found = given.stat()
    if found.st_uid not in (_ROOT, os.geteuid()) or found.st_mode & _OTHERS_MAY_WRITE:
        return
    own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=own.parent) as part:
        # Another process may do this first, with the same result.
        shutil.copytree(given, Path(part) / own.name).rename(own)


def _prepare_cache() -> bool:
    """Set up the cache and return whether compiled code can be kept."""
    given, sources = os.environ.get("NUMBA_CACHE_DIR"), _sources()
    try:
        own = cache_folder() / "compiled" / sources
    except SettingsError:
        # An account without a home folder compiles at every start.
        return False
    folder = folder_for_compiled(Path(given) / sources if given else None, own)
    if folder is None:
        return False
    # numba reads this when a function is declared, and its stubs do not list it.
    setattr(numba.config, "CACHE_DIR", str(folder))  # noqa: B010
    return True


COMPILED: dict[str, Any] = {
    "nogil": True,
    "cache": _prepare_cache(),
}
