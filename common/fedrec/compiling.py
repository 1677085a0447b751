"""How functions are compiled: without the interpreter's lock, and kept for the next start.

Importing this imports numba, so only compiled code does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numba

from fedrec.data.fetching import cache_folder

__all__ = ["COMPILED"]


def _prepare_cache() -> bool:
    """Return whether compiled code can be kept for the next start, in the user's own cache."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return True
    try:
        folder = cache_folder() / "compiled"
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
