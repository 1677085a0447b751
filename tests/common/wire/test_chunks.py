"""Chunks: what is not exactly what was announced is refused before it is kept."""

from __future__ import annotations

import pytest
from reference.plain_parts import split

from fedrec.errors import CorruptUpload, TooLarge
from fedrec.wire.chunks import CHUNK_BYTES, Assembler, Blob

DATA = bytes(range(256)) * 10_000  # 2.56 MB: three chunks


def assembler(data: bytes = DATA, **changes: object) -> Assembler:
    blob = Blob.of(data)
    arguments: dict[str, object] = {"max_bytes": len(data), **changes}
    return Assembler(blob.length, blob.digest, **arguments)  # type: ignore[arg-type]  # by name


def test_pieces_have_at_most_one_mebibyte_and_join_again():
    pieces = list(split(DATA))
    assert [offset for offset, _ in pieces] == [0, CHUNK_BYTES, 2 * CHUNK_BYTES]
    assert [len(piece) for _, piece in pieces] == [CHUNK_BYTES, CHUNK_BYTES, 462_848]
    whole = assembler()
    for offset, piece in pieces:
        assert not whole.complete
        whole.add(offset, piece)
    assert whole.complete and whole.finish() == DATA


@pytest.mark.parametrize("length", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_lengths_around_a_chunk(length):
    data = bytes(length)
    whole = assembler(data)
    for offset, piece in split(data):
        whole.add(offset, piece)
    assert whole.finish() == data
    assert list(split(data, length)) == []


@pytest.mark.parametrize("start", [1, CHUNK_BYTES, CHUNK_BYTES + 5, len(DATA)])
def test_an_assembly_goes_on_where_it_broke_off(start):
    kept, spooled = (
        assembler(start=start, prefix=[DATA[:1], DATA[1:start]]),
        bytearray(DATA[:start]),
    )
    sunk = assembler(start=start, prefix=[DATA[:start]], sink=spooled.extend)
    for offset, piece in split(DATA, start):
        kept.add(offset, piece)
        sunk.add(offset, piece)
    assert kept.finish() == DATA
    assert sunk.finish() == b"" and spooled == DATA


def test_too_much_is_refused_when_announced():
    with pytest.raises(TooLarge):
        assembler(max_bytes=len(DATA) - 1)


@pytest.mark.parametrize(
    ("offset", "data", "error"),
    [
        (0, bytes(CHUNK_BYTES + 1), TooLarge),
        (0, b"", CorruptUpload),
        (1, b"gap", CorruptUpload),
        (0, bytes(11), CorruptUpload),
    ],
    ids=["long chunk", "empty chunk", "gap", "beyond the end"],
)
def test_a_bad_chunk_reaches_no_sink(offset, data, error):
    sunk: list[bytes] = []
    whole = assembler(b"0123456789", sink=sunk.append)
    with pytest.raises(error):
        whole.add(offset, data)
    assert sunk == [] and whole.offset == 0


def test_a_repeated_chunk_is_refused():
    whole = assembler(b"0123456789")
    whole.add(0, b"01234")
    with pytest.raises(CorruptUpload, match="begins at 0, expected 5"):
        whole.add(0, b"01234")


def test_missing_bytes_and_a_wrong_digest_are_refused():
    whole = assembler(b"0123456789")
    with pytest.raises(CorruptUpload, match="0 of 10"):
        whole.finish()
    whole.add(0, b"012345678x")
    with pytest.raises(CorruptUpload, match="announced digest"):
        whole.finish()


def test_a_prefix_that_does_not_fit_is_refused():
    with pytest.raises(CorruptUpload, match="expected 6"):
        assembler(b"0123456789", start=6, prefix=[b"01234"])
    with pytest.raises(CorruptUpload):
        assembler(b"0123456789", start=11, prefix=[b"0123456789x"])


def test_the_digest_is_blake3():
    # The first vector of BLAKE3's published test vectors, and b3sum's answer for "abc".
    empty, abc = (
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
    )
    assert (Blob.of(b"").digest.hex(), Blob.of(b"abc").digest.hex()) == (empty, abc)
    assert Blob(length=3, digest=bytes.fromhex(abc)).describes(b"abc")
    assert not Blob(length=3, digest=bytes.fromhex(abc)).describes(b"abd")
    assert not Blob(length=4, digest=bytes.fromhex(abc)).describes(b"abc")
