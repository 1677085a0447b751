"""The trainer and FedNCF's plain loops agree: autograd and torch's own optimisers, user by user."""

import numpy as np
import pytest
import torch
from conformance.unrounded import assert_near, begin, train_unrounded
from reference.plain_fedncf_rounds import NEAR_A_KINK, Settings, fedncf_round

from fedrec.data import generate, leave_one_out
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

pytestmark = pytest.mark.slow

N_ITEMS, RATE, ITEM_SCALE, USER_SCALE, ADAM_RATE = 41, 0.5, 2.0, 2.0, 0.01
"""Steps large enough that float32's rounding of the values does not drown what they changed."""
SGD = (RATE, RATE * USER_SCALE, RATE * N_ITEMS * ITEM_SCALE)
ADAM = (ADAM_RATE, ADAM_RATE, ADAM_RATE)
CASES = {
    "sgd-weighted": ("mf_secavg", "sgd", 0.0),
    "sgd-plain": ("plain", "sgd", 0.0),
    "sgd-decay": ("mf_secavg", "sgd", 0.02),
    "adam-weighted": ("mf_secavg", "adam", 0.0),
    "adam-plain": ("plain", "adam", 0.0),
    "adam-decay": ("mf_secavg", "adam", 0.05),
}


@pytest.fixture(scope="module")
def users():
    """Of 4 to 14 training items, so that weights and minibatches differ and items come twice."""
    data = generate(n_users=11, n_items=N_ITEMS, n_clusters=2, interactions_per_user=16, seed=3)
    place = np.arange(len(data.interactions))
    return leave_one_out(data.interactions.take(place % 16 >= place // 16), data.catalogue)


def learner_of(case, batch_size, epochs):
    aggregation, optimiser, decay = CASES[case]
    return Learner(
        Plan.model_validate(
            {
                "federation": {"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
                "algorithm": {
                    "name": "fedncf", "dim": 5, "aggregation": aggregation,
                    "optimiser": optimiser, "weight_decay": decay,
                    "learning_rate": RATE if optimiser == "sgd" else ADAM_RATE,
                    "item_rate_scale": ITEM_SCALE, "user_rate_scale": USER_SCALE,
                    "batch_size": batch_size, "local_epochs": epochs,
                },
                "update": {"structure": "dense", "clip": 8.0, "fraction_bits": 34},
            }
        ),
        N_ITEMS,
        device="cpu",
    )  # fmt: skip


def plain_round(case, users, tensors, vectors, round_id, batch_size, epochs, near=0.0):
    aggregation, optimiser, decay = CASES[case]
    settings = Settings(
        aggregation=aggregation,
        batch_size=batch_size,
        epochs=epochs,
        rates=SGD if optimiser == "sgd" else ADAM,
        decay=decay,
        optimiser=torch.optim.Adam if optimiser == "adam" else torch.optim.SGD if decay else None,
    )
    return fedncf_round(
        tensors, vectors, users.user_keys().tolist(),
        [users.train_of(index).tolist() for index in range(len(users))], settings, seed=7,
        round_id=round_id, per_positive=4, near=near,
    )  # fmt: skip


@pytest.mark.parametrize(("batch_size", "epochs"), [(7, 2), (1000, 2)])
@pytest.mark.parametrize("case", CASES)
def test_three_rounds_before_rounding(users, case, batch_size, epochs):
    learner = learner_of(case, batch_size, epochs)
    shared, private = begin(learner, users)
    tensors, vectors = dict(shared.tensors), private["user_embedding"]
    for round_id in (4, 5, 6):
        expected = plain_round(case, users, tensors, vectors, round_id, batch_size, epochs)
        found = train_unrounded(learner, users, shared, private, round_id)
        assert_near(found.change["item_embedding"], expected.rows, 1e-9, "rows")
        for name, move in expected.network.items():
            assert_near(found.change[name], move, 1e-9, name)
        if CASES[case][0] == "mf_secavg":
            assert found.change["samples"] == [expected.weight] == [users.n_train]
            assert np.array_equal(found.counts, expected.counts)
        else:
            assert found.change["users"] == [len(users)]
            assert not found.counts.any()
        shared, private = found.shared, found.private
        tensors, vectors = expected.after, expected.vectors
        for name, value in tensors.items():
            assert_near(shared.tensors[name], value, 1e-9, name)
        assert_near(private["user_embedding"], vectors, 1e-9, "vectors")


@pytest.mark.parametrize("batch_size", [7, 1000])
@pytest.mark.parametrize("case", CASES)
def test_three_rounds_on_the_grid(users, case, batch_size):
    """In float32; each of the plain rounds starts where the trainer's does.

    Who comes too near a kink of the network takes no part. Adam divides by the root of squares,
    so that rounding of small gradients shows.
    """
    learner = learner_of(case, batch_size, 1)
    shared, private = learner.initial_shared(), learner.initial_private(users)
    steps = {tensor.name: tensor.step for tensor in learner.layout.tensors}
    tolerance = 1e-3 if CASES[case][1] == "adam" else 1e-5
    for round_id in (4, 5, 6):
        tensors = {
            name: value.astype(np.float32).astype(float) for name, value in shared.tensors.items()
        }
        vectors = private.tensors["user_embedding"].astype(float)
        expected = plain_round(
            case, users, tensors, vectors, round_id, batch_size, 1, near=NEAR_A_KINK
        )
        assert expected.taking.sum() >= 6
        part = learner.contribute("train", round_id, shared, users, private, expected.taking)
        assert part.n_clipped == 0
        changes = learner.layout.changes_of(part.vector)
        moves = expected.network | {"item_embedding": expected.rows}
        for name, move in moves.items():
            assert_near(changes[name] * steps[name], move, tolerance, name)
        private = part.private
        assert_near(private.tensors["user_embedding"], expected.vectors, tolerance, "vectors")
        shared = learner.apply("train", round_id, shared, part.vector)
        for name, value in expected.after.items():
            assert_near(shared.tensors[name], value, tolerance, name)
