"""What of an opened sum is refused; in the conformance suites honest ones are held to it."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrec.config.algorithm import algorithm_of
from fedrec.config.layout import Layout
from fedrec.config.noise import mechanism_of
from fedrec.config.rows import ActiveRows
from fedrec.config.schema import Plan
from fedrec.errors import SumOutOfBounds
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.identity.cells import Partition, Standing
from fedrec.ids import ClientId
from fedrec.privacy.mechanism import Mechanism
from fedrec.training.bounds import SumTerms, check_sum, most_users

N_ITEMS = 5
ACTIVE = np.array([0, 1, 3])
"""Of five items; two rows of zeros stand behind theirs."""
COUNTS = [3, 1, 2, 0, 0]
N_TRAINED, MOST_USERS, N_CLIENTS = 3, 8, 4
BITS = 4
STEPS = 1 << BITS
"""What a user adds to a value at most, in grid steps."""


def check(terms: SumTerms, vector: NDArray[np.int64]) -> None:
    """Check a sum that lies in one vector."""
    layout = terms.layout
    parts = layout.changes_of(vector), vector[layout.count_slice], vector[layout.metrics_slice]
    check_sum(terms, *parts)


def plan_of(**sections: Any) -> Plan:
    base: dict[str, dict[str, Any]] = {
        "federation": {"maximum_users": 64, "minimum_item_users": 1},
        "algorithm": {} if "algorithm" in sections else {"name": "fedmf", "dim": 2},
        "update": {"structure": "dense", "fraction_bits": BITS},
        "evaluation": {"at": 5},
    }
    return Plan.model_validate(
        {name: base.get(name, {}) | sections.get(name, {}) for name in base | sections}
    )


class Sum:
    """A training round's sum that is within its bounds, and at each of them where that is asked."""

    def __init__(self, layout: Layout, **terms: Any) -> None:
        self.layout = layout
        self.vector = np.zeros(layout.length, dtype=np.int64)
        rows = ActiveRows(n_items=N_ITEMS, index=ACTIVE, n_rows=layout.n_rows)
        holders = np.zeros(N_ITEMS, dtype=np.int64)
        holders[ACTIVE] = COUNTS[: len(ACTIVE)]
        self.terms = SumTerms(
            **{
                "kind": "train",
                "layout": layout,
                "rows": rows,
                "most_users": MOST_USERS,
                "n_clients": N_CLIENTS,
                "holders": None if layout.counts_rows else holders,
                **terms,
            }
        )
        if layout.counts_rows and layout.mechanism is None:
            self.counts[:] = COUNTS
        if layout.mechanism is None:
            self.metric("participants", N_TRAINED)

    @classmethod
    def of(cls, plan: Plan, **terms: Any) -> Sum:
        return cls(Layout.of(plan, N_ITEMS, N_ITEMS), **terms)

    @property
    def counts(self) -> NDArray[np.int64]:
        return self.vector[self.layout.count_slice]

    def part(self, name: str) -> NDArray[np.int64]:
        """Return a tensor of the vector, to be written into."""
        parts = zip(self.layout.tensors, self.layout._parts(), strict=True)
        found = next(part for tensor, (_, part) in parts if tensor.name == name)
        shape = next(tensor.shape for tensor in self.layout.tensors if tensor.name == name)
        return self.vector[found].reshape(shape)

    def metric(self, name: str, value: int) -> None:
        self.vector[self.layout.metrics_slice][METRIC_NAMES.index(name)] = value

    def check(self) -> None:
        check(self.terms, self.vector)

    def refused(self, *words: str) -> None:
        with pytest.raises(SumOutOfBounds) as caught:
            self.check()
        assert caught.value.code == "sum_out_of_bounds"
        for word in words:
            assert word in caught.value.message, caught.value.message


@pytest.fixture
def total() -> Sum:
    return Sum.of(plan_of())


