"""Looking for many short secrets in gigabytes, which are read once for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = 4096
PAIRS_AT_ONCE = 1 << 24


def found_in(content: bytes, secrets: Mapping[str, Sequence[bytes]]) -> list[str]:
    """Return the names of the secrets of which a piece is somewhere in the content.

    Args:
        secrets: pieces of at least 4 bytes, by their secret's name.
    """
    wanted: dict[bytes, list[tuple[int, bytes, str]]] = {}
    for name, pieces in secrets.items():
        for piece in pieces:
            at = _most_varied(piece)
            wanted.setdefault(piece[at : at + 4], []).append((at, piece, name))
    found = {
        name
        for place in _places(content, list(wanted))
        for at, piece, name in wanted.get(content[place : place + 4], ())
        if place >= at and content.startswith(piece, place - at)
    }
    return [name for name in secrets if name in found]


def without_empty_pages(memory: bytes) -> bytes:
    """Return memory without the pages that are zeros alone, most of which were never touched."""
    whole = len(memory) - len(memory) % PAGE_BYTES
    pages = np.frombuffer(memory, "<u8", count=whole // 8).reshape(-1, PAGE_BYTES // 8)
    return pages[pages.any(axis=1)].tobytes() + memory[whole:]


def _most_varied(piece: bytes) -> int:
    """Return where four bytes of a piece differ most: much of memory is one byte repeated."""
    return max(range(len(piece) - 3), key=lambda at: len(set(piece[at : at + 4])))


def _places(content: bytes, fours: Sequence[bytes]) -> Iterator[int]:
    """Yield where both halves of four bytes are those of some that are wanted, and a few more."""
    first, second = (np.zeros(1 << 16, dtype=np.bool_) for _ in range(2))
    for four in fours:
        first[int.from_bytes(four[:2], "little")] = True
        second[int.from_bytes(four[2:], "little")] = True
    for odd in (0, 1):
        n_pairs = (len(content) - odd) // 2
        if n_pairs < 2:
            continue
        pairs: NDArray[np.uint16] = np.frombuffer(content, "<u2", count=n_pairs, offset=odd)
        for start in range(0, n_pairs - 1, PAIRS_AT_ONCE):
            stop = min(start + PAIRS_AT_ONCE, n_pairs - 1)
            hits = start + np.nonzero(first[pairs[start:stop]])[0]
            yield from (2 * hits[second[pairs[hits + 1]]] + odd).tolist()
