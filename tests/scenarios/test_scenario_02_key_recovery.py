"""Scenario 2, CPAD: released decryptions give the key away; what this software releases does not.

The same attack runs on a deliberately naive path, which publishes what TenSEAL's `decrypt` returns
as federated averaging does, and on everything that leaves the key holders
here: integers that do not depend on the noise.
"""

from dataclasses import replace

import numpy as np
import pytest
from conformance.protection_suite import Party, make_party, random_vectors
from scenarios.support.key_recovery import coefficients, recover_key, transform
from world.plans import plan_of

from fedrec.errors import SettingsError
from fedrec.plan.combinations import find_conflicts
from fedrec.protection import CKKS, SegmentSpec, VectorSpec
from fedrec.protection.ciphertext_blocks import ResidueLayout, Residues
from fedrec.protection.lattice import BlockMember

N_CLIENTS = 20


def spec_of():
    """Return values that fill two blocks of ckks/lean but for the counters, of 20 clients."""
    segment = SegmentSpec(name="weights", length=2 * 2047, max_abs_sum=1024 << 20)
    return VectorSpec(segments=(segment,), max_summands=N_CLIENTS)


class Round:
    """A round's two summed ciphertexts, which the coordinator has, and its key holder."""

    def __init__(self):
        self.party: Party = make_party(CKKS, "lean", spec_of())
        assert isinstance(self.party.member, BlockMember)
        self.cipher = self.party.member._open_cipher()
        self.plan = self.party.protection.chosen
        self.layout = ResidueLayout.of_plan(self.plan)
        self.vectors = random_vectors(spec_of(), N_CLIENTS)
        accumulator = self.party.protection.accumulator(self.party.context)
        for vector in self.vectors:
            accumulator.add(self.party.member.protect(vector))
        self.total = accumulator.finish()
        first, second = self.layout.unpack_all(memoryview(self.total)[44:])
        self.sums: tuple[Residues, Residues] = (first, second)

    @property
    def scale(self):
        return 2.0 ** (self.plan.scale_bits or 0)

    def naive(self):
        """Return what a key holder publishes who publishes what `decrypt` returns."""
        first, second = (np.array(self.cipher.decrypt(block)) for block in self.sums)
        return first * self.scale, second * self.scale

    def revealed(self):
        """Return the integers of `reveal`, with the counters that every client knows, as slots."""
        found = self.party.member.reveal(self.total, N_CLIENTS)
        first, second = found.reshape(2, -1) * self.scale
        counter = N_CLIENTS * self.scale
        return np.append(first, counter), np.append(second, counter)

    def matches(self, released):
        """Return how many coefficients of the secret key the attack gets right."""
        (prime,) = self.layout.primes
        found = recover_key(self.sums, released, prime)
        return int((found == self.key()).sum())

    def key(self):
        """Return the true key, as SEAL holds it."""
        secret = self.cipher._context.secret_key().data.data()
        (prime,) = self.layout.primes
        degree = self.layout.degree
        values = np.array([secret[place] for place in range(degree)], dtype=object)
        key = coefficients(values, prime)
        assert set(key.tolist()) == {-1, 0, 1}
        return key


@pytest.fixture(scope="module")
def exact():
    return Round()


def test_the_transform_by_hand():
    # N = 2, q = 5: the fourth roots are 2 and 3, and 2 is the smaller; 1 + 3x is 7 = 2 and 10 = 0.
    assert transform(np.array([1, 3]), 5).tolist() == [2, 0]
    assert coefficients(np.array([2, 0], dtype=object), 5).tolist() == [1, -2]


def test_scenario_02_a_naive_path_gives_the_whole_key_away(exact):
    assert exact.matches(exact.naive()) == exact.layout.degree == 4096


def test_scenario_02_exact_integers_give_nothing_away(exact):
    assert exact.matches(exact.revealed()) == 0
    sums = np.sum(exact.vectors, axis=0)
    assert np.array_equal(exact.party.member.reveal(exact.total, N_CLIENTS), sums)


def test_scenario_02_what_is_revealed_does_not_depend_on_the_noise(exact):
    """The same vectors encrypted anew: other ciphertexts and other noise, the same integers."""
    accumulator = exact.party.protection.accumulator(exact.party.context)
    for vector in exact.vectors:
        accumulator.add(exact.party.member.protect(vector))
    again = accumulator.finish()
    assert again != exact.total
    first, second = exact.layout.unpack_all(memoryview(again)[44:])
    decrypted = [np.array(exact.cipher.decrypt(block)) * exact.scale for block in (first, second)]
    assert not np.array_equal(np.concatenate(decrypted), np.concatenate(exact.naive()))
    found = exact.party.member.reveal(again, N_CLIENTS)
    assert np.array_equal(found, exact.party.member.reveal(exact.total, N_CLIENTS))


def test_scenario_02_parameters_that_prove_nothing_are_refused_when_settings_are_read():
    (conflict,) = find_conflicts(plan_of(protection={"name": "ckks", "preset": "approximate"}))
    assert conflict.keys == ("protection.preset", "protection.name")
    assert "ckks/approximate was removed" in conflict.sentence
    for fix in ("ckks/lean", "ckks/paper", "bfv", 'protection.preset = "lean"'):
        assert fix in conflict.sentence


@pytest.mark.parametrize("preset", CKKS.presets)
def test_scenario_02_every_set_proves_that_rounding_is_right(preset):
    """A sum of more or wider values than can be rounded rightly has no plan, and no key."""
    plan = CKKS.plan(spec_of(), preset=preset)
    assert plan.error_bound <= 1 / 4
    many = replace(spec_of(), max_summands=2**31 - 1)
    with pytest.raises(SettingsError, match="exact"):
        CKKS.plan(many, preset=preset)
