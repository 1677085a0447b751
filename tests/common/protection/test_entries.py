"""Entries with their indices in the clear: conformance, the sums, and what hostile peers send."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import phe
import pytest
from conformance.keyed_suite import EncryptedSuite
from conformance.protection_suite import HEADER_BYTES, Party, make_party, summed

from fedrec.errors import (
    KeysError,
    MalformedUpdate,
    PlanMismatch,
    RevealRefused,
    SettingsError,
    WrongTags,
)
from fedrec.protection import Paillier, SegmentSpec, VectorSpec
from fedrec.protection.vector import Integers

pytestmark = pytest.mark.slow

LENGTH, KEPT, FRAME = 40, 5, 512
COUNTS, METRICS = 9, 2
SPEC = VectorSpec(
    segments=(
        SegmentSpec(name="table", length=LENGTH, max_abs_sum=2**27, entries=KEPT),
        SegmentSpec(name="counts", length=COUNTS, max_abs_sum=5000, signed=False),
        SegmentSpec(name="metrics", length=METRICS, max_abs_sum=2**60, signed=False),
    ),
    max_summands=6,
)
# 9 slots of 13 bits and 2 of 61 fit 2048 - 1 - 64 bits.
N_TAIL = 1
MESSAGE_BYTES = HEADER_BYTES + KEPT * (4 + FRAME) + N_TAIL * FRAME
CONTEXT_HEAD = 56


def of(values: dict[int, int], counts: int = 0, metrics: int = 0) -> Integers:
    """Return a vector with these values in its table."""
    vector = np.zeros(LENGTH + COUNTS + METRICS, dtype=np.int64)
    for place, value in values.items():
        vector[place] = value
    vector[LENGTH : LENGTH + COUNTS] = counts
    vector[LENGTH + COUNTS :] = metrics
    return vector


@pytest.fixture(scope="module")
def party():
    return make_party(Paillier, "single-2048", SPEC)


def indices_of(message: bytes, count: int) -> list[int]:
    return np.frombuffer(message[HEADER_BYTES : HEADER_BYTES + 4 * count], dtype="<u4").tolist()


def with_indices(message: bytes, indices: list[int]) -> bytes:
    raw = np.array(indices, dtype="<u4").tobytes()
    return message[:HEADER_BYTES] + raw + message[HEADER_BYTES + len(raw) :]


class TestEveryPlaceEntered(EncryptedSuite):
    """With as many entries as places any vector travels, so that the whole suite applies."""

    kind = Paillier
    preset = "single-2048"
    spec = VectorSpec(
        segments=(
            SegmentSpec(name="items", length=4, max_abs_sum=2**27, entries=4),
            SegmentSpec(name="wide unsigned", length=1, max_abs_sum=2**61, signed=False),
        ),
        max_summands=6,
    )

    def test_every_message_and_sum_has_the_promised_length(self, party, plan):
        vector = np.ones(5, dtype=np.int64)
        message = party.member.protect(vector)
        assert len(message) == plan.message_bytes == HEADER_BYTES + 4 * (4 + FRAME) + FRAME
        assert len(self.total(party, [message, message])) == plan.message_bytes


def test_a_sum_has_the_union_of_indices_and_is_zero_elsewhere(party):
    first = of({3: 7, 8: -2, 20: 1, 21: 5, 39: 9}, counts=1, metrics=11)
    second = of({8: 4, 21: -5, 22: 6, 30: 1, 31: 1}, counts=2, metrics=100)
    total = summed(party, party.member.protect(first), party.member.protect(second))
    # 3, 8, 20, 21, 22, 30, 31, 39: a value that sums to zero is in it all the same.
    assert len(total) == HEADER_BYTES + 8 * (4 + FRAME) + N_TAIL * FRAME
    assert indices_of(total, 8) == [3, 8, 20, 21, 22, 30, 31, 39]
    wanted = of({3: 7, 8: 2, 20: 1, 22: 6, 30: 1, 31: 1, 39: 9}, counts=3, metrics=111)
    assert np.array_equal(party.member.reveal(total, 2), wanted)
    assert np.array_equal(
        party.member.reveal(party.protection.accumulator(party.context).refreshed(total), 2), wanted
    )


def test_missing_values_are_zeros_at_the_lowest_indices_that_are_left(party):
    message = party.member.protect(of({1: 5, 30: -4}))
    assert len(message) == MESSAGE_BYTES == party.protection.chosen.message_bytes
    assert indices_of(message, KEPT) == [0, 1, 2, 3, 30]
    assert np.array_equal(party.member.reveal(summed(party, message), 1), of({1: 5, 30: -4}))


def test_more_values_than_a_message_carries_are_refused(party):
    with pytest.raises(MalformedUpdate, match="more than 5 nonzero values") as caught:
        party.member.protect(of(dict.fromkeys(range(10, 16), 1)))
    assert "update.indices" in caught.value.remedy


@pytest.mark.parametrize(
    "indices",
    [
        [0, 1, 2, 3, 40],
        [0, 1, 2, 3, 2**32 - 1],
        [0, 1, 2, 2, 3],
        [0, 1, 3, 2, 4],
        [4, 3, 2, 1, 0],
    ],
    ids=["behind the end", "far behind", "twice", "out of order", "descending"],
)
def test_indices_that_do_not_ascend_within_the_table_are_refused(party, indices):
    honest = party.member.protect(of({7: 3}))
    total = party.protection.accumulator(party.context)
    total.add(honest)
    before = total.finish()
    with pytest.raises(MalformedUpdate, match="ascend"):
        total.add(with_indices(honest, indices))
    assert total.count == 1 and total.finish() == before
    with pytest.raises(MalformedUpdate, match="ascend"):
        party.member.reveal(with_indices(before, indices), 1)


@pytest.mark.parametrize("more", [-4 - FRAME, -1, 1, 4 + FRAME, 2**20])
def test_messages_of_another_length_are_refused(party, more):
    honest = party.member.protect(of({7: 3}))
    changed = honest[:more] if more < 0 else honest + bytes(more)
    with pytest.raises(MalformedUpdate, match="bytes"):
        party.protection.accumulator(party.context).add(changed)


@pytest.mark.parametrize("number", [0, 1, "n", "n^2"])
def test_an_entry_that_is_no_ciphertext_is_refused(party, number):
    n = int.from_bytes(party.context[CONTEXT_HEAD:], "big")
    value = {"n": n, "n^2": n * n}.get(str(number), number)
    assert isinstance(value, int)
    honest = party.member.protect(of({7: 3}))
    start = HEADER_BYTES + 4 * KEPT
    poisoned = honest[:start] + value.to_bytes(FRAME, "big") + honest[start + FRAME :]
    if number == 1:
        # A ciphertext of zero without a counter: what it sums to is no sum of messages.
        total = summed(party, poisoned)
        with pytest.raises(RevealRefused, match="counter"):
            party.member.reveal(total, 1)
        return
    with pytest.raises(MalformedUpdate):
        party.protection.accumulator(party.context).add(poisoned)


def test_sums_of_impossible_lengths_are_refused(party):
    message = party.member.protect(of({7: 3}))
    total = summed(party, message, message)
    for changed in (total[:-1], total + b"\0", total[: -4 - FRAME], total + bytes(2**20)):
        with pytest.raises(MalformedUpdate):
            party.member.reveal(changed, 2)
    # Two messages have 5 to 10 entries: with 11 a sum is as long as one of three.
    eleven = total + bytes(6 * (4 + FRAME))
    with pytest.raises(MalformedUpdate, match="5 to 10"):
        party.member.reveal(eleven, 2)


def test_a_count_round_of_the_same_federation_packs_its_fixed_places(party):
    spec = replace(SPEC, segments=SPEC.segments[1:])
    protection = party.protection.over(spec)
    member = party.member.over(protection)
    assert protection.chosen.message_bytes == HEADER_BYTES + N_TAIL * FRAME
    vector = np.arange(COUNTS + METRICS, dtype=np.int64)
    total = summed(
        party._replace(protection=protection), *(member.protect(vector) for _ in range(3))
    )
    assert np.array_equal(member.reveal(total, 3), 3 * vector)


def test_a_round_of_fewer_rows_than_planned_keeps_as_many_entries(party):
    shorter = replace(SPEC.segments[0], length=8, entries=KEPT)
    spec = replace(SPEC, segments=(shorter, *SPEC.segments[1:]))
    protection = party.protection.over(spec)
    member = party.member.over(protection)
    vector = np.zeros(8 + COUNTS + METRICS, dtype=np.int64)
    vector[[0, 7]] = 3, -3
    total = protection.accumulator(party.context)
    total.add(member.protect(vector))
    assert np.array_equal(member.reveal(total.finish(), 1), vector)
    for entries in (0, KEPT + 1):
        with pytest.raises(SettingsError):
            party.protection.over(
                replace(SPEC, segments=(replace(shorter, entries=entries), *SPEC.segments[1:]))
            )


def test_packed_ciphertexts_are_refused_with_the_reason():
    with pytest.raises(SettingsError, match="a slot can't move"):
        Paillier.plan(SPEC, preset="packed-3072")


def test_the_plan_says_what_a_message_and_a_sum_have():
    table = SegmentSpec(name="table", length=53_824, max_abs_sum=2**31, entries=841)
    counts = SegmentSpec(name="counts", length=1792, max_abs_sum=1023, signed=False)
    plan = Paillier.plan(
        VectorSpec(segments=(table, counts), max_summands=943), preset="single-3072"
    )
    # 3072 - 1 - 64 = 3007 bits hold 300 slots of 10 bits: 6 blocks for 1792 counts.
    assert plan.n_blocks == 841 + 6
    assert plan.message_bytes == HEADER_BYTES + 841 * (4 + 768) + 6 * 768
    assert plan.message_bytes < 0.75 * 2**20
    assert plan.most_blocks(8) == 8 * 841 + 6
    assert plan.most_blocks(943) == 53_824 + 6
    # A 64th of all places: 53,824 (1 - (63/64)^8) = 6,371.2 of them.
    assert plan.expected_blocks(8) == 6372 + 6
    assert plan.expected_blocks(943) == 53_824 + 6
    assert plan.sum_bytes(plan.expected_blocks(1)) == plan.message_bytes
    other = replace(plan, entries=840)
    assert other.fingerprint() != plan.fingerprint()


def test_a_plan_without_entries_is_of_another_vector(party):
    dense = replace(SPEC, segments=(replace(SPEC.segments[0], entries=0), *SPEC.segments[1:]))
    assert dense.fingerprint() != SPEC.fingerprint()
    with pytest.raises(PlanMismatch):
        Paillier(dense, party.protection.chosen)


@pytest.mark.parametrize("problem", ["too many entries", "two segments", "nothing else"])
def test_vectors_that_cannot_travel_so_are_refused(problem):
    table = SPEC.segments[0]
    with pytest.raises(SettingsError):
        if problem == "too many entries":
            replace(table, entries=LENGTH + 1)
        elif problem == "two segments":
            replace(SPEC, segments=(*SPEC.segments, replace(table, name="other")))
        else:
            Paillier.plan(replace(SPEC, segments=(table,)), preset="single-2048")


def test_without_phe_the_papers_preset_names_it(monkeypatch):
    spec = TestEveryPlaceEntered.spec
    protection = Paillier(spec, Paillier.plan(spec, preset="paper"))
    context, secret = protection.generate()
    monkeypatch.setitem(sys.modules, "phe", None)
    with pytest.raises(KeysError, match="the package phe") as caught:
        protection.member(context, secret)
    assert "single-3072" in caught.value.remedy


def test_phe_reads_an_entry(party):
    """Value and counter, as any implementation of the scheme decrypts them."""
    key = party.secret.export_for_wrapping()[len(party.context) :]
    p, q = (int.from_bytes(key[at : at + 128], "big") for at in (0, 128))
    public = phe.PaillierPublicKey(p * q)
    private = phe.PaillierPrivateKey(public, p, q)
    message = party.member.protect(of({7: -3}))
    start = HEADER_BYTES + 4 * KEPT
    # The indices are 0, 1, 2, 3 and 7.
    frames = [message[at : at + FRAME] for at in range(start, start + KEPT * FRAME, FRAME)]
    found = [private.raw_decrypt(int.from_bytes(frame, "big")) for frame in frames]
    counter = 2 ** (2048 - 1 - 64)
    assert found == [counter] * 4 + [counter - 3]


# Tags: what key holders open without adding it up themselves.


@pytest.fixture(scope="module")
def tagged():
    most = (2**61 - 2) // 2
    segments = tuple(replace(s, max_abs_sum=min(s.max_abs_sum, most)) for s in SPEC.segments)
    return make_party(Paillier, "single-2048", replace(SPEC, segments=segments, tagged=True))


VECTORS = (
    of({3: 7, 8: -2, 20: 1}, counts=1, metrics=11),
    of({8: 4, 21: -5, 39: 6}, counts=2, metrics=100),
    of({0: 1}, metrics=5),
)
NAMES = (b"first", b"second", b"third")


def messages_of(tagged: Party) -> list[bytes]:
    return [
        tagged.member.protect(vector, name) for vector, name in zip(VECTORS, NAMES, strict=True)
    ]


def test_the_sum_of_exactly_the_named_messages_opens(tagged):
    assert tagged.protection.chosen.n_tags == 2
    total = summed(tagged, *messages_of(tagged))
    fresh = tagged.protection.accumulator(tagged.context).refreshed(total)
    assert np.array_equal(tagged.member.reveal(fresh, 3, NAMES), np.sum(VECTORS, axis=0))


def test_other_sums_than_of_the_named_messages_are_refused(tagged):
    first, second, third = messages_of(tagged)
    twice = summed(tagged, first, first, second)
    without_an_entry = _without(summed(tagged, first, second, third), place=8)
    for total in (twice, without_an_entry):
        with pytest.raises(WrongTags):
            tagged.member.reveal(total, 3, NAMES)
    with pytest.raises(WrongTags):
        tagged.member.reveal(summed(tagged, first, second), 2, NAMES[1:])


def _without(total: bytes, *, place: int) -> bytes:
    """Return a sum without the entry of an index."""
    n_entries = (len(total) - HEADER_BYTES - N_TAIL * FRAME) // (4 + FRAME)
    at = indices_of(total, n_entries).index(place)
    index, entry = HEADER_BYTES + 4 * at, HEADER_BYTES + 4 * n_entries + FRAME * at
    return total[:index] + total[index + 4 : entry] + total[entry + FRAME :]


def test_values_moved_to_other_indices_are_refused(tagged):
    """A coordinator that lies about the union: the same ciphertexts beside other indices."""
    total = summed(tagged, *messages_of(tagged))
    n_entries = (len(total) - HEADER_BYTES - N_TAIL * FRAME) // (4 + FRAME)
    honest = indices_of(total, n_entries)
    # Index 39, which has a value, becomes 38, which was not sent.
    assert honest[-1] == 39 and 38 not in honest
    with pytest.raises(WrongTags):
        tagged.member.reveal(with_indices(total, [*honest[:-1], 38]), 3, NAMES)


def test_an_entry_that_no_message_had_is_refused(tagged):
    first, second, third = messages_of(tagged)
    honest = summed(tagged, first, second, third)
    invented = tagged.member.protect(of({35: 3}), b"invented")
    # The invented value, taken from a message that is not in the sum.
    n_entries = (len(honest) - HEADER_BYTES - N_TAIL * FRAME) // (4 + FRAME)
    at = indices_of(invented, KEPT).index(35)
    start = HEADER_BYTES + 4 * KEPT + FRAME * at
    indices = [*indices_of(honest, n_entries), 35]
    entries = HEADER_BYTES + 4 * n_entries
    frames = [honest[entries + FRAME * place :][:FRAME] for place in range(n_entries)]
    frames.append(invented[start : start + FRAME])
    order = np.argsort(indices)
    raw = np.array(indices, dtype="<u4")[order].tobytes()
    body = b"".join(frames[place] for place in order)
    forged = honest[:HEADER_BYTES] + raw + body + honest[entries + FRAME * n_entries :]
    with pytest.raises(WrongTags):
        tagged.member.reveal(forged, 3, NAMES)
