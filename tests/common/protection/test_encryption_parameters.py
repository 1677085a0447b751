"""The planner: its tables, its rules, and what it says when nothing works."""

from __future__ import annotations

import pytest

from fedrec.errors import SettingsError
from fedrec.plan.protections import described
from fedrec.protection import BFV, CKKS, PROTECTIONS, SegmentSpec, VectorSpec
from fedrec.protection.ciphertext_blocks import batching_prime, coefficient_primes
from fedrec.protection.encryption_parameters import (
    BFV_PRESETS,
    CKKS_PRESETS,
    bfv_noise,
    security_bits,
)


def spec(length: int = 100_000, largest: int = 2**27, summands: int = 64) -> VectorSpec:
    segment = SegmentSpec(name="all", length=length, max_abs_sum=largest)
    return VectorSpec(segments=(segment,), max_summands=summands)


@pytest.mark.parametrize(
    ("degree", "largest"),
    [(1024, 27), (2048, 54), (4096, 109), (8192, 218), (16384, 438), (32768, 881)],
)
def test_the_security_table_ends_where_the_standard_ends(degree, largest):
    assert security_bits(degree, largest) == 128
    assert security_bits(degree, largest + 1) == 0


def test_unknown_rings_have_no_security():
    assert security_bits(512, 10) == 0


@pytest.mark.parametrize(
    "preset", [*BFV_PRESETS.values(), *CKKS_PRESETS.values()], ids=lambda p: str(p.degree)
)
def test_the_primes_are_those_of_seal(preset):
    from tenseal import sealapi as seal

    degree, sizes = preset.degree, preset.coeff_mod_bit_sizes  # type: ignore[attr-defined]
    expected = [prime.value() for prime in seal.CoeffModulus.Create(degree, list(sizes))]
    assert list(coefficient_primes(degree, sizes)) == expected


def test_the_plain_modulus_is_the_largest_prime_that_batches():
    assert batching_prime(4096, 32) == 4294828033
    assert batching_prime(4096, 32) % 8192 == 1


def test_the_price_is_what_the_design_promises():
    bfv = BFV.plan(spec())
    lean = CKKS.plan(spec())
    paper = CKKS.plan(spec(), preset="paper")
    assert bfv.message_bytes / bfv.n_values < 15.5
    assert lean.message_bytes / lean.n_values < 33
    assert bfv.message_bytes < 0.2 * paper.message_bytes
    assert (bfv.n_blocks, bfv.frame_bytes) == (25, 4096 * 2 * 54 // 8)


def test_the_noise_bound_is_its_formula():
    # One message, N = 4096, P = 2^55: (1 + N) / 2 + 1/2 and a trace of the key-level error.
    noise = bfv_noise(4096, 55, 1, 1)
    assert noise.worst_case == pytest.approx(2049, abs=1e-3)
    # sqrt(2 x 4097/12 x ln(2 x 4096 x 2^40)) = sqrt(682.8 x 36.74) = 158.4, and 1/2.
    assert noise.likely == pytest.approx(158.9, abs=0.2)


def test_wide_values_take_limbs_or_the_wide_preset():
    wide = spec(largest=2**38)
    assert BFV.plan(wide).limbs == (2,)
    assert BFV.plan(wide, preset="wide").limbs == (1,)


def test_a_smaller_plain_modulus_serves_more_messages():
    few, many = BFV.plan(spec(summands=64)), BFV.plan(spec(largest=10**6, summands=30_000))
    assert few.plain_modulus is not None and many.plain_modulus is not None
    assert many.plain_modulus < few.plain_modulus
    assert many.headroom_bits >= 6


def test_what_holds_always_and_what_holds_but_for_a_chance_is_told_apart():
    assert BFV.plan(spec(summands=64)).proof == "worst case"
    assert BFV.plan(spec(summands=5000)).proof == "probability"
    assert CKKS.plan(spec(), preset="paper").proof == "worst case"
    assert CKKS.plan(spec(largest=2**16)).proof == "worst case"
    assert CKKS.plan(spec(largest=2**27)).proof == "probability"


@pytest.mark.parametrize("summands", [1, 3, 100, 3000])
@pytest.mark.parametrize("largest", [2**12, 2**28, 2**34, 2**45, 2**61])
def test_whatever_is_planned_keeps_the_rules(summands, largest):
    for kind in (BFV, CKKS):
        for preset in kind.presets:
            plan = kind.plan(spec(largest=largest, summands=summands), preset=preset)
            assert plan.headroom_bits >= 6
            assert plan.error_bound <= (0.25 if kind is CKKS else 2**-7)
            assert plan.security_bits >= 128
            assert plan.proof in ("worst case", "probability")


def test_an_impossible_plan_names_the_rule_and_the_nearest_that_works():
    with pytest.raises(SettingsError, match=r"10000000 messages.*bound.*bfv/wide"):
        BFV.plan(spec(summands=10**7))
    with pytest.raises(SettingsError, match=r"at most [0-9]+ messages"):
        CKKS.plan(spec(largest=2**61, summands=2 * 10**9))


@pytest.mark.parametrize("largest", [0, -1, 2**62])
def test_impossible_segments_are_refused(largest):
    with pytest.raises(SettingsError):
        SegmentSpec(name="all", length=1, max_abs_sum=largest)


def test_impossible_vectors_are_refused():
    segment = SegmentSpec(name="all", length=1, max_abs_sum=1)
    for segments, summands in (((), 1), ((segment,), 0), ((segment, segment), 1)):
        with pytest.raises(SettingsError):
            VectorSpec(segments=segments, max_summands=summands)


def test_every_plan_prints_its_price():
    for name, kind in PROTECTIONS.items():
        assert kind.name == name
        rows = dict(described(kind.plan(spec())))
        assert rows["message"].endswith("bytes for 100000 values")