def test_users_who_all_moved_as_far_as_they_may(total: Sum) -> None:
    table = total.part("item_embedding")
    table[:, 0], table[:, 1] = STEPS * np.array(COUNTS), -STEPS * np.array(COUNTS)
    total.check()


@pytest.mark.parametrize(("row", "item"), [(0, "item row 0"), (1, "item row 1"), (2, "item row 3")])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_further(total: Sum, row: int, item: str, sign: int) -> None:
    most = STEPS * COUNTS[row]
    total.part("item_embedding")[row, 1] = sign * (most + 1)
    total.refused(
        f"item_embedding of {item} is {sign * (most + 1)}", f"allowed is {-most} to {most}"
    )


def test_a_row_that_nobody_touched(total: Sum) -> None:
    total.counts[1] = 0
    total.part("item_embedding")[1, 0] = 1
    total.refused("item_embedding of item row 1 is 1, allowed is 0 to 0")


@pytest.mark.parametrize("row", [3, 4])
def test_rows_without_an_item(total: Sum, row: int) -> None:
    total.part("item_embedding")[row, 0] = 1
    total.refused(f"item_embedding of row {row}, padding, is 1")
    total.part("item_embedding")[row, 0] = 0
    total.counts[row] = 1
    total.refused(f"counts of row {row}, padding, is 1")


def test_more_holders_than_users_who_trained(total: Sum) -> None:
    total.counts[2] = N_TRAINED
    total.check()
    total.counts[2] += 1
    total.refused("counts of item row 3 is 4, allowed is 0 to 3")


def test_a_negative_denominator(total: Sum) -> None:
    total.counts[0] = -1
    total.refused("counts of item row 0 is -1, allowed is 0 to 3")


def test_more_users_than_its_clients_have(total: Sum) -> None:
    total.metric("participants", MOST_USERS)
    total.check()
    total.metric("participants", MOST_USERS + 1)
    total.refused("participants is 9, allowed is 0 to 8")


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
def test_every_metric(total: Sum, name: str, most: int) -> None:
    total.metric("model.validation.users", 2)
    total.metric(name, most)
    total.check()
    total.metric(name, most + 1)
    total.refused(f"{name} is {most + 1}, allowed is 0 to {most}")
    total.metric(name, -1)
    total.refused(f"{name} is -1")


@pytest.mark.parametrize("name", ["item_embedding", "counts", "participants"])
def test_a_round_that_measures_has_nothing_else(name: str) -> None:
    total = Sum.of(plan_of(), kind="evaluate")
    total.vector[:] = 0
    total.metric("model.test.users", MOST_USERS)
    total.check()
    if name == "participants":
        total.metric(name, 1)
        total.refused("participants is 1, allowed is 0 to 0")
        return
    (total.counts if name == "counts" else total.part(name).reshape(-1))[0] = 1
    total.refused("In the sum of a round of kind evaluate", f"{name} of item row 0 is 1")


def test_a_count_round() -> None:
    layout = Layout.counting(plan_of(), N_ITEMS)
    total = Sum(layout, kind="count", rows=ActiveRows.whole(N_ITEMS))
    total.vector[:] = 0
    total.counts[:] = MOST_USERS
    total.check()
    total.counts[4] += 1
    total.refused("counts of item row 4 is 9, allowed is 0 to 8")
    total.counts[4] = 0
    total.metric("participants", 1)
    total.refused("participants is 1, allowed is 0 to 0")


def test_a_mean_over_the_users() -> None:
    """PFedRec divides by everybody who trained, whatever they touched."""
    total = Sum.of(plan_of(algorithm={"name": "pfedrec", "dim": 2}))
    total.part("users")[0] = 2
    table = total.part("item_embedding")
    table[1] = [2 * STEPS, -2 * STEPS]
    total.check()
    total.part("users")[0] = 1
    total.refused("item_embedding of item row 1 is 32, allowed is -16 to 16")
    total.part("users")[0] = N_TRAINED + 1
    total.refused("users is 4, allowed is 0 to 3")
    total.part("users")[0] = -1
    total.refused("users is -1")
    # Who claims to count rows that no mean is made of has another aim.
    total.part("users")[0] = 2
    total.counts[0] = 1
    total.refused("counts of item row 0 is 1, allowed is 0 to 0")


