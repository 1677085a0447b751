"""Limbs: whatever is split and summed is joined to the exact sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.errors import RevealRefused
from fedrec.protection import SegmentSpec, VectorSpec
from fedrec.protection.vector import LimbLayout


@st.composite
def cases(draw: st.DrawFn) -> tuple[VectorSpec, int, list[list[int]]]:
    summands = draw(st.integers(1, 9))
    capacity = draw(st.integers(4 * summands, 2**40))
    signed = draw(st.booleans())
    bound = draw(st.integers(summands, 2**62 - 1))
    segment = SegmentSpec(name="all", length=4, max_abs_sum=bound, signed=signed)
    each = bound // summands
    value = st.integers(-each if signed else 0, each) | st.sampled_from(
        [0, each, -each if signed else each]
    )
    messages = draw(
        st.lists(st.lists(value, min_size=4, max_size=4), min_size=1, max_size=summands)
    )
    return VectorSpec(segments=(segment,), max_summands=summands), capacity, messages


@pytest.mark.slow
@given(cases())
@settings(max_examples=300, deadline=None)
def test_limbs_sum_to_the_exact_values_within_the_capacity(case):
    spec, capacity, messages = case
    layout = LimbLayout.fit(spec, capacity)
    if layout is None:
        assert spec.segments[0].max_abs_sum > capacity
        return
    total = np.zeros(layout.n_slots(spec), dtype=np.int64)
    for message in messages:
        total += layout.split(spec, np.array(message, dtype=np.int64))
        assert np.abs(total).max() <= layout.largest_sum(spec) <= capacity
    joined = layout.join(spec, total, len(messages))
    assert joined.tolist() == [sum(column) for column in zip(*messages, strict=True)]


def test_the_split_by_hand():
    # Capacity 1000 and 10 messages: w = 6, since 10 x 63 <= 1000 < 10 x 127. -100 = -2 x 64 + 28.
    segment = SegmentSpec(name="all", length=1, max_abs_sum=2000)
    spec = VectorSpec(segments=(segment,), max_summands=10)
    layout = LimbLayout.fit(spec, 1000)
    assert layout == LimbLayout(limb_bits=6, limbs=(2,))
    assert layout.split(spec, np.array([-100])).tolist() == [28, -2]
    assert layout.largest_sum(spec) == 630


def test_limbs_outside_their_bounds_are_refused():
    segment = SegmentSpec(name="all", length=1, max_abs_sum=2000)
    spec = VectorSpec(segments=(segment,), max_summands=10)
    layout = LimbLayout(limb_bits=6, limbs=(2,))
    assert layout.join(spec, np.array([126, 0]), 2).tolist() == [126]
    for sums in ([127, 0], [-1, 0], [0, 34], [0, -34], [63, 32]):
        with pytest.raises(RevealRefused):
            layout.join(spec, np.array(sums), 2)
