"""With its default settings an algorithm moves the shared model as far as without rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance.unrounded import begin, train_unrounded
from numpy.typing import NDArray

from fedrec.algorithms import ALGORITHMS
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.config.schema import Plan
from fedrec.data import UserSplit, generate, leave_one_out
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.training.learner import Learner

pytestmark = pytest.mark.slow

N_ITEMS, NEAR, ROUNDS = 40, 1e-5, (RoundId(2), RoundId(3))
CLIPPED = frozenset({"pfedrec", "fedrap"})
"""Their changes leave the default `update.clip` on this data, which is told to whoever trains."""


@pytest.fixture(scope="module")
def users() -> UserSplit:
    data = generate(n_users=24, n_items=N_ITEMS, n_clusters=3, interactions_per_user=12, seed=3)
    return leave_one_out(data.interactions, data.catalogue)


def learner_of(name: str, **update: Any) -> Learner:
    structures = ALGORITHMS[name].about.updates
    structure = "dense" if "dense" in structures else structures[0]
    federation = {"seed": 7, "maximum_users": 64, "minimum_item_users": 1}
    settings = {
        "federation": federation,
        "algorithm": {"name": name},
        "update": {"structure": structure} | update,
    }
    return Learner(Plan.model_validate(settings), N_ITEMS, device="cpu")


def counted(learner: Learner, users: UserSplit) -> SharedState:
    shared = learner.initial_shared()
    made = learner.contribute("count", 1, shared, users, learner.initial_private(users))
    return learner.apply("count", 1, shared, made.vector)


def moved(before: SharedState, after: SharedState) -> NDArray[np.float64]:
    parts = [
        np.asarray(after.tensors[name], dtype=np.float64) - before.tensors[name]
        for name in sorted(before.tensors)
    ]
    return np.concatenate([part.reshape(-1) for part in parts])


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_two_rounds_are_those_of_unrounded_changes(name: str, users: UserSplit) -> None:
    learner = learner_of(name)
    if not isinstance(learner.algorithm, TrainedAlgorithm):
        pytest.skip("its sums are not of a trainer's changes")
    if name in CLIPPED:
        pytest.skip("its values are clipped on this data")
    before = counted(learner, users)
    shared, private = before, learner.initial_private(users)
    exact, (_, own) = before, begin(learner, users)
    for number in ROUNDS:
        made = learner.contribute("train", number, shared, users, private)
        shared, private = learner.apply("train", number, shared, made.vector), made.private
        twin = train_unrounded(learner, users, exact, own, number)
        exact, own = twin.shared, twin.private
    wanted = moved(before, exact)
    assert np.linalg.norm(moved(before, shared) - wanted) <= NEAR * np.linalg.norm(wanted)
