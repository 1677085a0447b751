"""With its default settings an algorithm moves the shared model as far as without rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance.histories import counted
from conformance.party import Party
from conformance.unrounded import begin, train_unrounded
from numpy.typing import NDArray
from world.plans import users_of

from fedrec.algorithms import ALGORITHMS, sketch
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.data import UserSplit
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

pytestmark = pytest.mark.slow

N_ITEMS, NEAR, ROUNDS = 40, 1e-5, (RoundId(2), RoundId(3))
RANGES = {
    "pfedrec": (256.0, 1e-4), "fedrap": (4.0, NEAR), "sketch": (0.0, 1e-4), "fedals": (0.0, 3e-5),
    "perfedrec": (0.0, 1e-4), "pfedgraph": (0.0, 1e-3),
}  # fmt: skip
"""An `update.clip` that clips nothing here, as the default does (0: the default), and how near the
default number of fraction bits comes then; as near as 1e-5, sums of sketch would take twice as
many bytes under `none`. The systems that fedals solves enlarge what rounding leaves. Two rounds of
Adam move tables by little more than their grid."""
CLUSTERED = {"cofedrec"}
"""Clusters of a rounded table may be others, and with them all that follows."""
FINEST = 36


@pytest.fixture(scope="module")
def users():
    return users_of(24, N_ITEMS)


def learner_of(name: str, **update: Any) -> Learner:
    structures = ALGORITHMS[name].about.supports.updates
    structure = "dense" if "dense" in structures else structures[0]
    federation = {"seed": 7, "maximum_users": 64, "minimum_item_users": 1}
    settings = {
        "federation": federation,
        "algorithm": {"name": name},
        "update": {"structure": structure} | update,
    }
    return Learner(Plan.model_validate(settings), N_ITEMS, device="cpu")


def moved(before: SharedState, after: SharedState) -> NDArray[np.float64]:
    """Return the movement; what has no values before the first round begins at 0."""
    parts = []
    for name in sorted(after.tensors):
        begun, ended = before.tensors[name], np.asarray(after.tensors[name], dtype=np.float64)
        parts.append(ended - begun if ended.shape == begun.shape else ended)
    return np.concatenate([part.reshape(-1) for part in parts])


def after_two_rounds(learner: Learner, users: UserSplit, before: SharedState) -> SharedState:
    shared, private = before, learner.local.initial_private(users)
    party = Party(
        learner=learner, algorithm=learner.server.algorithm, users=users, shared=shared,
        private=private,
    )  # fmt: skip
    for number in ROUNDS:
        made = learner.contribute("train", number, shared, users, private)
        shared, private = party.follow(number, shared, made)
    return shared


def unrounded(learner: Learner, users: UserSplit, before: SharedState) -> SharedState:
    shared, (_, own) = before, begin(learner, users)
    for number in ROUNDS:
        twin = train_unrounded(learner, users, shared, own, number)
        shared, own = twin.shared, twin.private
    return shared


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - CLUSTERED))
def test_two_rounds_are_those_of_unrounded_changes(name, users, monkeypatch):
    clip, near = RANGES.get(name, (0.0, NEAR))
    learner = learner_of(name, **({"clip": clip} if clip else {}))
    before, _ = counted(learner, users)
    found = moved(before, after_two_rounds(learner, users, before))
    if isinstance(learner.server.algorithm, TrainedAlgorithm):
        exact = unrounded(learner, users, before)
    else:
        # Sums of solved or counted values: 2^16 times as fine a grid stands for none.
        monkeypatch.setattr(sketch, "_FRACTION_BITS", FINEST)
        finer = {} if ALGORITHMS[name].about.range_instead else {"fraction_bits": FINEST}
        exact = after_two_rounds(learner_of(name, **finer), users, before)
    wanted = moved(before, exact)
    assert np.linalg.norm(found - wanted) <= near * np.linalg.norm(wanted)


def test_what_ease_sums_is_whole(users):
    """Counts: no grid could round them."""
    assert {tensor.step for tensor in learner_of("ease").server.layout.tensors} == {1.0}
