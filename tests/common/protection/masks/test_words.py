"""Words of the ring, and the plan: hand-derived sizes, exact edges, named refusals."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest
from common.protection.masks.cohort import keystream
from hypothesis import given
from hypothesis import strategies as st

from fedrec.errors import MalformedUpdate, PlanMismatch, RevealRefused, SettingsError
from fedrec.protection.masks import MaskWords, plan_masks
from fedrec.protection.masks.keys import Words, add_mask
from fedrec.protection.vector import SegmentSpec, VectorSpec


def spec_of(bound: int, *, summands: int = 4, length: int = 3, signed: bool = True) -> VectorSpec:
    segment = SegmentSpec(name="items", length=length, max_abs_sum=bound, signed=signed)
    return VectorSpec(segments=(segment,), max_summands=summands)


def added(vectors: Iterable[Words], n_wide: int) -> Words:
    """Return the sum by Python's integers: two words stand for one number modulo 2^64."""
    rows = [vector.tolist() for vector in vectors]
    total = [sum(column) for column in zip(*rows, strict=True)]
    for low in range(0, 2 * n_wide, 2):
        total[low + 1] += total[low] >> 32
    return np.array([number % 2**32 for number in total], dtype=np.uint32)


def test_a_value_takes_four_bytes_up_to_31_bits_and_a_sign():
    narrow, wide = plan_masks(spec_of(2**31 - 1)), plan_masks(spec_of(2**31))
    assert (narrow.n_slots, narrow.limb_bits, narrow.message_bytes) == (3, 0, 44 + 12)
    assert (wide.n_slots, wide.message_bytes) == (6, 44 + 24)
    widest = plan_masks(spec_of(2**62 - 1, summands=2**30))
    assert widest.message_bytes == 44 + 24


def test_only_wide_segments_take_eight_bytes():
    """Three narrow values around two wide ones: 44 + 3 x 4 + 2 x 8 bytes, the wide ones first."""
    spec = VectorSpec(
        segments=(
            SegmentSpec(name="items", length=2, max_abs_sum=100),
            SegmentSpec(name="wide", length=2, max_abs_sum=2**40),
            SegmentSpec(name="counts", length=1, max_abs_sum=9, signed=False),
        ),
        max_summands=4,
    )
    words = MaskWords(spec, plan_masks(spec))
    assert (words.n_words, words.n_wide, words.plan.message_bytes) == (7, 2, 72)
    encoded = words.encode(np.array([-1, 2, -3, 2**33 + 5, 7], dtype=np.int64))
    assert encoded.tolist() == [2**32 - 3, 2**32 - 1, 5, 2, 2**32 - 1, 2, 7]
    assert words.decode(encoded, 1).tolist() == [-1, 2, -3, 2**33 + 5, 7]


def test_a_hundred_thousand_values_take_at_most_4_1_bytes_each():
    plan = plan_masks(spec_of(2**31 - 1, summands=1000, length=100_000))
    assert plan.message_bytes == 400_044
    assert plan.message_bytes <= 4.1 * plan.n_values