def test_a_weighed_mean() -> None:
    """FedNCF weighs networks by items, of which a user counts 4096 at most."""
    total = Sum.of(plan_of(algorithm={"name": "fedncf", "dim": 2}))
    samples = 3 * 4096
    total.part("samples")[0] = samples
    total.part("bias_1")[4] = -samples * STEPS
    total.check()
    total.part("bias_1")[4] -= 1
    total.refused("bias_1 at place 4 is -196609, allowed is -196608 to 196608")
    total.part("bias_1")[4] = 0
    total.part("samples")[0] += 1
    total.refused("samples is 12289, allowed is 0 to 12288")


def test_a_mean_of_every_entry() -> None:
    plan = plan_of(update={"structure": "scolr", "rank": 2, "normaliser": "entry"})
    total = Sum.of(plan)
    total.part("entries")[2] = [2, 1]
    total.part("item_embedding")[2] = [-2 * STEPS, STEPS]
    total.check()
    total.part("item_embedding")[2, 1] += 1
    total.refused("item_embedding of item row 3 is 17, allowed is -16 to 16")
    total.part("item_embedding")[2, 1] = 0
    total.part("entries")[2, 1] = 3
    total.refused("entries of item row 3 is 3, allowed is 0 to 2")


def test_least_squares() -> None:
    plan = plan_of(algorithm={"name": "fedals", "dim": 2}, update={"clip": 2.0})
    total = Sum.of(plan)
    total.part("users")[0] = 2
    total.part("gram")[:] = [2 * STEPS, -2 * STEPS, 0]
    total.part("pull")[1] = [STEPS, -STEPS]
    total.check()
    total.part("gram")[2] = 2 * STEPS + 1
    total.refused("gram at place 2 is 33")


def test_holders_of_an_earlier_count() -> None:
    """What is the same in every round is counted once: nobody counts rows any more."""
    layout = replace(
        Layout.of(plan_of(algorithm={"name": "sketch", "dim": 2}), N_ITEMS), counts_rows=False
    )
    holders = np.array([2, 1, 50, 3, 0])
    total = Sum(layout, holders=holders)
    most = 1 << next(t.fraction_bits for t in layout.tensors if t.name == "product")
    total.part("product")[:3, 0] = most * holders[ACTIVE]
    total.check()
    total.part("product")[2, 0] += 1
    total.refused("product of item row 3", f"allowed is {-3 * most} to {3 * most}")
    total.part("product")[2, 0] = 0
    total.counts[0] = 1
    total.refused("counts of item row 0 is 1, allowed is 0 to 0")


def test_grades_are_of_everybody_who_is_measured() -> None:
    """Also of users who have nothing to train on."""
    total = Sum.of(plan_of(algorithm={"name": "sketch", "dim": 2}, rounds={"total": 3}))
    total.part("grades")[:] = MOST_USERS << 20
    total.check()
    total.part("grades")[1] += 1
    total.refused("grades at place 1")


class CountedBefore(Sum):
    """A sum of rows that counts nobody: its rows are held to what a count round said."""

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
def test_rows_of_items_that_were_counted_before(item: int, times: int) -> None:
    """Of items 0, 1 and 3 users hold 50, 2 and 1 by the count; 2 are the fewest for a row."""
    total = CountedBefore([50, 2, 9, 1] + [0] * (N_ITEMS - 4), least=2)
    assert N_TRAINED < 50
    row = list(ACTIVE).index(item)
    most = times * largest(total)
    total.part("pull")[row] = most
    total.check()
    total.part("pull")[row, 1] = -most - 1
    total.refused(f"pull of item row {item} is {-most - 1}, allowed is {-most} to {most}")


