"""Attempts to read blobs: what hides nothing is read, random bytes are not."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.protection import PROTECTIONS, SegmentSpec, VectorSpec
from fedrec_lab.audit.wire.reading import BlobTally, PlainReader, byte_entropy, longest_zero_run

SPEC = VectorSpec(
    segments=(
        SegmentSpec(name="items", length=2000, max_abs_sum=2**30),
        SegmentSpec(name="counts", length=50, max_abs_sum=64, signed=False),
    ),
    max_summands=5,
)
RANDOM = np.random.default_rng(5)


def vector() -> np.ndarray:  # type: ignore[type-arg]
    made = RANDOM.integers(-(2**20), 2**20, SPEC.length)
    made[-50:] = RANDOM.integers(0, 12, 50)
    return made.astype(np.int64)


def message(values: np.ndarray, protection: str) -> bytes:  # type: ignore[type-arg]
    kind = PROTECTIONS[protection]
    made = kind(SPEC, kind.plan(SPEC))
    context, secret = made.generate()
    return made.member(context, secret).protect(values)


def test_an_unprotected_vector_is_read_to_the_last_value():
    values, tally = vector(), BlobTally()
    blob = message(values, "none")
    reader = PlainReader(SPEC)
    found = reader.vector(blob)
    assert found is not None
    assert np.array_equal(found, values)
    # The bare integers, too: an envelope is not what makes it readable.
    assert np.array_equal(reader.vector(values.astype("<i4").tobytes()), values)  # type: ignore[arg-type]
    tally.add(blob, "a", reader)
    assert (tally.readable, tally.values) == (1, SPEC.length)
    assert tally.not_zero == np.count_nonzero(values)


@pytest.mark.slow
@pytest.mark.parametrize(
    "protection",
    [name for name, kind in PROTECTIONS.items() if kind.needs_reveal],
)
def test_protected_messages_are_not_read_and_look_random(protection):
    tally, reader = BlobTally(), PlainReader(SPEC)
    same = vector()
    for client in "abc":
        tally.add(message(same, protection), client, reader, sent=True)
    assert (tally.readable, tally.signs, tally.copies) == (0, {}, 0)
    assert tally.shared_words < 0.01
    assert tally.entropy is not None
    assert tally.entropy > 7.99


def test_random_bytes_of_the_right_length_are_no_vector():
    assert PlainReader(SPEC).vector(RANDOM.bytes(4 * SPEC.length)) is None


def test_signs_of_structure_are_told():
    reader = PlainReader(SPEC)
    zeros = BlobTally().add(RANDOM.bytes(5000) + bytes(16) + RANDOM.bytes(5000), "a", reader)
    assert zeros.signs == ("it has runs of zeros",)
    text = BlobTally().add(b"user 17 liked item 3; " * 400, "a", reader)
    assert text.signs == ("its bytes are not uniform", "it can be compressed")
    assert BlobTally().add(RANDOM.bytes(8192), "a", reader).signs == ()


def test_equal_bytes_of_two_clients_are_told():
    tally, reader = BlobTally(), PlainReader(SPEC)
    first = RANDOM.bytes(8000)
    tally.add(first, "a", reader, sent=True)
    tally.add(first, "a", reader, sent=True)
    assert (tally.copies, tally.shared_words) == (0, 0.0)
    tally.add(first, "b", reader, sent=True)
    assert tally.copies == 1
    # A quarter of the words in their places; a column of touched rows would look so.
    tally.add(first[:2000] + RANDOM.bytes(6000), "c", reader, sent=True)
    assert tally.shared_words == pytest.approx(0.25)


def test_bytes_that_many_are_handed_count_once():
    """A kilobyte of random bytes looks uneven by its own counts, however often it is seen."""
    tally, reader = BlobTally(), PlainReader(SPEC)
    few = RANDOM.bytes(1000)
    for client in "abcdefgh" * 4:
        tally.add(few, client, reader)
    assert tally.blobs == 32
    assert tally.entropy is None
    for client in "abcd":
        tally.add(RANDOM.bytes(1000), client, reader)
    assert tally.entropy is not None
    assert tally.entropy > 7.9


def test_the_entropy_of_bytes():
    assert byte_entropy(np.full(256, 1000, dtype=np.int64)) == 8.0
    one = np.zeros(256, dtype=np.int64)
    one[7] = 5000
    assert byte_entropy(one) == 0.0
    two = one.copy()
    two[9] = 5000
    assert byte_entropy(two) == pytest.approx(1.0, abs=1e-3)
    assert byte_entropy(np.ones(256, dtype=np.int64)) is None


@pytest.mark.parametrize(
    ("body", "run"),
    [(b"", 0), (b"\1\2", 0), (b"\0\0\1", 2), (b"\1\0\0\0", 3), (bytes(5), 5), (b"\1\0\2\0\0\3", 2)],
)
def test_the_longest_run_of_zeros(body, run):
    assert longest_zero_run(body) == run
