"""Scenario 7: a coordinator that wants both secrets of one client.

It tells some clients that the victim survived and others that it dropped out, has all that the
corrupt clients know, and keeps the victim's masked vector. Whoever has the seed of the self mask
and the mask key reads the vector; the attack below does exactly that as soon as it has both, and
is shown to work where more clients are corrupt than the threshold allows.
"""

import contextlib

import numpy as np
import pytest
from common.protection.masks.cohort import Cohort

from fedrec.errors import KeysError, RevealRefused, RoundClosed, RoundError
from fedrec.protection.masks import Tolerance, parameters_for
from fedrec.protection.masks.keys import (
    Words,
    add_mask,
    pair_mask_key,
    private_key,
    public_key,
    self_commitment,
    self_mask_key,
)
from fedrec.protection.masks.messages import pack, survivors_statement
from fedrec.protection.masks.shamir import combine

LIAR = Tolerance(corrupt_share=0.3, dropout_share=0.0, malicious=True)
SPARSE_LIAR = Tolerance(corrupt_share=0.1, dropout_share=0.1, malicious=True)
VICTIM = 0


class Attack:
    """A coordinator, its corrupt clients and everything that they ever got to see."""

    def __init__(self, cohort, corrupt):
        self.cohort = cohort
        self.corrupt = set(corrupt)
        self.seed_shares: dict[int, bytes] = {}
        self.key_shares: dict[int, bytes] = {}
        self.masked: Words = np.zeros(0, dtype=np.uint32)
        self.commitment = b""
        self.refusals = 0

    def until_masked(self):
        """Run the honest steps and keep the victim's vector and the corrupt clients' shares."""
        cohort = self.cohort
        cohort.advertise()
        cohort.share()
        self.commitment = cohort.collector._bundles[VICTIM].commitment
        for own in cohort.positions():
            message = cohort.masked(own)
            if own == VICTIM:
                self.masked = cohort.words.open(message)
        for own in self.corrupt:
            held = cohort.participants[own]._state.held.get(VICTIM)
            if held is not None:
                self.seed_shares[own + 1], self.key_shares[own + 1] = held

    def ask(self, alive, dropped):
        """Have each group sign its version, the corrupt both, and then ask for shares."""
        all_clients = set(self.cohort.positions())
        for group, survivors in (
            (set(alive), all_clients),
            (set(dropped), all_clients - {VICTIM}),
        ):
            packed = pack(survivors, len(all_clients))
            signatures = self._sign(group, packed)
            for own in group & signatures.keys():
                self._take(own, signatures)

    def _sign(self, group, packed):
        cohort = self.cohort
        shared = pack(cohort.positions(), len(cohort.people))
        statement = survivors_statement(cohort.key_list.digest(cohort.terms), shared, packed)
        signatures = {own: cohort.people[own].sign(statement) for own in self.corrupt}
        for own in group:
            cohort.restart(own)
            try:
                signatures[own] = cohort.participants[own].sign(
                    packed, cohort.people[own], cohort.roster
                )
            except RevealRefused:
                self.refusals += 1
        return signatures

    def _take(self, own, signatures):
        self.cohort.restart(own)
        try:
            given = self.cohort.participants[own].give(signatures, self.cohort.roster)
        except RevealRefused:
            self.refusals += 1
            return
        seeds = dict(zip(given.self_owners, given.self_shares, strict=True))
        keys = dict(zip(given.key_owners, given.key_shares, strict=True))
        if VICTIM in seeds:
            self.seed_shares[own + 1] = seeds[VICTIM]
        if VICTIM in keys:
            self.key_shares[own + 1] = keys[VICTIM]

    def seed(self):
        """Return the seed of the victim's self mask, if the shares give it."""
        round_digest = self.cohort.key_list.digest(self.cohort.terms)
        found = self._combined(self.seed_shares)
        right = found and self_commitment(round_digest, found, own=VICTIM) == self.commitment
        return found if right else None

    def key(self):
        """Return the victim's mask key, if the shares give it."""
        found = self._combined(self.key_shares)
        wanted = self.cohort.key_list.keys[VICTIM].mask_key
        return found if found and public_key(found) == wanted else None

    def vector(self):
        """Return the victim's vector, if the transcript gives it away."""
        seed, key = self.seed(), self.key()
        if seed is None or key is None:
            return None
        return self.without_masks(seed, key)

    def without_masks(self, seed, key):
        """Take off the masks in common with partners, and the own one where its seed is known."""
        cohort = self.cohort
        round_digest = cohort.key_list.digest(cohort.terms)
        words = self.masked.copy()
        if seed is not None:
            own_key = self_mask_key(round_digest, seed, own=VICTIM)
            add_mask(words, own_key, -1, n_wide=cohort.words.n_wide)
        for other in cohort.positions({VICTIM}):
            public = cohort.key_list.keys[other].mask_key
            pair = pair_mask_key(round_digest, private_key(key), public, own=VICTIM, other=other)
            sign = -1 if other > VICTIM else 1
            add_mask(words, pair, sign, n_wide=cohort.words.n_wide)
        return words.tolist()

    @staticmethod
    def _combined(shares):
        with contextlib.suppress(KeysError):
            return combine(shares)
        return None


