"""How functions are compiled: without the interpreter's lock, and kept for the next start.

Importing this imports numba, so only compiled code does.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numba

from fedrec.data.fetching import cache_folder

__all__ = ["COMPILED"]


_PACKAGE = Path(__file__).parent
_SOURCES = "algorithms/accelerators/*.py"
"""What is compiled into functions of other files, too."""
_DIGEST_LETTERS = 16


def _sources() -> str:
    """Return a name for what is compiled.

    numba looks for changes in a function's own file only, and would go on with what others had
    compiled into it.
    """
    found = hashlib.sha256()
    for path in sorted(_PACKAGE.glob(_SOURCES)):
        found.update(path.read_bytes())
    return found.hexdigest()[:_DIGEST_LETTERS]


def _prepare_cache() -> bool:
    """Return whether compiled code can be kept for the next start, in the user's own cache."""
    try:
        chosen = os.environ.get("NUMBA_CACHE_DIR")
        folder = (Path(chosen) if chosen else cache_folder() / "compiled") / _sources()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        # A read-only or homeless account: compile at every start.
        return False
    if not os.access(folder, os.W_OK | os.X_OK) or Path(folder).stat().st_uid != os.geteuid():
        return False
    # Read by numba when a function is declared; numba's stubs do not list it.
    setattr(numba.config, "CACHE_DIR", str(folder))  # noqa: B010
    return True


COMPILED: dict[str, Any] = {
    "nogil": True,
    "cache": _prepare_cache(),
}
