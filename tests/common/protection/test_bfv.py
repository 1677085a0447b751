"""BFV: conformance, the noise really measured, and sums at the planned limits."""

from __future__ import annotations

import numpy as np
import pytest
from conformance.protection_suite import EncryptedSuite, extreme, make_party

from fedrec.protection import BFV, SegmentSpec, VectorSpec
from fedrec.protection.bfv import BFVMember
from fedrec.protection.modular import unpack_blocks
from fedrec.protection.residues import ResidueLayout


class TestDefault(EncryptedSuite):
    kind = BFV
    preset = "default"


class TestWide(EncryptedSuite):
    kind = BFV
    preset = "wide"


@pytest.mark.parametrize("sign", [1, -1])
def test_1024_messages_at_the_largest_bound_of_a_slot_sum_exactly(sign: int) -> None:
    segment = SegmentSpec(name="all", length=4095, max_abs_sum=(4294828033 - 1) // 2)
    spec = VectorSpec(segments=(segment,), max_summands=1024)
    party = make_party(BFV, "default", spec)
    vector = extreme(spec, sign, 1024)
    accumulator = party.protection.accumulator(party.context)
    # Sixteen messages, sixty-four times each, carry more noise than 1024 fresh ones.
    for message in [party.member.protect(vector) for _ in range(16)]:
        for _ in range(64):
            accumulator.add(message)
    assert party.protection.chosen.n_blocks == 1
    revealed = party.member.reveal(accumulator.finish(), 1024)
    assert np.array_equal(revealed, 1024 * vector)


@pytest.mark.parametrize("preset", ["default", "wide"])
def test_the_measured_noise_of_fresh_sums_stays_below_the_bound(preset: str) -> None:
    segment = SegmentSpec(name="all", length=4000, max_abs_sum=2**31 - 2**20)
    spec = VectorSpec(segments=(segment,), max_summands=100)
    party = make_party(BFV, preset, spec)
    vector = extreme(spec, 1, 100)
    accumulator = party.protection.accumulator(party.context)
    for _ in range(100):
        accumulator.add(party.member.protect(vector))
    total = accumulator.finish()
    assert np.array_equal(party.member.reveal(total, 100), 100 * vector)

    assert isinstance(party.member, BFVMember)
    cipher = party.member._open_cipher()
    plan = party.protection.chosen
    (block,) = unpack_blocks(ResidueLayout.of_plan(plan), memoryview(total)[44:])
    decryptor = cipher._context.decryptor().data
    budget = decryptor.invariant_noise_budget(cipher._loaded(block).ciphertext()[0])
    assert budget >= int(plan.headroom_bits) >= 6
    assert budget <= plan.headroom_bits + 5, "the bound is looser than it was"
