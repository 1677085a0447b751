"""Slots: what is packed comes back, sums add up in every slot, and nothing else is accepted."""

from __future__ import annotations

import numpy as np
import pytest
from conformance.protection_suite import extreme, random_vectors
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.errors import RevealRefused
from fedrec.protection import SegmentSpec, VectorSpec
from fedrec.protection.packing import SlotLayout
from fedrec.protection.slot_widths import COUNTER_BITS, SlotWidths, slot_bits

WIDTHS = SlotWidths(capacity_bits=100)
MODULUS = mpz(2) ** (100 + COUNTER_BITS) + 1


def layout_of(
    *segments: tuple[int, int, bool], n_summands: int = 3
) -> tuple[VectorSpec, SlotLayout]:
    spec = VectorSpec(
        segments=tuple(
            SegmentSpec(name=str(at), length=length, max_abs_sum=bound, signed=signed)
            for at, (length, bound, signed) in enumerate(segments)
        ),
        max_summands=n_summands,
    )
    return spec, SlotLayout(spec, WIDTHS)


def test_a_slot_is_as_wide_as_the_range_of_its_sum():
    def bits(bound: int, signed: bool) -> int:
        return slot_bits(SegmentSpec(name="a", length=1, max_abs_sum=bound, signed=signed))

    # -4..4 are nine values, 0..7 eight, 0..8 nine.
    assert (bits(4, True), bits(7, False), bits(8, False)) == (4, 3, 4)
    # 1024 users of at most 2^20 grid steps each: 32 bits of range, 2^31 included.
    assert bits(1024 << 20, True) == 32


def test_packing_by_hand():
    # Two slots of 4 bits and one of 3, all in one block, below a counter at bit 100.
    _, layout = layout_of((2, 4, True), (1, 7, False))
    (block,) = layout.pack(np.array([-1, 3, 5], dtype=np.int64))
    assert block == (1 << 100) - 1 + (3 << 4) + (5 << 8)


def test_no_slot_lies_across_two_blocks():
    # Slots of 40 bits: two fit into 100 bits, so that 5 values take 3 blocks.
    spec, layout = layout_of((5, 2**39 - 1, True))
    assert layout.n_blocks == WIDTHS.n_blocks(spec) == 3
    blocks = layout.pack(np.arange(1, 6, dtype=np.int64))
    assert [block - (1 << 100) for block in blocks] == [1 + (2 << 40), 3 + (4 << 40), 5]


@given(
    segments=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 2**61), st.booleans()), min_size=1, max_size=4
    ),
    count=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    single=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_sums_of_packed_vectors_unpack_to_the_sum(segments, count, seed, single):
    spec, _ = layout_of(*segments, n_summands=5)
    widths = SlotWidths(capacity_bits=100, most_values=1) if single else WIDTHS
    layout = SlotLayout(spec, widths)
    vectors = random_vectors(spec, count, seed)
    packed = [layout.pack(vector) for vector in vectors]
    assert {len(blocks) for blocks in packed} == {widths.n_blocks(spec)}
    assert all(0 < block < MODULUS for blocks in packed for block in blocks)
    total = [sum(blocks) % MODULUS for blocks in zip(*packed, strict=True)]
    found = layout.unpack(total, MODULUS, count)[0]
    assert found.dtype == np.int64
    assert np.array_equal(found, np.sum(vectors, axis=0))


@pytest.mark.parametrize("sign", [1, -1])
def test_slots_at_their_bounds_do_not_touch_each_other(sign):
    spec, layout = layout_of((7, 2**20, True), (5, 1000, False), (2, 2**61, True))
    vector = extreme(spec, sign)
    vector[1::2] = 0
    assert np.array_equal(layout.unpack(layout.pack(vector), MODULUS, 1)[0], vector)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (1 << 100, "counters"),
        (-(1 << 100), "counters"),
        (1 << (100 + 40), "counters"),
        # Bits 11 to 99 hold nothing.
        (1 << 11, "bits that no message"),
        (1 << 99, "bits that no message"),
        # The first slot takes 4 bits and its sum stays within -4..4: 5 is one too many.
        (5, "bounds"),
        (-5, "bounds"),
    ],
)
def test_what_no_messages_sum_to_is_refused(change, word):
    _, layout = layout_of((2, 4, True), (1, 7, False))
    zeros = layout.pack(np.zeros(3, dtype=np.int64))
    assert not layout.unpack(zeros, MODULUS, 1)[0].any()
    with pytest.raises(RevealRefused, match=word):
        layout.unpack([(zeros[0] + change) % MODULUS], MODULUS, 1)
