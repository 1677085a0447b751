"""How functions are compiled: without the interpreter's lock, and kept for the next start.

Importing this imports numba, so only compiled code does.
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

_PACKAGE = Path(__file__).parent
_SOURCES = "algorithms/accelerators/*.py"
"""What is compiled into functions of other files, too."""
_DIGEST_LETTERS = 16
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


def _sources() -> str:
    """Return a name for what is compiled.

    numba looks for changes in a function's own file only, and would go on with what others had
    compiled into it.
    """
    found = hashlib.sha256()
    for path in sorted(_PACKAGE.glob(_SOURCES)):
        found.update(path.read_bytes())
    return found.hexdigest()[:_DIGEST_LETTERS]


def folder_for_compiled(chosen: Path | None, own: Path) -> Path | None:
    """Return a folder of the user's in which compiled code is kept; None where there is none.

    Args:
        chosen: where it shall be. What came with an image, on a file system that is read-only, is
            copied to `own`: numba uses no folder that it cannot write to, and what was compiled
            for another kind of processor is compiled again.
        own: where it is otherwise.
    """
    if chosen is not None:
        if _is_ours(chosen):
            return chosen
        if not own.exists():
            with suppress(OSError):
                _copy(chosen, own)
    return own if _is_ours(own) else None


def _is_ours(folder: Path) -> bool:
    """Tell whether a folder is this user's and can be written to; make it where it is missing."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError:
        return False
    return owner == os.geteuid() and os.access(folder, os.W_OK | os.X_OK)


def _copy(given: Path, own: Path) -> None:
    """Copy what an image brought, unless others could have changed it: it is code."""
    found = given.stat()
    if found.st_uid not in (_ROOT, os.geteuid()) or found.st_mode & _OTHERS_MAY_WRITE:
        return
    own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=own.parent) as part:
        # Another process that does this at the same time may be first; its copy is the same.
        shutil.copytree(given, Path(part) / own.name).rename(own)


def _prepare_cache() -> bool:
    """Return whether compiled code can be kept for the next start."""
    given, sources = os.environ.get("NUMBA_CACHE_DIR"), _sources()
    try:
        own = cache_folder() / "compiled" / sources
    except RuntimeError:
        # A homeless account: compile at every start.
        return False
    folder = folder_for_compiled(Path(given) / sources if given else None, own)
    if folder is None:
        return False
    # Read by numba when a function is declared; numba's stubs do not list it.
    setattr(numba.config, "CACHE_DIR", str(folder))  # noqa: B010
    return True


COMPILED: dict[str, Any] = {
    "nogil": True,
    "cache": _prepare_cache(),
}
