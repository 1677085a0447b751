"""Named places around every write, fsync, rename, commit and acknowledgement.

Tests pass a hook that kills the process or raises at one of them; in production the hook does
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

Failpoint = Callable[[str], None]


def no_failpoint(name: str) -> None:
    """Do nothing."""
