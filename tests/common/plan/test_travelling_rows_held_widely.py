"""Which items enough users hold, whichever cells report users that they don't have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import held_widely


def plan_of(least: int, corrupt: int) -> Plan:
    return Plan.model_validate(
        {"federation": {"minimum_item_users": least, "corrupt_cells": corrupt}}
    )


@pytest.mark.parametrize(
    ("corrupt", "expected"),
    [
        # Without the largest count of each item 5, 3, 0, 4 and 2 holders are left,
        (1, [True, False, False, True, False]),
        # and without the two largest ones 2, 0, 0, 2 and 1.
        (2, [False, False, False, False, False]),
    ],
)
def test_the_largest_counts_of_each_item_are_left_out(corrupt, expected):
    counts = [
        np.array([2, 0, 900, 2, 1]),
        np.array([3, 900, 0, 2, 1]),
        np.array([900, 3, 0, 2, 1]),
    ]
    assert held_widely(plan_of(4, corrupt), counts).tolist() == expected


def test_the_least_is_enough_and_one_less_is_not():
    counts = [np.array([4, 3]), np.array([4, 900])]
    assert held_widely(plan_of(4, 1), counts).tolist() == [True, False]


@pytest.mark.parametrize(("n_cells", "corrupt"), [(1, 1), (2, 2), (2, 3), (64, 64)])
def test_as_many_cells_as_may_be_corrupt_hold_nothing_widely(n_cells, corrupt):
    counts = [np.array([900, 1])] * n_cells
    assert held_widely(plan_of(1, corrupt), counts).tolist() == [False, False]


def test_counts_as_they_are_kept_do_not_overflow():
    most = np.array([2**31 - 1], dtype=np.int32)
    assert held_widely(plan_of(4, 1), [most] * 4).tolist() == [True]


@given(data=st.data())
def test_an_item_that_passes_has_enough_holders_in_honest_cells(data):
    """Whatever numbers the corrupt cells report, and whichever cells they are."""
    number = st.integers(0, 2**20)
    small = st.integers(0, 8)
    n_items = data.draw(st.integers(1, 4))
    n_corrupt, corrupt = sorted(data.draw(st.tuples(st.integers(0, 3), st.integers(1, 3))))
    corrupt = max(1, corrupt)
    n_honest, least = data.draw(st.integers(0, 5)), data.draw(st.integers(2, 12))
    rows = st.lists(small, min_size=n_items, max_size=n_items)
    honest = [np.array(data.draw(rows)) for _ in range(n_honest)]
    lies = st.lists(st.one_of(small, number), min_size=n_items, max_size=n_items)
    counts = honest + [np.array(data.draw(lies)) for _ in range(n_corrupt)]
    if not counts:
        return
    order = data.draw(st.permutations(range(len(counts))))
    passed = held_widely(plan_of(least, corrupt), [counts[place] for place in order])
    held = np.sum(honest, axis=0) if honest else np.zeros(n_items)
    assert (held[passed] >= least).all()
    if not n_corrupt:
        # It's not stricter than it has to be: without lies the smallest cells decide.
        for item in range(n_items):
            kept = sorted(int(one[item]) for one in counts)[: max(0, len(counts) - corrupt)]
            assert passed[item] == (sum(kept) >= least)
