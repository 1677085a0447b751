"""Rows that are left out of a sum: they are zero, and the others as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from world.plans import plan_of

from fedrec.algorithms.declarations import HOLDER_PAIRS
from fedrec.model.state import SharedState
from fedrec.training.learner import Learner

N_ITEMS, LEAST = 300, 4


def learner_of(name: str, **rounds: Any) -> Learner:
    algorithm = {"name": name} | ({} if name == "ease" else {"dim": 4})
    plan = plan_of(
        federation={"maximum_users": 256, "minimum_item_users": LEAST},
        algorithm=algorithm,
        update={"structure": "dense"},
        rounds={"total": 5} | rounds,
    )
    return Learner(plan, N_ITEMS, device="cpu")


def counted(learner: Learner, rng: np.random.Generator) -> SharedState:
    """Return a version in which about three of four items are active."""
    return learner.server.initial_shared().with_holders(rng.integers(LEAST - 1, LEAST + 3, N_ITEMS))


def drawn(learner: Learner, shared: SharedState, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a sum in which no value is zero, also where rows belong to no item."""
    return rng.integers(1, 5, learner.server.travelling.layout("train", shared).length)


@pytest.mark.parametrize("name", ["fedals", "fedmf", "fedncf", "fedrap", "pfedclr", "pfedrec"])
def test_rows_of_item_tables_and_their_counts(name):
    rng, learner = np.random.default_rng(3), learner_of(name)
    shared = counted(learner, rng)
    vector, kept = drawn(learner, shared, rng), rng.random(N_ITEMS) < 0.5
    before = vector.copy()
    found = learner.server.travelling.with_rows("train", shared, vector, kept)
    layout = learner.server.travelling.layout("train", shared)
    items = learner.server.travelling.rows("train", shared).index.tolist()
    expected, start = vector.copy(), 0
    for tensor in layout.tensors:
        width = tensor.size // layout.n_rows if tensor.per_item else 0
        for row in range(layout.n_rows if tensor.per_item else 0):
            if row >= len(items) or not kept[items[row]]:
                expected[start + row * width : start + (row + 1) * width] = 0
        start += tensor.size
    for row in range(layout.n_rows):
        if row >= len(items) or not kept[items[row]]:
            expected[start + row] = 0
    assert np.array_equal(found, expected)
    assert np.array_equal(vector, before), "the sum itself stays as it was"
    assert 0 < np.count_nonzero(found) < len(found)


def test_the_counts_of_a_count_round():
    rng, learner = np.random.default_rng(4), learner_of("fedals")
    shared = learner.server.initial_shared()
    layout = learner.server.travelling.layout("count", shared)
    vector, kept = rng.integers(1, 5, layout.length), rng.random(N_ITEMS) < 0.5
    found = learner.server.travelling.with_rows("count", shared, vector, kept)
    expected = np.where(kept, vector[:N_ITEMS], 0)
    assert np.array_equal(found[:N_ITEMS], expected)
    assert np.array_equal(found[N_ITEMS:], vector[N_ITEMS:])
    assert np.array_equal(learner.server.travelling.counts("count", shared, found), expected)


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_pairs_of_an_item_that_is_left_out_in_every_part_of_the_products(begun):
    """Each round sums the pairs behind those that earlier rounds summed."""
    rng, learner = np.random.default_rng(5), learner_of("ease")
    shared = counted(learner, rng)
    for number in range(2, 2 + begun):
        shared = learner.server.apply("train", number, shared, drawn(learner, shared, rng))
    layout = learner.server.travelling.layout("train", shared)
    (tensor,) = (one for one in layout.tensors if one.counted_by == HOLDER_PAIRS)
    first = len(shared.kept[tensor.name])
    assert (first > 0) == (begun > 0)
    vector, kept = drawn(learner, shared, rng), rng.random(N_ITEMS) < 0.5
    found = learner.server.travelling.with_rows("train", shared, vector, kept)
    items = learner.server.travelling.rows("train", shared).index.tolist()
    pairs = [(low, high) for high in range(layout.n_rows) for low in range(high)]
    expected = layout.changes_of(vector.copy())[tensor.name].reshape(-1)
    for place, rows in enumerate(pairs[first : first + len(expected)]):
        if any(row >= len(items) or not kept[items[row]] for row in rows):
            expected[place] = 0
    values = layout.changes_of(found)[tensor.name].reshape(-1)
    whole = min(len(expected), len(pairs) - first)
    assert np.array_equal(values[:whole], expected[:whole])
    assert 0 < np.count_nonzero(values[:whole]) < whole
