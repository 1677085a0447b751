"""Whole rounds: exact sums with and without dropouts, and clean ends where there is none."""

import numpy as np
import pytest
from common.protection.masks.cohort import SPEC, TEN_TEN, Cohort, make_people
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.errors import (
    BadSignature,
    ConflictingUpload,
    KeysError,
    MalformedUpdate,
    RevealRefused,
    RoundClosed,
    RoundError,
)
from fedrec.protection.masks import GivenShares, Inbox, ShareBundle, Tolerance
from fedrec.protection.masks.messages import pack, unpack
from fedrec.protection.vector import VectorSpec

LIAR = Tolerance(corrupt_share=0.1, dropout_share=0.1, malicious=True)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [TEN_TEN, LIAR])
def test_dropouts_at_every_step_leave_the_sum_of_those_who_masked(tolerance):
    cohort = Cohort.of(40, tolerance)
    found = cohort.run(before={3, 17}, after={5}, late={30})
    np.testing.assert_array_equal(found, cohort.total(without={3, 17}))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(data=st.data(), count=st.integers(4, 10))
def test_any_dropouts_within_the_threshold(data, count):
    cohort = Cohort.of(count, Tolerance(corrupt_share=0.0, dropout_share=0.0, malicious=False))
    spare = count - (2 * count // 3 + 1)
    gone = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=spare))
    cut = data.draw(st.integers(0, len(gone)))
    found = cohort.run(before=gone[:cut], after=gone[cut:])
    np.testing.assert_array_equal(found, cohort.total(without=gone[:cut]))


def test_those_who_never_shared_are_no_part_of_the_round():
    cohort = Cohort.of(10)
    cohort.begin(without={2, 4})
    with pytest.raises(RoundClosed):
        cohort.collector.inbox(cohort.id(2))
    cohort.mask(without={2, 4})
    cohort.sign(without={2, 4})
    cohort.give(without={2, 4})
    np.testing.assert_array_equal(cohort.collector.unmask(), cohort.total(without={2, 4}))


def test_of_three_clients_none_may_drop_out():
    cohort = Cohort.of(3)
    cohort.begin()
    with pytest.raises(RoundError, match="2 of 3 clients"):
        cohort.mask(without={1})
    late = Cohort.of(3)
    late.begin()
    late.mask()
    with pytest.raises(RoundError, match="2 of 3 clients signed"):
        late.sign(without={1})


def test_a_poisoned_vector_is_seen_in_the_sum():
    """Outside its bounds a sum is refused, not wrapped; no single vector can be checked."""
    cohort = Cohort.of(4)
    cohort.begin()
    inbox = cohort.collector.inbox(cohort.id(0))
    words = np.zeros(cohort.words.n_words, dtype=np.uint32)
    words[60:67] = 10_000  # "holders" sum to at most 1000; the wide values' ten words come first
    message = cohort.words.message(cohort.add_masks(0, inbox, words))
    cohort.collector.add_vector(cohort.id(0), message)
    cohort.mask(without={0})
    cohort.sign()
    cohort.give()
    with pytest.raises(RevealRefused, match="'holders'"):
        cohort.collector.unmask()


def test_messages_are_taken_once():
    cohort = Cohort.of(4)
    cohort.advertise()
    bundles = [p.share(cohort.key_list, cohort.roster, b"") for p in cohort.participants]
    for own, bundle in enumerate(bundles):
        cohort.collector.add_shares(cohort.id(own), bundle)
        cohort.collector.add_shares(cohort.id(own), bundle)
    other = ShareBundle(
        holders=bundles[0].holders, sealed=bundles[0].sealed[::-1], commitment=bytes(32)
    )
    with pytest.raises(ConflictingUpload):
        cohort.collector.add_shares(cohort.id(0), other)
    cohort.collector.close_shares()
    messages = [cohort.masked(own) for own in range(4)]
    for own, message in enumerate(messages):
        cohort.collector.add_vector(cohort.id(own), message)
        cohort.collector.add_vector(cohort.id(own), message)
    with pytest.raises(ConflictingUpload):
        cohort.collector.add_vector(cohort.id(0), messages[1])
    cohort.survivors = cohort.collector.close_vectors()
    with pytest.raises(RoundClosed):
        cohort.collector.add_vector(cohort.id(0), messages[0])
    cohort.sign()
    cohort.give()
    np.testing.assert_array_equal(cohort.collector.unmask(), cohort.total())


