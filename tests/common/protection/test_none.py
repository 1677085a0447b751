"""The bounds that only a sum without protection can check early."""

import numpy as np
import pytest
from conformance.protection_suite import SPEC, extreme, make_party

from fedrec.errors import MalformedUpdate
from fedrec.protection import NoProtection, none


@pytest.fixture(params=[8, 1000, 1 << 20])
def party(request, monkeypatch):
    """Messages are added in pieces of one long value or a few, and as a whole."""
    monkeypatch.setattr(none, "_PIECE_BYTES", request.param)
    return make_party(NoProtection, "default")


def test_values_take_four_bytes_where_the_sum_fits(party):
    assert party.protection.chosen.message_bytes == 44 + 4 * (4200 + 60) + 8 * (40 + 3)


def test_a_sum_that_leaves_its_bound_is_refused_at_once(party):
    accumulator = party.protection.accumulator(party.context)
    message = party.member.protect(extreme(SPEC, 1))
    accumulator.add(message)
    with pytest.raises(MalformedUpdate):
        accumulator.add(message)
    accumulator.add(party.member.protect(np.zeros(SPEC.length, dtype=np.int64)))
    assert accumulator.count == 2


def test_a_file_is_added_as_its_bytes_are(party, tmp_path):
    accumulator = party.protection.accumulator(party.context)
    vectors = np.random.default_rng(0).integers(0, 100, (2, SPEC.length))
    for vector in vectors:
        message = party.member.protect(vector)
        (tmp_path / "message").write_bytes(message)
        with (tmp_path / "message").open("rb", buffering=0) as file:
            accumulator.add_from(file)
    (tmp_path / "message").write_bytes(message[:-1])
    with (tmp_path / "message").open("rb") as file, pytest.raises(MalformedUpdate, match="bytes"):
        accumulator.add_from(file)
    revealed = party.member.reveal(accumulator.finish(), 2)
    np.testing.assert_array_equal(revealed, vectors.sum(axis=0))


def test_extremes_of_different_slots_are_no_extreme_of_the_sum(party):
    accumulator = party.protection.accumulator(party.context)
    vectors = np.zeros((3, SPEC.length), dtype=np.int64)
    for row, vector in enumerate(vectors):
        starts = np.cumsum([0, *(segment.length for segment in SPEC.segments[:-1])])
        vector[starts + row] = [segment.max_abs_sum for segment in SPEC.segments]
        accumulator.add(party.member.protect(vector))
    with pytest.raises(MalformedUpdate):
        accumulator.add(party.member.protect(vectors[1]))
    revealed = party.member.reveal(accumulator.finish(), 3)
    np.testing.assert_array_equal(revealed, vectors.sum(axis=0))
