"""Parts of streams by protobuf alone: the plain twin of `fedrec.wire.chunks`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedrec.wire.chunks import chunks


def split(data: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, piece) of the bytes from `start` on."""
    for chunk in chunks(data, start):
        yield chunk.offset, bytes(chunk.data)


def part_of(kind: Any, offset: int, data: bytes) -> Any:
    """Return a part that holds a chunk."""
    part = kind()
    part.chunk.offset = offset
    part.chunk.data = data
    return part
