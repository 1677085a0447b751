"""CKKS in exact mode: the error really measured against the planned bound."""

import numpy as np
import pytest
from conformance.protection_suite import extreme, make_party, random_vectors, summed

from fedrec.errors import SettingsError
from fedrec.protection import CKKS, SegmentSpec, VectorSpec
from fedrec.protection.ciphertext_blocks import ResidueLayout
from fedrec.protection.lattice import BlockMember


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "n_summands", "largest"),
    [("lean", 256, 2**27), ("lean", 16, 2**28), ("paper", 16, 2**32)],
)
@pytest.mark.parametrize("content", ["random", "extreme"])
def test_the_measured_error_stays_below_the_bound(preset, n_summands, largest, content):
    segment = SegmentSpec(name="all", length=2000, max_abs_sum=largest)
    spec = VectorSpec(segments=(segment,), max_summands=n_summands)
    party = make_party(CKKS, preset, spec)
    if content == "random":
        vectors = random_vectors(spec, n_summands)
    else:
        vectors = [extreme(spec, 1, n_summands)] * n_summands
    total = summed(party, *map(party.member.protect, vectors))
    revealed = party.member.reveal(total, n_summands)
    assert np.array_equal(revealed, np.sum(vectors, axis=0))

    assert isinstance(party.member, BlockMember)
    plan = party.protection.chosen
    assert plan.n_blocks == 1
    (block,) = ResidueLayout.of_plan(plan).unpack_all(memoryview(total)[44:])
    decrypted = np.array(party.member._open_cipher().decrypt(block))
    error = np.abs(decrypted - np.rint(decrypted)).max()
    assert error <= plan.error_bound <= 0.25
    assert plan.headroom_bits >= 6


def test_the_set_that_proved_nothing_is_refused_by_name():
    spec = VectorSpec(
        segments=(SegmentSpec(name="all", length=9, max_abs_sum=100),), max_summands=9
    )
    with pytest.raises(SettingsError, match=r"ckks/approximate was removed.*secret key") as refused:
        CKKS.plan(spec, preset="approximate")
    for name in ("ckks/lean", "ckks/paper", "bfv", "provision again"):
        assert name in (refused.value.remedy or "")


def test_sums_with_tags_are_refused():
    spec = VectorSpec(
        segments=(SegmentSpec(name="all", length=9, max_abs_sum=100),),
        max_summands=9,
        tagged=True,
    )
    with pytest.raises(SettingsError, match=r"recompute_limit clients in a round, or use bfv"):
        CKKS.plan(spec)