@pytest.mark.parametrize("bound", [2**31 - 1, 2**31, 2**40, 2**62 - 1])
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_at_the_edge_are_exact(bound, sign):
    """Four messages whose sum just reaches the bound, added in the ring."""
    words = MaskWords(spec_of(bound), plan_masks(spec_of(bound)))
    values = np.array([bound // 4 * sign, bound // 4 * sign, 0], dtype=np.int64)
    rest = np.array([(bound % 4) * sign, 0, 0], dtype=np.int64)
    vectors = [values, values, values, values + rest]
    total = added([words.encode(vector) for vector in vectors], words.n_wide)
    decoded = words.decode(total, 4)
    assert decoded.tolist() == [bound * sign, bound // 4 * 4 * sign, 0]


@pytest.mark.slow
@given(data=st.data(), bound=st.integers(1, 2**62 - 1), summands=st.integers(1, 50))
def test_sums_modulo_the_ring_are_the_sums(data, bound, summands):
    spec = spec_of(bound, summands=summands)
    words = MaskWords(spec, plan_masks(spec))
    part = bound // summands
    numbers = st.lists(st.integers(-part, part), min_size=3, max_size=3)
    vectors = [np.array(data.draw(numbers), dtype=np.int64) for _ in range(summands)]
    total = added([words.encode(vector) for vector in vectors], words.n_wide)
    assert words.decode(total, summands).tolist() == np.sum(vectors, axis=0).tolist()


@given(data=st.data(), bound=st.sampled_from([2**31 - 1, 2**40, 2**62 - 1]))
def test_summed_words_say_the_sum_and_nothing_else(data, bound):
    """Other vectors with the same sum give the same words, so that noise in it hides them all."""
    words = MaskWords(spec_of(bound), plan_masks(spec_of(bound)))
    numbers = st.lists(st.integers(-bound // 8, bound // 8), min_size=3, max_size=3)
    first, second, moved = (np.array(data.draw(numbers), dtype=np.int64) for _ in range(3))
    one = added([words.encode(first), words.encode(second)], words.n_wide)
    other = added([words.encode(first + moved), words.encode(second - moved)], words.n_wide)
    assert one.tolist() == other.tolist()


def test_sums_that_do_not_fit_are_refused_by_name():
    with pytest.raises(SettingsError, match="'items' has max_abs_sum"):
        spec_of(2**62)


@pytest.mark.parametrize("value", [2**31, -(2**31)])
def test_values_beyond_the_clip_are_refused_not_wrapped(value):
    words = MaskWords(spec_of(2**31 - 1), plan_masks(spec_of(2**31 - 1)))
    with pytest.raises(MalformedUpdate, match="Clip"):
        words.encode(np.array([value, 0, 0], dtype=np.int64))


def test_a_sum_that_honest_messages_cannot_have_is_refused():
    words = MaskWords(spec_of(100), plan_masks(spec_of(100)))
    with pytest.raises(RevealRefused):
        words.decode(np.array([101, 0, 0], dtype=np.uint32), 2)


def test_messages_of_other_plans_and_lengths_are_refused():
    words = MaskWords(spec_of(100), plan_masks(spec_of(100)))
    message = words.message(words.encode(np.array([1, -2, 3], dtype=np.int64)))
    assert words.open(message).tolist() == [1, 2**32 - 2, 3]
    other = MaskWords(spec_of(101), plan_masks(spec_of(101)))
    for damaged in (
        message[:-1],
        message + b"\0",
        b"",
        other.message(np.zeros(3, dtype=np.uint32)),
    ):
        with pytest.raises(MalformedUpdate):
            words.open(damaged)
    with pytest.raises(PlanMismatch):
        MaskWords(spec_of(100), other.plan)


def test_another_plan_is_refused():
    plan = plan_masks(spec_of(2**40))
    changed = dataclasses.replace(plan, limb_bits=plan.limb_bits - 1)
    with pytest.raises(PlanMismatch):
        MaskWords(spec_of(2**40), changed)


@pytest.mark.parametrize("n_wide", [0, 3, 5])
def test_masks_are_added_and_taken_off_in_place(n_wide):
    start = np.full(10, 2**32 - 1, dtype=np.uint32)
    words = start.copy()
    key = b"k" * 32
    add_mask(words, key, 1, n_wide=n_wide)
    assert words.tolist() == added([start, keystream(key, 10)], n_wide).tolist()
    add_mask(words, key, -1, n_wide=n_wide)
    assert (words == start).all()


def test_wide_values_carry_across_the_pieces_of_a_mask():
    """2^18 words are one piece; the 200,000 wide values reach into the second one."""
    start = np.full(500_000, 2**32 - 1, dtype=np.uint32)
    words = start.copy()
    add_mask(words, b"k" * 32, 1, n_wide=200_000)
    stream = keystream(b"k" * 32, 500_000)
    wide = start[:400_000].view("<u8") + stream[:400_000].view("<u8")
    assert (words[:400_000].view("<u8") == wide).all()
    assert (words[400_000:] == start[400_000:] + stream[400_000:]).all()


def test_long_masks_are_one_stream():
    """Masks are made piece by piece; the pieces must follow each other."""
    long = keystream(b"k" * 32, 600_000)
    assert (keystream(b"k" * 32, 300_000) == long[:300_000]).all()
    assert len(np.unique(long[:: 2**18])) == 3
