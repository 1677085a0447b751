"""Whatever the table of combinations allows trains two rounds, and every protection opens them.

The data is a checkerboard: users and items are of two colours, and every user holds most items of
its own colour and none of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from conformance.party import plan_of
from numpy.typing import NDArray
from world.plans import params, users_of

from fedrec.data import UserSplit
from fedrec.model.state import SharedState
from fedrec.plan.combinations import COMBINATIONS, find_conflicts
from fedrec.plan.layout import vector_spec
from fedrec.protection import PROTECTIONS
from fedrec.training.learner import Learner
from fedrec.training.server_half import Travelling
from fedrec.updates import UPDATES
from fedrec.wire.messages import RoundKind
from fedrec_lab.simulation.federation import make_adder

pytestmark = pytest.mark.slow

N_CLIENTS, N_USERS, N_ITEMS = 3, 12, 16
FIRST = [(row.algorithm, row.updates[0]) for row in COMBINATIONS]
OTHERS = [(row.algorithm, update) for row in COMBINATIONS for update in row.updates[1:]]
REFUSED = [
    (row.algorithm, update)
    for row in COMBINATIONS
    for update in UPDATES
    if update not in row.updates
]
PRESETS = {"ckks": "lean", "paillier": "packed-2048"}
"""Those whose keys are made in a moment; every other protection has its first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """A round's vectors, one a client, and what it started from."""

    kind: RoundKind
    shared: SharedState
    vectors: list[NDArray[np.int64]]


def plan_under(pair: tuple[str, str], protection: str = "none"):
    preset = PRESETS.get(protection, PROTECTIONS[protection].presets[0])
    return plan_of(
        *pair,
        federation={"minimum_item_users": 1},
        rounds={"minimum_clients": 3, "recompute_limit": 16},
        protection={"name": protection, "preset": preset},
    )


@pytest.fixture(scope="module")
def users():
    return users_of(N_USERS, N_ITEMS, clusters=2, each=7, seed=5)


def rounds_of(learner: Learner, users: UserSplit) -> Iterator[Summed]:
    """Yield the counting round and two of training, each from what the last one published."""
    groups = [users.select(np.arange(first, N_USERS, N_CLIENTS)) for first in range(N_CLIENTS)]
    shared = learner.server.initial_shared()
    private = [learner.local.initial_private(group) for group in groups]
    for round_id, kind in enumerate(("count", "train", "train"), start=1):
        parts = [
            learner.contribute(kind, round_id, shared, group, own)
            for group, own in zip(groups, private, strict=True)
        ]
        vectors = [part.vector for part in parts]
        yield Summed(kind=kind, shared=shared, vectors=vectors)
        before, total = shared, np.sum(vectors, axis=0)
        shared = learner.server.apply(kind, round_id, shared, total)
        private = [part.private for part in parts]
        if round_id == 2:  # Sums of the same histories may give the same model again.
            assert shared.canonical_bytes() != before.canonical_bytes()
        if kind == "train":
            assert learner.server.metrics(total).participants == N_USERS
            assert np.isfinite(learner.server.metrics(total).loss or 0.0)
        for values in shared.tensors.values():
            assert np.isfinite(values).all()


@pytest.mark.parametrize("pair", params(*FIRST, long=OTHERS), ids="-".join)
def test_two_rounds_under_every_protection(pair, users):
    learner = Learner(plan_under(pair), N_ITEMS, device="cpu")
    rounds = list(rounds_of(learner, users))
    assert [summed.kind for summed in rounds] == ["count", "train", "train"]
    (row,) = (row for row in COMBINATIONS if row.algorithm == pair[0])
    for protection in row.protections:
        plan = plan_under(pair, protection)
        assert find_conflicts(plan) == []
        add_up, _ = make_adder(plan, vector_spec(plan, N_ITEMS), n_clients=N_CLIENTS, protect=True)
        for summed in rounds:
            layout = Travelling(plan, N_ITEMS).layout(summed.kind, summed.shared)
            total = add_up(summed.vectors, layout.vector_spec)
            assert np.array_equal(total, np.sum(summed.vectors, axis=0)), protection


@pytest.mark.parametrize("pair", REFUSED, ids="-".join)
def test_what_the_table_does_not_have_is_refused_with_the_reason(pair):
    (row,) = (row for row in COMBINATIONS if row.algorithm == pair[0])
    conflicts = find_conflicts(plan_under(pair))
    assert any(row.reason in conflict.sentence for conflict in conflicts)