def test_what_is_malformed_changes_nothing():
    cohort = Cohort.of(4)
    cohort.advertise()
    people, _ = make_people(1)
    good = cohort.participants[0].share(cohort.key_list, cohort.roster, b"")
    collector = cohort.collector
    with pytest.raises(KeysError, match="isn't in the round"):
        collector.add_shares(people[0].client_id, good)
    with pytest.raises(MalformedUpdate):
        collector.add_shares(cohort.id(1), good)
    for fields in (
        {"holders": (3, 2, 1), "sealed": good.sealed},
        {"holders": (1, 2), "sealed": good.sealed},
        {"holders": good.holders, "sealed": (b"", b"", b"")},
        {"holders": (-1, 2, 3), "sealed": good.sealed},
    ):
        with pytest.raises(MalformedUpdate):
            ShareBundle(**fields, commitment=bytes(32))  # type: ignore[arg-type]
    collector.add_shares(cohort.id(0), good)
    cohort.share(without={0})
    message = cohort.masked(0)
    for damaged in (message[:-1], b"", b"x" * len(message)):
        with pytest.raises(MalformedUpdate):
            collector.add_vector(cohort.id(0), damaged)
    collector.add_vector(cohort.id(0), message)
    cohort.mask(without={0})
    with pytest.raises(BadSignature):
        collector.add_signature(cohort.id(0), bytes(64))
    cohort.sign()
    empty = GivenShares(self_owners=(), self_shares=(), key_owners=(), key_shares=())
    foreign = GivenShares(self_owners=(9,), self_shares=(bytes(33),), key_owners=(), key_shares=())
    swapped = GivenShares(self_owners=(), self_shares=(), key_owners=(1,), key_shares=(bytes(33),))
    for given_ in (empty, foreign, swapped):
        with pytest.raises(MalformedUpdate):
            collector.add_answer(cohort.id(0), given_)
    with pytest.raises(MalformedUpdate, match="both shares"):
        GivenShares(
            self_owners=(1,), self_shares=(bytes(33),), key_owners=(1,), key_shares=(bytes(33),)
        )
    assert not collector.can_unmask
    cohort.give(without={0})
    assert collector.can_unmask
    np.testing.assert_array_equal(collector.unmask(), cohort.total())


def test_one_wrong_share_does_not_spoil_the_sum():
    cohort = Cohort.of(7)
    cohort.begin()
    cohort.mask(without={6})
    cohort.sign(without={6})
    signatures = cohort.collector.signatures_for(cohort.id(2))
    honest = cohort.participants[2].give(signatures, cohort.roster)
    lie = GivenShares(
        self_owners=honest.self_owners,
        self_shares=tuple(bytes(33) for _ in honest.self_shares),
        key_owners=honest.key_owners,
        key_shares=tuple(bytes(33) for _ in honest.key_shares),
    )
    cohort.collector.add_answer(cohort.id(2), lie)
    cohort.give(without={2, 6})
    np.testing.assert_array_equal(cohort.collector.unmask(), cohort.total(without={6}))


def test_too_many_wrong_shares_end_the_round_with_a_reason():
    cohort = Cohort.of(3)
    cohort.begin()
    cohort.mask()
    cohort.sign()
    lie = GivenShares(
        self_owners=(0, 1, 2), self_shares=(bytes(33),) * 3, key_owners=(), key_shares=()
    )
    cohort.collector.add_answer(cohort.id(0), lie)
    cohort.give(without={0})
    with pytest.raises(RoundError, match="don't match"):
        cohort.collector.unmask()


def test_an_owner_that_seals_rubbish_harms_no_client():
    """Its neighbours hold no share of it, but six of its seven shares would have been enough."""
    cohort = Cohort.of(7)
    cohort.advertise()
    for own in range(7):
        bundle = cohort.participants[own].share(cohort.key_list, cohort.roster, b"")
        if own == 0:
            sealed = (b"\xff" * 82, *bundle.sealed[1:])
            bundle = ShareBundle(
                holders=bundle.holders, sealed=sealed, commitment=bundle.commitment
            )
        cohort.collector.add_shares(cohort.id(own), bundle)
    cohort.collector.close_shares()
    cohort.mask()
    cohort.sign()
    cohort.give()
    np.testing.assert_array_equal(cohort.collector.unmask(), cohort.total())


def test_a_round_that_is_too_small_or_too_large_never_starts():
    small = Cohort.of(5, minimum=6)
    with pytest.raises(RoundError, match="5 clients advertised"):
        small.advertise()
    large = Cohort.of(5, spec=VectorSpec(segments=SPEC.segments, max_summands=4))
    with pytest.raises(RoundError, match="to 4"):
        large.advertise()


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_sets_of_positions_survive_packing(case):
    count, chosen = case
    packed = pack(chosen, count)
    assert len(packed) == (count + 7) // 8
    assert unpack(packed, count) == chosen


def test_sets_by_hand():
    assert pack({0, 3, 8}, 9) == b"\x09\x01"
    for wrong in (b"", b"\x09", b"\x09\x02", b"\x09\x01\x00"):
        with pytest.raises(MalformedUpdate):
            unpack(wrong, 9)


def test_an_inbox_without_a_sender_is_refused():
    cohort = Cohort.of(4)
    cohort.begin()
    inbox = cohort.collector.inbox(cohort.id(0))
    words = np.zeros(cohort.words.n_words, dtype=np.uint32)
    for shared, match in ((pack({1, 2, 3}, 4), "isn't among"), (pack({0, 1}, 4), "clients shared")):
        owners = tuple(o for o in inbox.owners if o in unpack(shared, 4))
        forged = Inbox(shared=shared, owners=owners, sealed=inbox.sealed[: len(owners)])
        with pytest.raises(RevealRefused, match=match):
            cohort.add_masks(0, forged, words)
    stranger = Inbox(shared=pack({0, 1, 2}, 4), owners=(1, 3), sealed=inbox.sealed[:2])
    with pytest.raises(MalformedUpdate):
        cohort.add_masks(0, stranger, words)
    cohort.add_masks(0, inbox, words)
