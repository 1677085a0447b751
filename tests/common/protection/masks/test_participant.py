"""A participant across restarts: it goes on where it was, and never says two things."""

import base64

import numpy as np
import pytest
from common.protection.masks.cohort import Cohort

from fedrec.errors import PartialCell, RefusedError, RevealRefused, RoundError, SplitView
from fedrec.protection.masks.messages import pack


def test_steps_cannot_be_repeated_or_left_out():
    cohort = Cohort.of(4)
    cohort.advertise()
    participant = cohort.participants[0]
    words = np.zeros(cohort.words.n_words, dtype=np.uint32)
    with pytest.raises(RoundError):
        participant.sign(pack(range(4), 4), cohort.people[0], cohort.roster)
    with pytest.raises(RoundError):
        participant.give({}, cohort.roster)
    cohort.share()
    cohort.restart(0)
    with pytest.raises(RoundError):
        cohort.participants[0].share(cohort.key_list, cohort.roster)
    inbox = cohort.collector.inbox(cohort.id(0))
    cohort.add_masks(0, inbox, words)
    cohort.restart(0)
    with pytest.raises(RoundError, match="Send the message again"):
        cohort.add_masks(0, inbox, words)


def test_the_vector_is_left_as_it_is():
    cohort = Cohort.of(4)
    cohort.begin()
    words = np.arange(cohort.words.n_words, dtype=np.uint32)
    before = words.copy()
    masked = cohort.add_masks(0, cohort.collector.inbox(cohort.id(0)), words)
    np.testing.assert_array_equal(words, before)
    assert (masked != words).sum() > len(words) - 3


def test_after_masking_a_client_cannot_unmask_itself():
    cohort = Cohort.of(4)
    cohort.begin()
    state = cohort.participants[0]._state
    secrets = (state.keys.mask, state.keys.share, state.self_seed)
    assert all(len(secret) == 32 for secret in secrets)
    cohort.masked(0)
    raw = cohort.participants[0].to_bytes()
    assert not any(base64.b64encode(secret) in raw for secret in secrets)


def test_a_set_is_signed_once_also_after_a_restart():
    cohort = Cohort.of(4)
    cohort.begin()
    cohort.mask()
    person = cohort.people[0]
    first = cohort.participants[0].sign(pack(range(4), 4), person, cohort.roster)
    cohort.restart(0)
    assert cohort.participants[0].sign(pack(range(4), 4), person, cohort.roster) == first
    with pytest.raises(RevealRefused, match="different set"):
        cohort.participants[0].sign(pack({0, 1, 2}, 4), person, cohort.roster)


@pytest.mark.parametrize(
    ("survivors", "code"), [({0, 1}, "partial_cell"), ({0, 1, 5, 6}, "reveal_refused")]
)
def test_sets_that_are_not_signed(survivors, code):
    cohort = Cohort.of(7)
    cohort.begin(without={6})
    for own in range(6):
        cohort.collector.add_vector(cohort.id(own), cohort.masked(own))
    with pytest.raises(RefusedError) as refused:
        cohort.participants[0].sign(pack(survivors, 7), cohort.people[0], cohort.roster)
    assert refused.value.code == code
    assert cohort.participants[0].phase == "masked"


def test_shares_need_enough_equal_signatures():
    cohort = Cohort.of(7)
    cohort.begin()
    cohort.mask()
    cohort.sign()
    participant = cohort.participants[0]
    all_signed = cohort.collector.signatures_for(cohort.id(0))
    some = {position: all_signed[position] for position in sorted(all_signed)[:3]}
    foreign = dict.fromkeys(all_signed, all_signed[3])
    for signatures in ({}, some, {9: bytes(64)}):
        with pytest.raises(RevealRefused, match="neighbours"):
            participant.give(signatures, cohort.roster)
    # Enough are good, and still no honest coordinator would hand the others on.
    for wrong, lied in ((foreign, "5 of 6"), (all_signed | {1: bytes(64)}, "1 of 6")):
        with pytest.raises(SplitView, match=f"{lied} clients signed different survivors"):
            participant.give(wrong, cohort.roster)
    four = {position: all_signed[position] for position in sorted(all_signed)[:4]}
    given = participant.give(four, cohort.roster)
    assert given == participant.give(all_signed, cohort.roster)
    assert given.self_owners == tuple(range(7)) and given.key_owners == ()


def test_the_minimum_of_summands_counts_survivors():
    cohort = Cohort.of(10, minimum=9)
    cohort.begin()
    with pytest.raises(RoundError, match="needs 9"):
        cohort.mask(without={1, 2})
    with pytest.raises(PartialCell, match="at least 9"):
        cohort.participants[0].sign(
            pack(set(range(10)) - {1, 2}, 10), cohort.people[0], cohort.roster
        )
