"""The length of a contribution is bounded for certain, in integers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.privacy.clipping import clipped_to, shrunk_to


def squared(values: np.ndarray) -> int:
    return sum(value * value for value in values.tolist())


@given(
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=60),
    st.integers(1, 2**41),
)
def test_no_contribution_is_longer_than_the_bound(given_values, bound):
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
def test_long_contributions_keep_their_direction(bound, seed):
    values = np.random.default_rng(seed).integers(-(2**30), 2**30, size=5000)
    found, shrunk = clipped_to(values, bound)
    assert shrunk
    exact = values / math.sqrt(squared(values)) * bound
    assert np.abs(found - exact).max() <= 1.0 + bound * 1e-8


def test_what_is_short_enough_is_left_alone():
    found, shrunk = clipped_to(np.array([3, -4]), 6)
    assert found.tolist() == [3, -4] and not shrunk


def test_what_is_too_long_is_shrunk_towards_zero():
    """(30, -40) has length 50; a tenth of it is (3, -4), a hair less rounds to (2, -3)."""
    found, shrunk = clipped_to(np.array([30, -40]), 5)
    assert shrunk and found.tolist() == [2, -3]


@pytest.mark.slow
def test_two_million_values_do_not_slip_past_the_bound():
    """All equal, so that every rounding error of the sum of squares has the same sign."""
    values = np.full(2_000_000, 12_345, dtype=np.int64)
    bound = int(12_345 * math.sqrt(2_000_000))
    found, _ = clipped_to(values, bound)
    assert squared(found) <= bound * bound


def several(**tensors: list[object]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(own, dtype=torch.float64) for name, own in tensors.items()}


def test_all_tensors_of_a_user_are_one_contribution():
    """User 0 has (3, 4) and 12, of length 13; user 1 has (30, 40) and 0, of length 50."""
    values = several(rows=[[[3.0], [4.0]], [[30.0], [40.0]]], whole=[[12.0], [0.0]])
    found, longer = shrunk_to(values, 14)
    assert longer.tolist() == [False, True]
    assert found["rows"][0].tolist() == [[3.0], [4.0]] and found["whole"][0].tolist() == [12.0]
    # 14 / 50 of (30, 40) is (8.4, 11.2), and towards zero (8, 11).
    assert found["rows"][1].tolist() == [[8.0], [11.0]] and found["whole"][1].tolist() == [0.0]
    found, longer = shrunk_to(values, 12)
    assert longer.tolist() == [True, True]
    # 12 / 13 of (3, 4, 12) is (2.77, 3.69, 11.08).
    assert found["rows"][0].tolist() == [[2.0], [3.0]] and found["whole"][0].tolist() == [11.0]


@settings(deadline=None)
@given(st.integers(1, 2**41), st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_a_user_is_shrunk_as_if_alone(bound, seed, n_users):
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(0, 12, n_users)
    rows = np.trunc(rng.normal(size=(n_users, 5, 3)) * size[:, None, None])
    whole = np.trunc(rng.normal(size=(n_users, 7)) * size[:, None])
    values = {"rows": torch.from_numpy(rows), "whole": torch.from_numpy(whole)}
    found, longer = shrunk_to(values, bound)
    for user in range(n_users):
        flat = np.concatenate([rows[user].ravel(), whole[user]]).astype(np.int64)
        alone, shrunk = clipped_to(flat, bound)
        together = torch.cat([found["rows"][user].flatten(), found["whole"][user]])
        own = together.to(torch.int64).numpy()
        assert squared(own) <= bound * bound and squared(alone) <= bound * bound
        # Sums of squares are added up in another order, which may move a value by one.
        assert np.abs(own - alone).max() <= 1
        if squared(flat) < (bound * 0.999) ** 2:
            assert not longer[user] and not shrunk and np.array_equal(own, flat)


@settings(deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 500), st.integers(0, 2**32 - 1))
def test_what_is_contributed_to_many_items_counts_as_often(bound, times, seed):
    values = np.random.default_rng(seed).integers(-(2**20), 2**20, size=(1, 7))
    tensor, often = torch.from_numpy(values), torch.tensor([times])
    found, longer = shrunk_to({"": tensor}, bound, often)
    row = found[""][0].to(torch.int64).numpy()
    assert times * squared(row) <= bound * bound
    assert bool(longer) == (not np.array_equal(row, values[0]))
    # As if all of it were written down.
    whole, _ = shrunk_to({"": tensor.repeat(1, times)}, bound)
    assert np.abs(whole[""][0, :7].numpy() - row).max() <= 1
