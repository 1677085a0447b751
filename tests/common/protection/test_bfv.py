"""BFV: the noise really measured, and sums at the planned limits."""

from dataclasses import replace

import numpy as np
import pytest
from conformance.protection_suite import extreme, make_party, summed

from fedrec.errors import KeysError, RevealRefused
from fedrec.protection import BFV, SegmentSpec, VectorSpec
from fedrec.protection.ciphertext_blocks import ResidueLayout
from fedrec.protection.lattice import BlockMember
from fedrec.protection.tags import TAGS
from fedrec.protection.vector import MAX_BOUND


@pytest.mark.parametrize("sign", [1, -1])
def test_1024_messages_at_the_largest_bound_of_a_slot_sum_exactly(sign):
    segment = SegmentSpec(name="all", length=4095, max_abs_sum=(4294828033 - 1) // 2)
    spec = VectorSpec(segments=(segment,), max_summands=1024)
    party = make_party(BFV, "default", spec)
    vector = extreme(spec, sign, 1024)
    # Sixteen messages, sixty-four times each, carry more noise than 1024 fresh ones.
    total = summed(party, *[party.member.protect(vector) for _ in range(16)] * 64)
    assert party.protection.chosen.n_blocks == 1
    revealed = party.member.reveal(total, 1024)
    assert np.array_equal(revealed, 1024 * vector)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["default", "wide"])
def test_the_measured_noise_of_fresh_sums_stays_below_the_bound(preset):
    segment = SegmentSpec(name="all", length=4000, max_abs_sum=2**31 - 2**20)
    spec = VectorSpec(segments=(segment,), max_summands=100)
    party = make_party(BFV, preset, spec)
    vector = extreme(spec, 1, 100)
    total = summed(party, *(party.member.protect(vector) for _ in range(100)))
    assert np.array_equal(party.member.reveal(total, 100), 100 * vector)

    assert isinstance(party.member, BlockMember)
    cipher = party.member._open_cipher()
    plan = party.protection.chosen
    (block,) = ResidueLayout.of_plan(plan).unpack_all(memoryview(total)[44:])
    decryptor = cipher._context.decryptor().data
    budget = decryptor.invariant_noise_budget(cipher._loaded(block).ciphertext()[0])
    assert budget >= int(plan.headroom_bits) >= 6
    assert budget <= plan.headroom_bits + 5, "the bound is looser than it was"


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["default", "wide"])
@pytest.mark.parametrize("sign", [1, -1])
def test_as_many_tagged_messages_as_planned_are_known(preset, sign):
    """Tags fill their slots whatever the messages are, so that they carry the most noise."""
    segment = SegmentSpec(name="all", length=5000, max_abs_sum=2**20)
    spec = VectorSpec(segments=(segment,), max_summands=100, tagged=True)
    party = make_party(BFV, preset, spec)
    plan = party.protection.chosen
    assert plan.n_tags == TAGS
    assert plan.message_bytes == BFV.plan(replace(spec, tagged=False), preset=preset).message_bytes
    vector = extreme(spec, sign, 100)
    names = tuple(f"client {n}".encode() for n in range(100))
    total = summed(party, *(party.member.protect(vector, name) for name in names))
    assert np.array_equal(party.member.reveal(total, 100, names), 100 * vector)
    for wrong in (names[1:], (*names[1:], names[1]), (*names[1:], b"another")):
        with pytest.raises(RevealRefused, match="tags"):
            party.member.reveal(total, 100, wrong)


def test_tags_without_a_key_are_refused():
    spec = VectorSpec(
        segments=(SegmentSpec(name="all", length=9, max_abs_sum=100),),
        max_summands=9,
        tagged=True,
    )
    protection = BFV(spec, BFV.plan(spec))
    context, secret = protection.generate()
    with pytest.raises(KeysError, match="tagging key"):
        protection.member(context, secret.export_for_wrapping())


def test_a_plan_without_tags_opens_nothing_by_names():
    spec = VectorSpec(
        segments=(SegmentSpec(name="all", length=9, max_abs_sum=100),), max_summands=9
    )
    party = make_party(BFV, "default", spec)
    total = summed(party, party.member.protect(extreme(spec, 1, 9), b"one"))
    with pytest.raises(RevealRefused, match="tags"):
        party.member.reveal(total, 1, (b"one",))


@pytest.mark.parametrize("preset", ["default", "wide"])
@pytest.mark.parametrize("bound", [2**19, 2**39, 2**60 - 1, 2**60, 2**61, MAX_BOUND])
def test_tagged_slots_stay_below_half_the_modulus(preset, bound):
    """Tags are residues of the plain modulus, which wide values reach and their limbs do not."""
    segment = SegmentSpec(name="all", length=9, max_abs_sum=bound)
    spec = VectorSpec(segments=(segment,), max_summands=100, tagged=True)
    plan = BFV.plan(spec, preset=preset)
    assert plan.plain_modulus is not None
    assert 2 * plan.layout.largest_sum(spec) < plan.plain_modulus
    assert (plan.limbs[0] > 1) == (2 * bound >= plan.plain_modulus)
