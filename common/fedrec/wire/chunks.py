"""Split long byte strings into pieces of at most 1 MiB, and reassemble and check them.

Nearly all bytes of an upload are in chunks. The generated message types copy each chunk twice on
either side. Here a chunk is a view of the received bytes, and is copied once when it is sent. Only
the form that every encoder uses for a part is parsed by hand. Any other form, and all other parts,
are left to protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from fedrec.errors import CorruptUpload, TooLarge
from fedrec.wire.fields import Digest, Number

CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """The length and the digest of the chunks that follow.

    The digest is BLAKE3 with 32 bytes. On CPUs without SHA-256 instructions, SHA-256 took
    longer than sending, writing and adding up together.
    """

    length: Number
    digest: Digest

    @classmethod
    def of(cls, data: bytes) -> Blob:
        """Describe bytes."""
        return cls(length=len(data), digest=blake3(data).digest())

    def describes(self, data: bytes) -> bool:
        """Return whether these are the announced bytes."""
        return len(data) == self.length and blake3(data).digest() == self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteChunk:
    """A piece of a stream of bytes. `data` may be a view of the message that carried it."""

    offset: int
    data: bytes | memoryview


def chunks(data: bytes, start: int = 0) -> Iterator[ByteChunk]:
    """Yield the bytes from `start` on, in pieces that are views of them."""
    view = memoryview(data)
    for offset in range(start, len(data), CHUNK_BYTES):
        yield ByteChunk(offset=offset, data=view[offset : offset + CHUNK_BYTES])


class Assembler:
    """Reassembles chunks and checks each one before it is kept.

    Memory grows with the received bytes, never with the announced ones.

    Args:
        length: the announced number of bytes.
        digest: the announced digest.
        max_bytes: the maximum that is accepted here.
        start: the number of bytes from an earlier attempt.
        prefix: the bytes from that attempt, in pieces, for the digest.
        sink: called with each accepted piece, such as a file's `write`. It already has the prefix.
            Without a sink the bytes are kept in memory.

    Raises:
        TooLarge: more than `max_bytes` are announced.
        CorruptUpload: the prefix does not have `start` bytes or is longer than announced.
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
            raise TooLarge(f"{length} bytes are announced, but at most {max_bytes} are allowed.")
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
        """Return the number of received bytes, which is the next chunk's offset."""
        return self._offset

    @property
    def complete(self) -> bool:
        """Return whether all announced bytes have arrived."""
        return self._offset == self._length

    def add(self, offset: int, data: bytes | memoryview) -> None:
        """Accept the next chunk.

        Raises:
            TooLarge: the chunk has more than 1 MiB.
            CorruptUpload: the chunk is empty, out of order, or goes beyond the announced length.
        """
        if len(data) > CHUNK_BYTES:
            raise TooLarge(f"A chunk has {len(data)} bytes, but at most {CHUNK_BYTES} are allowed.")
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
        """Check that all bytes arrived and have the announced digest.

        Returns:
            The bytes, or empty if they went to a sink.

        Raises:
            CorruptUpload: bytes are missing or the digest differs.
        """
        if self._offset != self._length:
            raise CorruptUpload(f"{self._offset} of {self._length} bytes arrived.")
        if self._hash.digest() != self._digest:
            raise CorruptUpload("The bytes do not have the announced digest.")
        return b"".join(self._pieces)


Message = Any
"""Generated messages are untyped."""

_BYTES = 2
"""The wire type of length-delimited fields. That of numbers is 0."""
_OFFSET, _DATA = 1 << 3, 2 << 3 | _BYTES
_VARINT_BYTES = 8
"""More bytes than any allowed length or offset takes. Longer ones are left to protobuf."""


def part_reader(kind: type[Message]) -> Callable[[bytes], Message | ByteChunk]:
    """Return a reader for the parts of a stream: a chunk, or another message of this kind."""
    tag = kind.DESCRIPTOR.fields_by_name["chunk"].number << 3 | _BYTES

    def read(raw: bytes) -> Message | ByteChunk:
        found = _chunk_of(raw, tag)
        if found is not None:
            return found
        part = kind.FromString(raw)
        if part.WhichOneof("part") == "chunk":
            return ByteChunk(offset=part.chunk.offset, data=part.chunk.data)
        return part

    return read


def part_stream(channel: Message, name: str, answer: type[Message]) -> Message:
    """Return the coordinator's method that receives a stream of parts, given as bytes."""
    return channel.stream_unary(
        f"/fedrec.wire.v1.Coordinator/{name}", response_deserializer=answer.FromString
    )


def chunk_to_part(kind: type[Message], chunk: ByteChunk) -> bytes:
    """Return the bytes of a part with a chunk.

    Args:
        kind: a message with a field `chunk`.
    """
    inner = bytearray()
    if chunk.offset:
        inner.append(_OFFSET)
        inner += _varint(chunk.offset)
    inner.append(_DATA)
    inner += _varint(len(chunk.data))
    outer = bytearray((kind.DESCRIPTOR.fields_by_name["chunk"].number << 3 | _BYTES,))
    outer += _varint(len(inner) + len(chunk.data))
    return b"".join((outer, inner, chunk.data))


def _chunk_of(raw: bytes, tag: int) -> ByteChunk | None:
    """Return the chunk of a part that consists of one, or None if that is not obvious."""
    if not raw or raw[0] != tag:
        return None
    length, at = _number(raw, 1)
    if at + length != len(raw):
        return None
    offset = 0
    if raw[at : at + 1] == bytes((_OFFSET,)):
        offset, at = _number(raw, at + 1)
    if raw[at : at + 1] != bytes((_DATA,)):
        return None
    length, at = _number(raw, at + 1)
    if at + length != len(raw):
        return None
    return ByteChunk(offset=offset, data=memoryview(raw)[at:])


def _number(raw: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it.

    If it is missing or too long, that is beyond the end.
    """
    found = 0
    for place, byte in enumerate(raw[at : at + _VARINT_BYTES]):
        found |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return found, at + place + 1
    return 0, len(raw) + 1


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
