"""At rank = dim an update structure's steps are those of whole rows, wherever it may stand in."""

import numpy as np
import pytest
from conformance.party import plan_of
from conformance.unrounded import assert_near, begin, train_unrounded
from world.plans import users_of

from fedrec.algorithms import ALGORITHMS
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.training.learner import Learner

N_ITEMS, DIM = 40, 6
LOW = [
    name
    for name, kind in ALGORITHMS.items()
    if "colr" in kind.about.supports.updates and issubclass(kind, TrainedAlgorithm)
]


@pytest.fixture(scope="module")
def users():
    return users_of(9, N_ITEMS, clusters=2, short=12)


def learner_of(name, update):
    needs = ALGORITHMS[name].about.supports.needs
    own = {"dim": DIM, **(needs["colr"].settings if "colr" in needs else {})}
    plan = plan_of(
        name,
        update["structure"],
        federation={"minimum_item_users": 1},
        algorithm=own,
        update=update | {"clip": 256.0, "fraction_bits": 32},
        training={"accelerated": False},
    )
    return Learner(plan, N_ITEMS, device="cpu")


def test_there_are_some():
    assert len(LOW) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", LOW)
def test_full_rank_is_dense(users, name):
    """Three rounds in float64, before anything is rounded."""
    tables, states = [], []
    for update in ({"structure": "dense"}, {"structure": "colr", "rank": DIM}):
        learner = learner_of(name, update)
        shared, private = begin(learner, users)
        begun = shared.tensors["item_embedding"]
        for round_id in (2, 5, 6):
            found = train_unrounded(learner, users, shared, private, round_id)
            shared, private = found.shared, found.private
        assert np.abs(shared.tensors["item_embedding"] - begun).max() > 1e-3
        tables.append(shared.tensors["item_embedding"])
        states.append(private)
    assert_near(tables[1], tables[0], 1e-9, "table")
    assert states[0].keys() == states[1].keys()
    for tensor, values in states[0].items():
        assert_near(states[1][tensor], values, 1e-9, tensor)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOW)
def test_full_rank_is_dense_on_the_grid(users, name):
    """In float32, to the rounding that a rotation there and back costs."""
    tables = []
    for update in ({"structure": "dense"}, {"structure": "colr", "rank": DIM}):
        learner = learner_of(name, update)
        shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
        for round_id in (2, 5, 6):
            part = learner.contribute("train", round_id, shared, users, private)
            assert part.n_clipped == 0
            shared, private = (
                learner.server.apply("train", round_id, shared, part.vector),
                part.private,
            )
        tables.append(shared.tensors["item_embedding"])
    assert_near(tables[1], tables[0], 1e-5, "table")
