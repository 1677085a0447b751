"""Long byte strings in pieces of at most 1 MiB, put together again under suspicion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from blake3 import blake3

from fedrec.errors import CorruptUpload, TooLarge
from fedrec.wire.fields import Digest, Number

CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Announces the length and the digest of the chunks that follow.

    The digest is BLAKE3 with 32 bytes: SHA-256, where a processor has no instructions for it, took
    longer than sending, writing and adding up together.
    """

    length: Number
    digest: Digest

    @classmethod
    def of(cls, data: bytes) -> Blob:
        """Describe bytes."""
        return cls(length=len(data), digest=blake3(data).digest())

    def describes(self, data: bytes) -> bool:
        """Tell whether these are the bytes."""
        return len(data) == self.length and blake3(data).digest() == self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteChunk:
    """A piece of a stream of bytes; `data` may be a view of the message that brought it."""

    offset: int
    data: bytes | memoryview


def chunks(data: bytes, start: int = 0) -> Iterator[ByteChunk]:
    """Yield the bytes from `start` on in pieces that are views of them."""
    view = memoryview(data)
    for offset in range(start, len(data), CHUNK_BYTES):
        yield ByteChunk(offset=offset, data=view[offset : offset + CHUNK_BYTES])


class Assembler:
    """Puts chunks together and checks each one before it is kept.

    Memory grows with what arrived, never with what was announced.

    Args:
        length: announced number of bytes.
        digest: announced digest.
        max_bytes: most bytes that are accepted here.
        start: bytes that an earlier try left.
        prefix: those bytes, in pieces, for the digest.
        sink: takes each accepted piece, such as a file's `write`; it already holds the prefix.
            Without a sink the bytes are kept in memory.

    Raises:
        TooLarge: when more than `max_bytes` are announced.
        CorruptUpload: when the prefix does not have `start` bytes or is longer than announced.
    """

    def __init__(
        self,
        length: int,
        digest: bytes,
        *,
        max_bytes: int,
        start: int = 0,
        prefix: Iterable[bytes] = (),
        sink: Callable[[bytes | memoryview], object] | None = None,
    ) -> None:
        if length > max_bytes:
            raise TooLarge(f"{length} bytes are announced, at most {max_bytes} are allowed.")
        self._length = length
        self._digest = digest
        self._hash = blake3()
        self._pieces: list[bytes | memoryview] = []
        self._sink = sink
        self._offset = 0
        for piece in prefix:
            self._hash.update(piece)
            self._offset += len(piece)
            if sink is None:
                self._pieces.append(piece)
        if self._offset != start or start > length:
            raise CorruptUpload(
                f"{self._offset} of {length} bytes are here, expected {start} from an earlier try."
            )

    @property
    def offset(self) -> int:
        """How many bytes are here; the offset that the next chunk must have."""
        return self._offset

    @property
    def complete(self) -> bool:
        """Whether all announced bytes are here."""
        return self._offset == self._length

    def add(self, offset: int, data: bytes | memoryview) -> None:
        """Take the next chunk.

        Raises:
            TooLarge: when it has more than 1 MiB.
            CorruptUpload: when it is empty, out of order, or goes beyond the announced length.
        """
        if len(data) > CHUNK_BYTES:
            raise TooLarge(f"A chunk has {len(data)} bytes, at most {CHUNK_BYTES} are allowed.")
        if not data:
            raise CorruptUpload(f"The chunk at {offset} is empty.")
        if offset != self._offset:
            raise CorruptUpload(f"A chunk begins at {offset}, expected {self._offset}.")
        if offset + len(data) > self._length:
            raise CorruptUpload(
                f"A chunk ends at {offset + len(data)}, beyond the announced {self._length} bytes."
            )
        if self._sink is None:
            self._pieces.append(data)
        else:
            self._sink(data)
        self._hash.update(data)
        self._offset += len(data)

    def finish(self) -> bytes:
        """Check that everything arrived and is what was announced.

        Returns:
            The bytes; empty when they went to a sink.

        Raises:
            CorruptUpload: when bytes are missing or the digest differs.
        """
        if not self.complete:
            raise CorruptUpload(f"{self._offset} of {self._length} bytes arrived.")
        if self._hash.digest() != self._digest:
            raise CorruptUpload("The bytes do not have the announced digest.")
        return b"".join(self._pieces)
