"""Chunks read and written by hand are what protobuf reads and writes."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from reference.plain_parts import part_of

from fedrec.wire.chunks import CHUNK_BYTES, ByteChunk, chunk_to_part, part_reader
from fedrec.wire.v1 import admin_pb2, model_pb2, update_pb2

KINDS = (update_pb2.UploadPart, model_pb2.RevealPart, model_pb2.ReportPart, admin_pb2.EpochPart)
UPDATE = update_pb2.UploadPart


@pytest.mark.parametrize("kind", KINDS)
@given(offset=st.integers(0, 2**56 - 1), data=st.binary(max_size=400))
def test_a_chunk_goes_there_and_back(kind, offset, data):
    raw = chunk_to_part(kind, ByteChunk(offset=offset, data=memoryview(data)))
    assert raw == part_of(kind, offset, data).SerializeToString() or not data
    assert kind.FromString(raw) == part_of(kind, offset, data)
    found = part_reader(kind)(raw)
    assert found == ByteChunk(offset=offset, data=data)


@pytest.mark.parametrize("length", [127, 128, 16_383, 16_384, CHUNK_BYTES])
def test_lengths_at_which_the_form_changes(length):
    data = bytes(length)
    raw = chunk_to_part(update_pb2.UploadPart, ByteChunk(offset=length, data=data))
    assert raw == part_of(update_pb2.UploadPart, length, data).SerializeToString()
    assert part_reader(UPDATE)(raw) == ByteChunk(offset=length, data=data)


def test_a_chunk_is_not_copied():
    raw = chunk_to_part(update_pb2.UploadPart, ByteChunk(offset=5, data=b"data"))
    found = part_reader(UPDATE)(raw)
    assert isinstance(found.data, memoryview) and found.data.obj is raw


fields = st.binary(max_size=3) | st.sampled_from(
    [b"\x12", b"\x0a", b"\x08\x05", b"\x08\x80\x00", b"\x12\x02hi", b"\x12\x00", b"\x1a\x01x",
     b"\x08" + b"\xff" * 9 + b"\x01", b"\x12\x04\x12\x02hi", b"\x12\x04\x08\x05\x12\x00"]
)  # fmt: skip


@given(st.lists(fields, max_size=6).map(b"".join), st.booleans())
def test_whatever_arrives_is_read_as_protobuf_reads_it(raw, framed):
    raw = bytes((0x12, len(raw))) + raw if framed else raw
    try:
        wanted = update_pb2.UploadPart.FromString(raw)
    except DecodeError:
        with pytest.raises(DecodeError):
            part_reader(UPDATE)(raw)
        return
    found = part_reader(UPDATE)(raw)
    if wanted.WhichOneof("part") == "chunk":
        assert found == ByteChunk(offset=wanted.chunk.offset, data=wanted.chunk.data)
    else:
        assert found == wanted


def test_fields_in_another_order_are_left_to_protobuf():
    inner = b"\x12\x02hi\x08\x05"
    raw = bytes((0x12, len(inner))) + inner
    assert part_reader(UPDATE)(raw) == ByteChunk(offset=5, data=b"hi")
