"""A stored file that several streams read at once, piece by piece: it is never whole in memory."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path

from fedrec.wire.chunks import CHUNK_BYTES, Chunk

__all__ = ["OpenFile"]


class OpenFile:
    """A file that can be read until nobody holds it any more, also where it is deleted meanwhile.

    Args:
        length: of the file, in bytes.

    Raises:
        FileNotFoundError: it is missing.
    """

    def __init__(self, path: Path, length: int) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._length = length

    def offsets(self) -> Iterator[int]:
        """Yield where each piece begins."""
        yield from range(0, self._length, CHUNK_BYTES)

    def chunk(self, offset: int) -> Chunk:
        """Return the piece that begins at an offset."""
        return Chunk(offset=offset, data=os.pread(self._file, CHUNK_BYTES, offset))
