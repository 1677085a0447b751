"""fedals against its definition, written plainly in tests/reference."""

from itertools import pairwise

import numpy as np
import pytest
from conformance.histories import counted
from reference.plain_fedals import half_gradient, item_step, objective, solve_user
from world.plans import plans, users_of

from fedrec.training.learner import Learner

pytestmark = pytest.mark.slow

N_ITEMS = 60


plan_of = plans(
    federation={"seed": 3, "maximum_users": 256, "minimum_item_users": 1},
    algorithm={"name": "fedals", "dim": 5, "alpha": 2.0, "regularisation": 3.0},
    update={"structure": "dense", "clip": 4.0, "fraction_bits": 24},
)


@pytest.fixture(scope="module")
def users():
    return users_of(40, N_ITEMS, clusters=4, each=14, seed=2)


def histories_of(users):
    return [users.train_of(index) for index in range(len(users))]


def pulls(numbers, plan):
    growth = (np.asarray(numbers) / 64.0) ** plan.algorithm.frequency_exponent
    return plan.algorithm.regularisation * growth


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.875, 1.0])
def test_a_round_agrees_with_the_definition(users, exponent):
    plan = plan_of(algorithm={"frequency_exponent": exponent, "momentum": 0.3})
    learner = Learner(plan, N_ITEMS, device="cpu")
    shared, private = counted(learner, users)
    histories = histories_of(users)
    counts = np.bincount(np.concatenate(histories), minlength=N_ITEMS)
    table = shared.tensors["item_embedding"].copy()
    velocity = np.zeros_like(table)
    touched = counts > 0
    for round_id in range(1, 4):
        part = learner.contribute("train", round_id, shared, users, private)
        shared = learner.server.apply("train", round_id, shared, part.vector)
        vectors = np.stack(
            [
                solve_user(table, held, 2.0, pull)
                for held, pull in zip(
                    histories, pulls([len(h) for h in histories], plan), strict=True
                )
            ]
        )
        assert part.n_clipped == 0
        assert part.private.tensors["user_embedding"] == pytest.approx(vectors, abs=2e-5)
        item_pulls = pulls(counts, plan)
        gradient = half_gradient(table, vectors, histories, 2.0, item_pulls)
        velocity = 0.3 * velocity + item_step(table, vectors, counts, gradient, 2.0, item_pulls)
        table[touched] -= velocity[touched]
        assert shared.tensors["item_embedding"] == pytest.approx(table, abs=1e-4)
    assert np.abs(velocity).max() > 0.01


def test_rounds_lower_the_loss_to_where_its_gradient_vanishes(users):
    plan = plan_of(algorithm={"momentum": 0.0, "frequency_exponent": 0.5})
    learner = Learner(plan, N_ITEMS, device="cpu")
    shared, private = counted(learner, users)
    histories = histories_of(users)
    counts = np.bincount(np.concatenate(histories), minlength=N_ITEMS)
    item_pulls, user_pulls = pulls(counts, plan), pulls([len(h) for h in histories], plan)
    losses = []
    for round_id in range(1, 120):
        part = learner.contribute("train", round_id, shared, users, private)
        vectors = part.private.tensors["user_embedding"].astype(float)
        table = shared.tensors["item_embedding"]
        losses.append(objective(table, vectors, histories, 2.0, user_pulls, item_pulls))
        gradient = half_gradient(table, vectors, histories, 2.0, item_pulls)[counts > 0]
        shared = learner.server.apply("train", round_id, shared, part.vector)
    assert all(later <= earlier + 1e-3 for earlier, later in pairwise(losses))
    assert np.abs(gradient).max() < 2e-3
    assert losses[-1] < 0.8 * losses[0]


def test_folding_in_a_history_gives_the_users_own_vector(users):
    learner = Learner(plan_of(), N_ITEMS, device="cpu")
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    part = learner.contribute("train", 1, shared, users, private)
    for index in (0, 7):
        folded = learner.server.algorithm.fold_in(
            shared.tensors["item_embedding"], users.train_of(index)
        )
        own = part.private.tensors["user_embedding"][index]
        assert folded == pytest.approx(own, abs=2e-5)
