"""Sums of entries are the sums of the same vectors with their zeros, whatever ties there are."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from conformance.protection_suite import Party, make_party
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.protection import Paillier, SegmentSpec, VectorSpec
from fedrec.updates import UPDATES
from fedrec.updates.update import UpdateSettings

N_ITEMS, DIM, KEPT, COUNTS = 3, 4, 3, 2
CHANGE = st.lists(st.integers(-3, 3), min_size=N_ITEMS * DIM, max_size=N_ITEMS * DIM)


@cache
def party() -> Party:
    spec = VectorSpec(
        segments=(
            SegmentSpec(name="table", length=N_ITEMS * DIM, max_abs_sum=2**20, entries=KEPT),
            SegmentSpec(name="counts", length=COUNTS, max_abs_sum=8, signed=False),
        ),
        max_summands=4,
    )
    return make_party(Paillier, "single-2048", spec)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(changes=st.lists(CHANGE, min_size=1, max_size=4))
def test_it_is_the_sum_of_what_top_k_keeps(changes):
    """Values of few sizes: most are tied, some are zero, sums cancel."""
    topk = UPDATES["topk"](UpdateSettings(structure="topk", ratio=KEPT / (N_ITEMS * DIM)), DIM)
    total, wanted = party().protection.accumulator(party().context), [0] * (N_ITEMS * DIM)
    for change in changes:
        kept = topk.compress(np.array(change, dtype=np.float64).reshape(N_ITEMS, DIM), N_ITEMS)
        values = np.rint(kept).astype(np.int64).reshape(-1).tolist()
        total.add(party().member.protect(np.array([*values, 1, 0], dtype=np.int64)))
        # By the definition: the largest magnitudes, of equal ones the lowest indices.
        order = sorted(range(len(change)), key=lambda place: (-abs(change[place]), place))
        for place in order[:KEPT]:
            wanted[place] += change[place]
    found = party().member.reveal(total.finish(), len(changes))
    assert found.tolist() == [*wanted, len(changes), 0]
