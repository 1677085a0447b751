"""Sets of participants as bits, so that equal sets are equal bytes."""

from __future__ import annotations

from collections.abc import Iterable

from fedrec.errors import MalformedUpdate

__all__ = ["pack", "unpack"]


def pack(positions: Iterable[int], count: int) -> bytes:
    """Return ceil(count / 8) bytes; bit i of the little-endian number stands for position i."""
    number = 0
    for position in positions:
        number |= 1 << position
    return number.to_bytes(-(-count // 8), "little")


def unpack(packed: bytes, count: int) -> frozenset[int]:
    """Return the set that `pack` wrote.

    Raises:
        MalformedUpdate: for another length, or positions from ``count`` on.
    """
    number = int.from_bytes(packed, "little")
    if len(packed) != -(-count // 8) or number >> count:
        raise MalformedUpdate(f"The bytes are no set of positions below {count}.")
    return frozenset(position for position in range(count) if number >> position & 1)
