"""What of an opened sum is refused; in the conformance suites honest ones are held to it."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from common.training.honest_sum import (
    ACTIVE,
    COUNTS,
    MOST_USERS,
    N_CLIENTS,
    N_ITEMS,
    N_TRAINED,
    STEPS,
    Sum,
    check,
    plan_of,
)

from fedrec.identity.cells import Partition, Standing
from fedrec.ids import ClientId
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.layout import Layout
from fedrec.plan.travelling_rows import ActiveRows
from fedrec.training.bounds import SumTerms, most_users


@pytest.fixture
def total():
    return Sum.of(plan_of())


def test_users_who_all_moved_as_far_as_they_may(total):
    table = total.part("item_embedding")
    table[:, 0], table[:, 1] = STEPS * np.array(COUNTS), -STEPS * np.array(COUNTS)
    total.check()


@pytest.mark.parametrize(("row", "item"), [(0, "item row 0"), (1, "item row 1"), (2, "item row 3")])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_further(total, row, item, sign):
    most = STEPS * COUNTS[row]
    total.part("item_embedding")[row, 1] = sign * (most + 1)
    total.refused(
        f"item_embedding of {item} is {sign * (most + 1)}", f"allowed range is {-most} to {most}"
    )


def test_a_row_that_no_user_touched(total):
    total.counts[1] = 0
    total.part("item_embedding")[1, 0] = 1
    total.refused("item_embedding of item row 1 is 1, but the allowed range is 0 to 0")


@pytest.mark.parametrize("row", [3, 4])
def test_rows_without_an_item(total, row):
    total.part("item_embedding")[row, 0] = 1
    total.refused(f"item_embedding of padding row {row} is 1")
    total.part("item_embedding")[row, 0] = 0
    total.counts[row] = 1
    total.refused(f"counts of padding row {row} is 1")


def test_more_holders_than_users_who_trained(total):
    total.counts[2] = N_TRAINED
    total.check()
    total.counts[2] += 1
    total.refused("counts of item row 3 is 4, but the allowed range is 0 to 3")


def test_a_negative_denominator(total):
    total.counts[0] = -1
    total.refused("counts of item row 0 is -1, but the allowed range is 0 to 3")


def test_more_users_than_its_clients_have(total):
    total.metric("participants", MOST_USERS)
    total.check()
    total.metric("participants", MOST_USERS + 1)
    total.refused("participants is 9, but the allowed range is 0 to 8")


# Of a user at most: a loss of 32 in units of 2^-15, and 2^20 clipped values. Ranks are of those who
# were measured, here two, with gains in units of 2^-20.
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("loss", 3 * 32 * 2**15),
        ("clipped_values", 3 * 2**20),
        ("clipped_users", 3),
        ("abstained", N_CLIENTS),
        ("model.validation.users", MOST_USERS),
        ("model.validation.hits", 2),
        ("model.validation.gain", 2 * 2**20),
        ("model.validation.reciprocal", 2 * 2**20),
        ("local.test.users", MOST_USERS),
        ("local.test.hits", 0),
    ],
)
def test_every_metric(total, name, most):
    total.metric("model.validation.users", 2)
    total.metric(name, most)
    total.check()
    total.metric(name, most + 1)
    total.refused(f"{name} is {most + 1}, but the allowed range is 0 to {most}")
    total.metric(name, -1)
    total.refused(f"{name} is -1")


@pytest.mark.parametrize("name", ["item_embedding", "counts", "participants"])
def test_a_round_that_measures_has_nothing_else(name):
    total = Sum.of(plan_of(), kind="evaluate")
    total.vector[:] = 0
    total.metric("model.test.users", MOST_USERS)
    total.check()
    if name == "participants":
        total.metric(name, 1)
        total.refused("participants is 1, but the allowed range is 0 to 0")
        return
    (total.counts if name == "counts" else total.part(name).reshape(-1))[0] = 1
    total.refused("In the sum of a round of kind evaluate", f"{name} of item row 0 is 1")


def test_a_count_round():
    layout = Layout.counting(plan_of(), N_ITEMS)
    total = Sum(layout, kind="count", rows=ActiveRows.whole(N_ITEMS))
    total.vector[:] = 0
    total.counts[:] = MOST_USERS
    total.check()
    total.counts[4] += 1
    total.refused("counts of item row 4 is 9, but the allowed range is 0 to 8")
    total.counts[4] = 0
    total.metric("participants", 1)
    total.refused("participants is 1, but the allowed range is 0 to 0")


def test_a_mean_over_the_users():
    """PFedRec divides by every user who trained, whatever they touched."""
    total = Sum.of(plan_of(algorithm={"name": "pfedrec", "dim": 2}))
    total.part("users")[0] = 2
    table = total.part("item_embedding")
    table[1] = [2 * STEPS, -2 * STEPS]
    total.check()
    total.part("users")[0] = 1
    total.refused("item_embedding of item row 1 is 32, but the allowed range is -16 to 16")
    total.part("users")[0] = N_TRAINED + 1
    total.refused("users is 4, but the allowed range is 0 to 3")
    total.part("users")[0] = -1
    total.refused("users is -1")
    # Who claims to count rows that no mean is made of has another aim.
    total.part("users")[0] = 2
    total.counts[0] = 1
    total.refused("counts of item row 0 is 1, but the allowed range is 0 to 0")


def test_a_weighed_mean():
    """FedNCF weighs networks by items, of which a user counts 4096 at most."""
    total = Sum.of(plan_of(algorithm={"name": "fedncf", "dim": 2}))
    samples = 3 * 4096
    total.part("samples")[0] = samples
    total.part("bias_1")[4] = -samples * STEPS
    total.check()
    total.part("bias_1")[4] -= 1
    total.refused("bias_1 at position 4 is -196609, but the allowed range is -196608 to 196608")
    total.part("bias_1")[4] = 0
    total.part("samples")[0] += 1
    total.refused("samples is 12289, but the allowed range is 0 to 12288")


def test_a_mean_of_every_entry():
    plan = plan_of(update={"structure": "scolr", "rank": 2, "normaliser": "entry"})
    total = Sum.of(plan)
    total.part("entries")[2] = [2, 1]
    total.part("item_embedding")[2] = [-2 * STEPS, STEPS]
    total.check()
    total.part("item_embedding")[2, 1] += 1
    total.refused("item_embedding of item row 3 is 17, but the allowed range is -16 to 16")
    total.part("item_embedding")[2, 1] = 0
    total.part("entries")[2, 1] = 3
    total.refused("entries of item row 3 is 3, but the allowed range is 0 to 2")


def test_least_squares():
    plan = plan_of(algorithm={"name": "fedals", "dim": 2}, update={"clip": 2.0})
    total = Sum.of(plan)
    total.part("users")[0] = 2
    total.part("gram")[:] = [2 * STEPS, -2 * STEPS, 0]
    total.part("pull")[1] = [STEPS, -STEPS]
    total.check()
    total.part("gram")[2] = 2 * STEPS + 1
    total.refused("gram at position 2 is 33")


def test_holders_of_an_earlier_count():
    """What is the same in every round is counted once: rows are not counted any more."""
    layout = replace(
        Layout.of(plan_of(algorithm={"name": "sketch", "dim": 2}), N_ITEMS), counts_rows=False
    )
    holders = np.array([2, 1, 50, 3, 0])
    total = Sum(layout, holders=holders)
    most = 1 << next(t.fraction_bits for t in layout.tensors if t.name == "product")
    total.part("product")[:3, 0] = most * holders[ACTIVE]
    total.check()
    total.part("product")[2, 0] += 1
    total.refused("product of item row 3", f"allowed range is {-3 * most} to {3 * most}")
    total.part("product")[2, 0] = 0
    total.counts[0] = 1
    total.refused("counts of item row 0 is 1, but the allowed range is 0 to 0")


def test_grades_are_of_every_user_who_is_measured():
    """Also of users who have nothing to train on."""
    total = Sum.of(plan_of(algorithm={"name": "sketch", "dim": 2}, rounds={"total": 3}))
    total.part("grades")[:] = MOST_USERS << 20
    total.check()
    total.part("grades")[1] += 1
    total.refused("grades at position 1")


def test_a_rank_that_a_client_gives_its_sum_stays_in_the_rows_range():
    """The nearest matrix of rank 1 turns the row (1, 1) to an axis at pi / 8: (1.21, .5)."""
    plan = plan_of(update={"structure": "svd", "rank": 1, "compress": "client"})
    algorithm = algorithm_of(plan, 2)
    along = 1000 * np.array([math.cos(math.pi / 8), math.sin(math.pi / 8)])
    change = np.stack([along, [STEPS, STEPS]]).round().astype(np.int64)
    found, n_clipped = algorithm.sent.compress({"item_embedding": change}, np.array([100, 1]))
    assert found["item_embedding"][1].tolist() == [STEPS, 8]
    assert n_clipped == 1


def test_members_have_as_many_users_as_the_plan_says_of_all():
    known = (
        Standing(client_id=ClientId("a"), users_cap=5),
        Standing(client_id=ClientId("b")),
        Standing(client_id=ClientId("c"), users_cap=7),
    )
    roster: Any = SimpleNamespace(partition=Partition(standings=known))
    clients = [ClientId(name) for name in "abcd"]
    assert most_users(plan_of(), roster, clients[:2]) == 64
    assert most_users(plan_of(), roster, clients[3:]) == 64
    assert most_users(plan_of(), roster, [clients[0], clients[2]]) == 12


@pytest.mark.slow
def test_memory_beside_a_large_sum():
    """105,000 rows of 64 values are 54 MB; what is made beside them is a fraction of that."""
    n_items = 105_000
    layout = Layout.of(plan_of(algorithm={"name": "fedmf", "dim": 64}), n_items, n_items)
    vector = np.ones(layout.length, dtype=np.int64)
    vector[layout.metrics_slice] = 0
    vector[layout.metrics_slice][0] = 1
    terms = SumTerms(
        kind="train",
        layout=layout,
        rows=ActiveRows.whole(n_items),
        most_users=MOST_USERS,
        n_clients=N_CLIENTS,
    )
    tracemalloc.start()
    try:
        check(terms, vector)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < vector.nbytes / 6
