"""Giving memory back: what glibc does with what is freed. Without glibc nothing is done."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LONG_BYTES = 1 << 20
_ARENAS = 1
"""Of two, each kept what uploads of the busiest moment took."""


def give_memory_back() -> None:
    """Have every byte string of 1 MiB or more returned to the system when it is freed.

    By default glibc keeps what was freed in an arena of each thread, and after the first long array
    that is freed it does so for arrays up to 32 MiB: with updates of 18.6 MB a third of the
    coordinator's resident memory was of that kind.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LONG_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


def give_back_freed() -> None:
    """Return the free pages between what is in use.

    What gRPC buffers of uploads lies in short strings, which glibc keeps once they are freed.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., object] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