def attack_on(count, corrupt, tolerance=LIAR):
    cohort = Cohort.of(count, tolerance)
    attack = Attack(cohort, range(count - corrupt, count))
    attack.until_masked()
    return attack


@pytest.mark.parametrize("n_dropped", range(7))
def test_scenario_07_no_split_of_the_honest_gives_both_secrets(n_dropped):
    """Ten clients, t = 7, three of them corrupt: every way to divide the other seven."""
    attack = attack_on(10, corrupt=3)
    honest = range(7)
    attack.ask(honest[: 7 - n_dropped], honest[7 - n_dropped :])
    assert attack.seed() is None or attack.key() is None
    assert attack.vector() is None
    for place in attack.seed_shares.keys() & attack.key_shares.keys():
        assert place - 1 in attack.corrupt


def test_scenario_07_asked_for_the_other_version_afterwards_no_client_answers():
    """First every client hears the truth, then, after a restart, the lie, and the truth again."""
    attack = attack_on(10, corrupt=3)
    attack.ask(range(7), ())
    assert attack.seed() is not None
    attack.ask((), range(1, 7))
    assert attack.refusals == 6
    assert attack.key() is None and attack.vector() is None
    # The refused lie does not keep any client from answering the truth once more.
    attack.ask(range(7), ())
    assert attack.refusals == 6


def test_scenario_07_the_attack_is_real():
    """With one corrupt client more than t = 7 of ten withstands, it reads the vector."""
    attack = attack_on(10, corrupt=4)
    attack.ask((0, 1, 2), (3, 4, 5))
    cohort = attack.cohort
    assert attack.vector() == cohort.words.encode(cohort.vectors[VICTIM]).tolist()


def test_scenario_07_a_late_upload_after_dropping_out_stays_hidden():
    """The coordinator rightly got the mask key; without the self mask it would read the vector."""
    cohort = Cohort.of(10, Tolerance(corrupt_share=0.2, dropout_share=0.1, malicious=True))
    attack = Attack(cohort, (8, 9))
    cohort.advertise()
    cohort.share()
    attack.commitment = cohort.collector._bundles[VICTIM].commitment
    seed = cohort.participants[VICTIM]._state.self_seed
    late = cohort.masked(VICTIM)
    cohort.mask(without={VICTIM})
    for own in attack.corrupt:
        held = cohort.participants[own]._state.held[VICTIM]
        attack.seed_shares[own + 1], attack.key_shares[own + 1] = held
    cohort.sign(without={VICTIM})
    cohort.give(without={VICTIM})
    np.testing.assert_array_equal(cohort.collector.unmask(), cohort.total(without={VICTIM}))
    with pytest.raises(RoundClosed):
        cohort.collector.add_vector(cohort.id(VICTIM), late)

    attack.masked = cohort.words.open(late)
    for own, given in cohort.collector._given.items():
        shares = dict(zip(given.key_owners, given.key_shares, strict=True))
        attack.key_shares[own + 1] = shares[VICTIM]
        assert VICTIM not in given.self_owners
    key = attack.key()
    assert key is not None
    assert attack.seed_shares.keys() == {9, 10}
    assert attack.vector() is None
    truth = cohort.words.encode(cohort.vectors[VICTIM]).tolist()
    hidden = attack.without_masks(None, key)
    assert sum(a == b for a, b in zip(hidden, truth, strict=True)) <= 1
    assert attack.without_masks(seed, key) == truth
    with pytest.raises((RoundError, RevealRefused)):
        cohort.participants[VICTIM].give({}, cohort.roster)


def test_scenario_07_on_a_sparse_graph_two_versions_find_no_quorum():
    """Forty clients that drew their holders: those of the victim hear one thing, all others
    another, so that every client's neighbours are told apart as far as the graph allows.
    """
    attack = attack_on(40, corrupt=4, tolerance=SPARSE_LIAR)
    graph = parameters_for(40, SPARSE_LIAR)
    assert not graph.complete
    honest = set(range(36))
    holders = set(attack.cohort.participants[VICTIM]._state.holders)
    near = (holders | {VICTIM}) & honest
    half = set(sorted(near)[: len(near) // 2]) | {VICTIM}
    attack.ask(half, honest - half)
    assert attack.vector() is None
    assert attack.seed() is None or attack.key() is None
    assert attack.refusals >= len(half)
