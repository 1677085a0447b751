"""Sums over whole cells: who is dropped with another, who still helps, and what is never signed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from common.protection.masks.cohort import TEN_TEN, Cohort, make_people
from world.cells import guest, partition_of

from fedrec.errors import MalformedUpdate, PartialCell, RevealRefused, RoundClosed, RoundError
from fedrec.protection.masks import GivenShares, KeyList, Participant, Tolerance
from fedrec.protection.masks.keys import (
    add_mask,
    pair_mask_key,
    private_key,
    public_key,
    self_commitment,
)
from fedrec.protection.masks.messages import pack
from fedrec.protection.masks.shamir import combine

LIAR = Tolerance(corrupt_share=0.1, dropout_share=0.1, malicious=True)


def nine(tolerance: Tolerance = LIAR) -> Cohort:
    """Return nine clients in the cells {0, 1, 2}, {3, 4, 5} and {6, 7, 8}: t = 7."""
    return Cohort.of(9, tolerance, people=make_people(9, cell_size=3))


@pytest.mark.parametrize("tolerance", [TEN_TEN, LIAR])
def test_of_nine_clients_one_drops_out_and_six_are_summed(tolerance):
    """Eight sign and give shares, though six are in the sum: seven shares are needed."""
    cohort = nine(tolerance)
    found = cohort.run(before={4})
    np.testing.assert_array_equal(found, cohort.total(without={3, 4, 5}))
    assert cohort.collector.graph.threshold == 7


def test_of_six_clients_one_drops_out_and_three_are_summed():
    """Of the two that are left out, each gives a share of its own mask key: t = 5 of 5."""
    cohort = Cohort.of(6, LIAR, people=make_people(6, cell_size=3))
    np.testing.assert_array_equal(cohort.run(before={5}), cohort.total(without={3, 4, 5}))


@pytest.mark.slow
def test_of_forty_clients_three_drop_out_with_their_cells():
    """On a sparse graph, too, which bears a tenth; 13 cells, the last one of four."""
    cohort = Cohort.of(40, LIAR, people=make_people(40, cell_size=3))
    found = cohort.run(before={0, 39}, after={7}, late={8})
    np.testing.assert_array_equal(found, cohort.total(without={0, 1, 2, 36, 37, 38, 39}))


def test_what_is_given_of_those_left_out_is_their_mask_key_alone():
    """Their vectors arrived, and stay under a mask whose seed cannot be put together."""
    cohort = nine()
    cohort.begin()
    seeds = {own: cohort.participants[own]._state.self_seed for own in (3, 5)}
    commitments = {own: cohort.collector._bundles[own].commitment for own in (3, 5)}
    late = cohort.words.open(cohort.masked(3))
    here = cohort.positions({3, 4})
    messages = {own: cohort.masked(own) for own in here}
    for own in set(here) - {5}:
        cohort.collector.add_vector(cohort.id(own), messages[own])
    cohort.survivors = cohort.collector.close_vectors([cohort.id(3), cohort.id(5)])
    cohort.sign({4})
    cohort.give({4})
    given = cohort.collector._given
    assert given.keys() == {0, 1, 2, 3, 5, 6, 7, 8}
    for one in given.values():
        assert not {3, 4, 5}.intersection(one.self_owners)
        assert not {0, 1, 2, 6, 7, 8}.intersection(one.key_owners)
    round_digest = cohort.key_list.digest(cohort.terms)
    shares = {
        own + 1: dict(zip(one.key_owners, one.key_shares, strict=True))[3]
        for own, one in given.items()
    }
    key = combine(dict(list(shares.items())[:7]))
    assert public_key(key) == cohort.key_list.keys[3].mask_key
    # With that the coordinator takes off all masks in common with others, and is no wiser.
    words = late.copy()
    for other in cohort.positions({3}):
        public = cohort.key_list.keys[other].mask_key
        pair = pair_mask_key(round_digest, private_key(key), public, own=3, other=other)
        add_mask(words, pair, -1 if other > 3 else 1, n_wide=cohort.words.n_wide)
    truth = cohort.words.encode(cohort.vectors[3])
    assert (words == truth).sum() <= 1
    assert self_commitment(round_digest, seeds[3], own=3) == commitments[3]
    np.testing.assert_array_equal(cohort.collector.unmask(), cohort.total(without={3, 4, 5}))


def test_survivors_with_half_a_cell():
    """Also at a coordinator that is honest but wrong: it asks for no signature."""
    cohort = nine()
    cohort.begin()
    for own in range(8):
        cohort.collector.add_vector(cohort.id(own), cohort.masked(own))
    for half in (set(range(8)), {0, 1, 2, 3}, {0, 1, 3, 4, 6, 7}, {0, 1}, set()):
        for own in (0, 3):
            with pytest.raises(PartialCell):
                cohort.participants[own].sign(pack(half, 9), cohort.people[own], cohort.roster)
            assert cohort.participants[own].phase == "masked"
    with pytest.raises(PartialCell, match="2 clients without 1 others"):
        cohort.collector.close_vectors()


def test_two_sets_of_whole_cells_are_not_both_signed():
    cohort = nine()
    cohort.begin()
    cohort.mask(without={4})
    both, one = pack({0, 1, 2, 6, 7, 8}, 9), pack({0, 1, 2}, 9)
    for own in cohort.positions({4}):
        participant, person = cohort.participants[own], cohort.people[own]
        participant.sign(both, person, cohort.roster)
        cohort.restart(own)
        with pytest.raises(RevealRefused, match="different set"):
            cohort.participants[own].sign(one, person, cohort.roster)


def test_signatures_count_of_clients_that_shared_and_of_no_other():
    """Seven of the eight that are left; those of three that are left out are among them."""
    cohort = nine()
    cohort.begin(without={8})
    cohort.mask(without={8, 4})
    cohort.sign({8, 4})
    signatures = dict(cohort.collector._signatures)
    assert signatures.keys() == {0, 1, 2, 3, 5, 6, 7}
    for gone in (3, 7):
        fewer = {own: one for own, one in signatures.items() if own != gone}
        with pytest.raises(RevealRefused, match="6 clients signed"):
            cohort.participants[0].give(fewer, cohort.roster)
    cohort.give({8, 4})
    np.testing.assert_array_equal(cohort.collector.unmask(), cohort.total(without=set(range(3, 9))))


def test_who_did_not_share_gives_nothing():
    cohort = nine()
    cohort.begin(without={8})
    cohort.mask(without={8})
    with pytest.raises(RoundClosed, match="shares didn't arrive"):
        cohort.collector.add_signature(cohort.id(8), bytes(64))
    cohort.sign({8})
    own_seed = cohort.participants[6]._state.held[6][0]
    wrong = GivenShares(self_owners=(6,), self_shares=(own_seed,), key_owners=(), key_shares=())
    with pytest.raises(MalformedUpdate):
        cohort.collector.add_answer(cohort.id(6), wrong)


def test_too_few_are_left_though_a_cell_is_whole():
    """Three drop out of nine: the cell of three could be summed, but six cannot unmask it."""
    cohort = nine()
    cohort.begin()
    with pytest.raises(RoundError, match="6 of 9 clients"):
        cohort.mask(without={3, 6, 7})


def listed(cohort: Cohort, chosen: set[int]) -> KeyList:
    """Have some clients advertise, and return the list of their keys."""
    found = [Participant.begin(cohort.terms, cohort.people[own]) for own in sorted(chosen)]
    cohort.participants = [participant for participant, _ in found]
    return KeyList.of(keys for _, keys in found)


def test_listed_victim_and_two():
    """A whole cell of a victim and two colluders is no list; one with room for them is."""
    cohort = nine()
    key_list = listed(cohort, {0, 1, 2})
    with pytest.raises(RevealRefused, match="at least 4 of 9 members are needed") as refused:
        cohort.participants[0].share(key_list, cohort.roster)
    assert "1 that may be corrupt" in refused.value.message
    assert cohort.participants[0].phase == "advertised"
    longer = listed(cohort, set(range(6)))
    cohort.participants[0].share(longer, cohort.roster)


def test_a_list_of_all_three_members_was_not_chosen():
    cohort = Cohort.of(3, LIAR, people=make_people(3, cell_size=3))
    np.testing.assert_array_equal(cohort.run(), cohort.total())


def test_three_of_four_members_are_no_list_though_the_fourth_is_a_guest():
    """The coordinator could have kept the guest away."""
    people, roster = make_people(4)
    standing = guest(people[3], "test")
    cells = partition_of([one.client_id for one in people[:3]], guests=[standing])
    roster = replace(roster, partition=cells)
    cohort = Cohort.of(4, LIAR, people=(people, roster))
    with pytest.raises(RevealRefused, match="at least 4 of 4"):
        key_list = listed(cohort, {0, 1, 2})
        cohort.participants[0].share(key_list, roster)


def test_half_a_cell_is_no_list():
    cohort = nine()
    for chosen in ({0, 1, 2, 3}, set(range(8)), {0, 1, 3, 4, 6, 7}):
        with pytest.raises(PartialCell, match="The list of keys"):
            cohort.participants = []
            key_list = listed(cohort, chosen)
            cohort.participants[0].share(key_list, cohort.roster)
