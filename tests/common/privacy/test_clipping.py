"""The length of a contribution is bounded for certain, in integers."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.privacy.clipping import clipped_to


def squared(values: np.ndarray) -> int:
    return sum(value * value for value in values.tolist())


@given(
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=60),
    st.integers(1, 2**41),
)
def test_no_contribution_is_longer_than_the_bound(given_values: list[int], bound: int) -> None:
    values = np.array(given_values, dtype=np.int64)
    found, shrunk = clipped_to(values, bound)
    assert squared(found) <= bound * bound
    # Within the bound for rounding to the nearest (Kairouz et al. 2021), with room.
    assert squared(found) <= bound * bound + len(values) / 4
    if not shrunk:
        assert np.array_equal(found, values)
    assert (np.sign(found) * np.sign(values) >= 0).all()
    assert (np.abs(found) <= np.abs(values)).all()


@settings(deadline=None)
@given(st.integers(1, 10**6), st.integers(0, 2**32 - 1))
def test_long_contributions_keep_their_direction(bound: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-(2**30), 2**30, size=5000)
    found, shrunk = clipped_to(values, bound)
    assert shrunk
    exact = values / math.sqrt(squared(values)) * bound
    assert np.abs(found - exact).max() <= 1.0 + bound * 1e-8


def test_what_is_short_enough_is_left_alone() -> None:
    found, shrunk = clipped_to(np.array([3, -4]), 6)
    assert found.tolist() == [3, -4] and not shrunk


def test_what_is_too_long_is_shrunk_towards_zero() -> None:
    """(30, -40) has length 50; a tenth of it is (3, -4), a hair less rounds to (2, -3)."""
    found, shrunk = clipped_to(np.array([30, -40]), 5)
    assert shrunk and found.tolist() == [2, -3]


def test_two_million_values_do_not_slip_past_the_bound() -> None:
    """All equal, so that every rounding error of the sum of squares has the same sign."""
    values = np.full(2_000_000, 12_345, dtype=np.int64)
    bound = int(12_345 * math.sqrt(2_000_000))
    found, _ = clipped_to(values, bound)
    assert squared(found) <= bound * bound
