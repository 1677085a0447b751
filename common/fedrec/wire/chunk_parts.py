"""Parts of incoming and outgoing streams that hold a chunk, read and written without copies.

Nearly all bytes of an upload lie in chunks. The message types copy each one twice on either side;
here a chunk is a view of what arrived, and is copied once into what leaves. Only the form in which
every encoder writes a part is read by hand; any other is left to protobuf, as are all other parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedrec.wire.chunks import ByteChunk
from fedrec.wire.v1 import admin_pb2, model_pb2, update_pb2

Message = Any
"""Generated messages are untyped."""

_STREAMS: dict[str, type[Message]] = {
    "/fedrec.wire.v1.Coordinator/SubmitUpdate": update_pb2.UploadPart,
    "/fedrec.wire.v1.Coordinator/SubmitReveal": model_pb2.RevealPart,
    "/fedrec.wire.v1.Coordinator/SubmitSnapshot": model_pb2.ReportPart,
    "/fedrec.wire.v1.Admin/InstallEpoch": admin_pb2.EpochPart,
}
_BYTES = 2
"""The wire type of fields that begin with their length; that of numbers is 0."""
_OFFSET, _DATA = 1 << 3, 2 << 3 | _BYTES
_VARINT_BYTES = 8
"""More than any length or offset takes that is allowed; longer ones are left to protobuf."""


def part_reader(method: str) -> Callable[[bytes], Message | ByteChunk]:
    """Return what reads the parts of a method's incoming stream: a chunk, or another message."""
    kind = _STREAMS[method]
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
    """Return the coordinator's method that takes a stream of parts, given as their bytes."""
    return channel.stream_unary(
        f"/fedrec.wire.v1.Coordinator/{name}", response_deserializer=answer.FromString
    )


def chunk_to_part(kind: type[Message], chunk: ByteChunk) -> bytes:
    """Return the bytes of a part that holds a chunk.

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
    """Return the chunk of a part that is nothing but one; None where that is not plain to see."""
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
    """Return a number and where it ends; one behind the end where there is none or a long one."""
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
