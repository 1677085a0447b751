"""CKKS in approximate mode: near sums of real values, exact counts, one result for all members."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from conformance.protection_suite import Party, extreme, make_party, random_vectors

from fedrec.errors import RevealRefused, SettingsError
from fedrec.protection import CKKS, ProtectionPlan, SegmentSpec, VectorSpec
from fedrec.protection.approximate import ApproximateMember
from fedrec.protection.planner import CKKS_PRESETS, plan_ckks
from fedrec.protection.tenseal_blocks import BlockCipher

USERS = 64
SPEC = VectorSpec(
    segments=(
        SegmentSpec(name="values", length=6000, max_abs_sum=USERS << 20, real=True),
        SegmentSpec(name="wide", length=10, max_abs_sum=2**45, real=True),
        SegmentSpec(name="counts", length=500, max_abs_sum=USERS, signed=False),
        SegmentSpec(name="metrics", length=44, max_abs_sum=USERS << 20, signed=False),
    ),
    max_summands=16,
)


@pytest.fixture(scope="module")
def party() -> Party:
    return make_party(CKKS, "approximate", SPEC)


def total_of(party: Party, messages: list[bytes]) -> bytes:
    accumulator = party.protection.accumulator(party.context)
    for message in messages:
        accumulator.add(message)
    return accumulator.finish()


def test_the_plan_says_what_it_is(party: Party) -> None:
    plan = party.protection.chosen
    assert not plan.exact
    assert not plan.releases_metrics
    assert plan.largest_error >= plan.error_bound > 0.5
    assert "approximate" in dict(plan.describe())["sums"]
    assert str(plan.largest_error) in dict(plan.describe())["sums"]
    assert plan.security_bits >= 128
    assert plan.headroom_bits >= 6
    assert ProtectionPlan.from_json(plan.to_json()) == plan


def test_exact_sets_release_metrics_and_have_no_error() -> None:
    for preset in ("lean", "paper"):
        plan = CKKS.plan(SPEC, preset=preset)
        assert plan.exact and plan.releases_metrics and plan.largest_error == 0


@pytest.mark.parametrize("content", ["random", "highest", "lowest"])
def test_real_sums_are_near_and_counts_exact(party: Party, content: str) -> None:
    if content == "random":
        vectors = random_vectors(SPEC, 16)
    else:
        vectors = [extreme(SPEC, 1 if content == "highest" else -1, 16)] * 16
    messages = [party.member.protect(vector) for vector in vectors]
    found = party.member.reveal(total_of(party, messages), 16)
    error = np.abs(found - np.sum(vectors, axis=0))
    plan = party.protection.chosen
    # The bound of all segments is that of the coarsest; each has its own unit.
    coarsest = min(plan.unit_bits)
    start = 0
    for segment, bits in zip(SPEC.segments, plan.unit_bits, strict=False):
        part = error[start : start + segment.length]
        start += segment.length
        if segment.real:
            assert part.max() <= np.ceil(plan.error_bound * 2.0 ** (coarsest - bits))
        else:
            assert not part.any()
    if content == "random":
        assert error[:6000].any(), "a set whose sums are all exact is not approximate"


def test_revealed_sums_keep_the_bounds(party: Party) -> None:
    vectors = [extreme(SPEC, 1, 16)] * 16
    total = total_of(party, [party.member.protect(vector) for vector in vectors])
    SPEC.validated(party.member.reveal(total, 16))


def test_members_agree_whatever_the_last_bits_of_their_transforms(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = random_vectors(SPEC, 3, seed=9)
    total = total_of(party, [party.member.protect(vector) for vector in vectors])
    first = party.member.reveal(total, 3)
    plainly = BlockCipher.decrypt
    random = np.random.default_rng(8)

    def shaken(self: BlockCipher, block: object) -> list[float]:
        values = np.array(plainly(self, block))  # type: ignore[arg-type]
        spread = np.abs(values).max() * 2.0**-50
        return list(values + random.uniform(-spread, spread, len(values)))

    monkeypatch.setattr(BlockCipher, "decrypt", shaken)
    other = party.protection.member(party.context, party.secret.export_for_wrapping())
    for _ in range(3):
        assert np.array_equal(other.reveal(total, 3), first)


def test_sums_out_of_bounds_or_of_other_keys_are_refused(party: Party) -> None:
    foreign = make_party(CKKS, "approximate", SPEC).member.protect(random_vectors(SPEC, 1)[0])
    own = party.member.protect(random_vectors(SPEC, 1)[0])
    forged = own[:44] + foreign[44:]
    with pytest.raises(RevealRefused):
        party.member.reveal(total_of(party, [own, forged]), 2)
    high = party.member.protect(extreme(SPEC, 1))
    with pytest.raises(RevealRefused):
        party.member.reveal(total_of(party, [high, high]), 2)


def test_enough_room_makes_the_same_set_exact() -> None:
    segment = SegmentSpec(name="values", length=50, max_abs_sum=100, real=True)
    spec = VectorSpec(segments=(segment,), max_summands=3)
    party = make_party(CKKS, "approximate", spec)
    assert party.protection.chosen.exact
    assert isinstance(party.member, ApproximateMember)
    vectors = random_vectors(spec, 3)
    total = total_of(party, [party.member.protect(vector) for vector in vectors])
    assert np.array_equal(party.member.reveal(total, 3), np.sum(vectors, axis=0))


def test_too_much_noise_is_refused_and_exact_sets_are_named() -> None:
    spec = dataclasses.replace(SPEC, max_summands=2000)
    with pytest.raises(SettingsError, match="ckks/lean"):
        plan_ckks(spec, "approximate")


def test_an_exact_set_never_gives_way_to_an_approximate_one() -> None:
    assert not CKKS_PRESETS["approximate"].exact
    segment = SegmentSpec(name="values", length=50, max_abs_sum=2**61, real=True)
    spec = VectorSpec(segments=(segment,), max_summands=2 * 10**9)
    with pytest.raises(SettingsError) as refused:
        plan_ckks(spec, "lean")
    assert "approximate" not in str(refused.value)
