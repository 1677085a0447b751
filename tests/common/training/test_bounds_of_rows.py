"""Bounds of rows and pairs that an earlier round counted, and of noisy sums."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from common.training.honest_sum import (
    ACTIVE,
    MOST_USERS,
    N_CLIENTS,
    N_ITEMS,
    N_TRAINED,
    Sum,
    check,
    plan_of,
)

from fedrec.errors import SumOutOfBounds
from fedrec.plan.layout import Layout
from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ActiveRows
from fedrec.privacy.mechanism import Mechanism
from fedrec.training.bounds import SumTerms


class CountedBefore(Sum):
    """A sum of rows that counts no user: its rows are held to what a count round said."""

    def __init__(self, holders: list[int], **terms: Any) -> None:
        layout = Layout.of(plan_of(algorithm={"name": "fedals", "dim": 2}), N_ITEMS, N_ITEMS)
        given = np.array(holders, dtype=np.int64)
        super().__init__(replace(layout, counts_rows=False), holders=given, **terms)


def largest(total: Sum) -> int:
    """Return what one user adds to a value at most."""
    return next(one.bound for one in total.layout.tensors if one.name == "pull")


@pytest.mark.parametrize(
    ("item", "times"),
    [(0, N_TRAINED), (1, 2), (3, 0)],
    ids=["no more than trained", "as counted", "fewer than may be told apart"],
)
def test_rows_of_items_that_were_counted_before(item, times):
    """Of items 0, 1 and 3 users hold 50, 2 and 1 by the count; 2 are the fewest for a row."""
    total = CountedBefore([50, 2, 9, 1] + [0] * (N_ITEMS - 4), least=2)
    assert N_TRAINED < 50
    row = list(ACTIVE).index(item)
    most = times * largest(total)
    total.part("pull")[row] = most
    total.check()
    total.part("pull")[row, 1] = -most - 1
    total.refused(
        f"pull of item row {item} is {-most - 1}, but the allowed range is {-most} to {most}"
    )


def test_a_count_that_no_user_trained_after():
    """Every client abstained: there is nothing to divide, and nothing to be divided by."""
    total = CountedBefore([9] * N_ITEMS)
    total.metric("participants", 0)
    total.check()
    total.part("pull")[0, 0] = 1
    total.refused("pull of item row 0 is 1, but the allowed range is 0 to 0")


@pytest.mark.parametrize("first", [0, 1, 7, 10])
def test_pairs_of_items(first):
    """Every pair has at most as many holders as the rarer of its items has."""
    plan = plan_of(algorithm={"name": "ease"}, rounds={"total": 2})
    rows = ActiveRows(n_items=N_ITEMS, index=np.arange(5), n_rows=5)
    counts = [3, 1, 2, 0, 3]
    total = Sum.of(plan, rows=rows, begun={"pairs": first}, holders=np.array(counts))
    # Column by column: (0, 1), (0, 2), (1, 2), (0, 3), ... and nothing behind the last.
    every = sorted(combinations(range(5), 2), key=lambda pair: (pair[1], pair[0]))
    allowed = [min(counts[i], counts[j]) for i, j in every][first : first + 5]
    allowed += [0] * (5 - len(allowed))
    pairs = total.part("pairs")
    pairs[:] = allowed
    total.check()
    for place, most in enumerate(allowed):
        pairs[place] = most + 1
        total.refused(
            f"pairs at position {place} is {most + 1}, but the allowed range is 0 to {most}"
        )
        pairs[place] = -1
        total.refused(f"pairs at position {place} is -1")
        pairs[place] = most


@pytest.mark.slow
def test_pairs_of_many_items():
    """Numbers of pairs are found for all places, far behind where float32 would err."""
    n_items = 16_384
    plan = plan_of(algorithm={"name": "ease"}, rounds={"total": 100})
    counts = np.random.default_rng(3).integers(0, N_TRAINED + 1, n_items)
    rows = ActiveRows.whole(n_items)
    first = n_items * (n_items - 1) // 2 - 1_000_000
    layout = Layout.of(plan, n_items)
    vector = np.zeros(layout.length, dtype=np.int64)
    vector[layout.metrics_slice][0] = N_TRAINED
    expected = np.concatenate([np.minimum(counts[:j], counts[j]) for j in range(n_items)])[first:]
    vector[: len(expected)] = expected
    terms = SumTerms(
        kind="train",
        layout=layout,
        rows=rows,
        most_users=MOST_USERS,
        n_clients=N_CLIENTS,
        holders=counts,
        begun={"pairs": first},
    )
    check(terms, vector)
    for place in (0, 123_456, 999_999):
        vector[place] += 1
        with pytest.raises(SumOutOfBounds, match=f"pairs at position {place} is"):
            check(terms, vector)
        vector[place] -= 1


NOISY = {"mechanism": "gaussian", "clip": 0.5, "expected_users": 8.0}


def noisy_plan(mechanism: str = "gaussian") -> Plan:
    return plan_of(
        update={"clip": 1.0, "fraction_bits": 16},
        privacy=NOISY | {"mechanism": mechanism},
        federation={"minimum_item_users": 1},
    )


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_sums_with_noise(kind):
    """Every user adds the clip at most, 2^15 steps, and every client its noise."""
    layout = Layout.of(noisy_plan(kind), N_ITEMS)
    mechanism = layout.mechanism
    assert mechanism is not None and mechanism.bound == 1 << 15
    total = Sum(layout, rows=ActiveRows.whole(N_ITEMS))
    total.vector[:] = layout.add_noise(total.vector, N_CLIENTS)
    total.check()
    most = MOST_USERS * mechanism.bound + mechanism.reach(N_CLIENTS, layout.change_slice.stop)
    total.part("item_embedding")[2, 1] = most
    total.check()
    total.part("item_embedding")[2, 1] += 1
    total.refused(
        f"item_embedding of item row 2 is {most + 1}, but the allowed range is {-most} to {most}"
    )


@pytest.mark.parametrize("name", ["counts", "participants"])
def test_no_user_counts_under_noise(name):
    layout = Layout.of(noisy_plan(), N_ITEMS)
    total = Sum(layout, rows=ActiveRows.whole(N_ITEMS))
    if name == "counts":
        total.counts[1] = 1
    else:
        total.metric(name, 1)
    total.refused(name, "is 1, but the allowed range is 0 to 0")


def mechanism(kind: str) -> Mechanism:
    found = mechanism_of(noisy_plan(kind))
    assert found is not None
    return found


@pytest.mark.parametrize("n_shares", [1, 3, 64])
@pytest.mark.parametrize("n_values", [1, 105_000 * 64])
def test_gaussian_noise_is_not_taken_for_an_attack(n_shares, n_values):
    """By the normal distribution's own tail; the bound is not much wider than it needs to be."""
    found = mechanism("gaussian")
    deviation = found.share * math.sqrt(n_shares)
    reach = found.reach(n_shares, n_values)
    assert n_values * math.erfc(reach / deviation / math.sqrt(2)) <= 2**-40
    assert n_values * math.erfc(0.9 * reach / deviation / math.sqrt(2)) > 2**-40


@pytest.mark.parametrize("n_values", [1, 105_000 * 64])
def test_laplace_noise_is_not_taken_for_an_attack(n_values):
    """Of one value |x| > r has the chance e^-r/b, of the sum of two e^-r/b (1 + r / 2b)."""
    found = mechanism("laplace")
    for n_shares in (1, 2):
        reach = found.reach(n_shares, n_values) / found.share
        chance = math.exp(-reach) * (1.0 + (n_shares - 1) * reach / 2.0)
        assert n_values * chance <= 2**-40
    # Many are as good as normal: their deviation is b sqrt(2 n).
    wide = found.reach(10_000, n_values) / (found.share * math.sqrt(2.0 * 10_000))
    assert n_values * math.erfc(wide / math.sqrt(2)) <= 2**-40
    assert n_values * math.erfc(0.9 * wide / math.sqrt(2)) > 2**-40