def test_a_count_that_nobody_trained_after() -> None:
    """Every client abstained: there is nothing to divide, and nothing to be divided by."""
    total = CountedBefore([9] * N_ITEMS)
    total.metric("participants", 0)
    total.check()
    total.part("pull")[0, 0] = 1
    total.refused("pull of item row 0 is 1, allowed is 0 to 0")


@pytest.mark.parametrize("first", [0, 1, 7, 10])
def test_pairs_of_items(first: int) -> None:
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
        total.refused(f"pairs at place {place} is {most + 1}, allowed is 0 to {most}")
        pairs[place] = -1
        total.refused(f"pairs at place {place} is -1")
        pairs[place] = most


def test_pairs_of_many_items() -> None:
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
        with pytest.raises(SumOutOfBounds, match=f"pairs at place {place} is"):
            check(terms, vector)
        vector[place] -= 1


def test_a_rank_that_a_client_gives_its_sum_stays_in_the_rows_range() -> None:
    """The nearest matrix of rank 1 turns the row (1, 1) to an axis at pi / 8: (1.21, .5)."""
    plan = plan_of(update={"structure": "svd", "rank": 1, "compress": "client"})
    algorithm = algorithm_of(plan, 2)
    along = 1000 * np.array([math.cos(math.pi / 8), math.sin(math.pi / 8)])
    change = np.stack([along, [STEPS, STEPS]]).round().astype(np.int64)
    found, n_clipped = algorithm.compress({"item_embedding": change}, np.array([100, 1]))
    assert found["item_embedding"][1].tolist() == [STEPS, 8]
    assert n_clipped == 1


# Noise.

NOISY = {"mechanism": "gaussian", "clip": 0.5, "expected_users": 8.0}


def noisy_plan(mechanism: str = "gaussian") -> Plan:
    return plan_of(
        update={"clip": 1.0, "fraction_bits": 16},
        privacy=NOISY | {"mechanism": mechanism},
        federation={"minimum_item_users": 1},
    )


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_sums_with_noise(kind: str) -> None:
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
    total.refused(f"item_embedding of item row 2 is {most + 1}, allowed is {-most} to {most}")


@pytest.mark.parametrize("name", ["counts", "participants"])
def test_nobody_counts_under_noise(name: str) -> None:
    layout = Layout.of(noisy_plan(), N_ITEMS)
    total = Sum(layout, rows=ActiveRows.whole(N_ITEMS))
    if name == "counts":
        total.counts[1] = 1
    else:
        total.metric(name, 1)
    total.refused(name, "is 1, allowed is 0 to 0")


def mechanism(kind: str) -> Mechanism:
    found = mechanism_of(noisy_plan(kind))
    assert found is not None
    return found


@pytest.mark.parametrize("n_shares", [1, 3, 64])
@pytest.mark.parametrize("n_values", [1, 105_000 * 64])
def test_gaussian_noise_is_not_taken_for_an_attack(n_shares: int, n_values: int) -> None:
    """By the normal distribution's own tail; the bound is not much wider than it needs to be."""
    found = mechanism("gaussian")
    deviation = found.share * math.sqrt(n_shares)
    reach = found.reach(n_shares, n_values)
    assert n_values * math.erfc(reach / deviation / math.sqrt(2)) <= 2**-40
    assert n_values * math.erfc(0.9 * reach / deviation / math.sqrt(2)) > 2**-40


@pytest.mark.parametrize("n_values", [1, 105_000 * 64])
def test_laplace_noise_is_not_taken_for_an_attack(n_values: int) -> None:
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


# Who can be in it, and what it takes.


def test_members_have_as_many_users_as_the_plan_says_of_all() -> None:
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


def test_memory_beside_a_large_sum() -> None:
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
