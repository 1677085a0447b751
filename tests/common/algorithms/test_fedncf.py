"""FedNCF: where it starts, what it scores and clips, and what is refused."""

import numpy as np
import pytest
import torch
from conformance.histories import unequal_users
from reference.plain_fedncf import logits_of
from world.plans import check_plan, plans

from fedrec.errors import SettingsError
from fedrec.plan.algorithm import algorithm_warnings
from fedrec.training.learner import Learner

N_ITEMS = 61


plan_of = plans(
    federation={"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
    algorithm={
        "name": "fedncf",
        "dim": 5,
        "learning_rate": 0.3,
        "item_rate_scale": 0.5,
        "user_rate_scale": 5.0,
    },
    update={"structure": "dense", "clip": 8.0, "fraction_bits": 26},
)


@pytest.fixture(scope="module")
def users():
    return unequal_users(N_ITEMS)


def states_of(plan, users):
    learner = Learner(plan, N_ITEMS, device="cpu")
    return learner, learner.server.initial_shared(), learner.local.initial_private(users)


def test_every_user_starts_from_one_network_and_a_vector_of_its_own(users):
    _, shared, private = states_of(plan_of(algorithm={"dim": 32}), users)
    assert shared.tensors["item_embedding"].std() == pytest.approx(1.0, abs=0.1)
    vectors = private.tensors["user_embedding"]
    assert vectors.shape == (23, 32) and vectors.std() == pytest.approx(1.0, abs=0.1)
    assert np.abs(vectors[0] - vectors[1]).max() > 0.5
    for layer, fan_in in enumerate((64, 32, 16, 8), start=1):
        for kind in ("weight", "bias"):
            values = shared.tensors[f"{kind}_{layer}"]
            assert np.abs(values).max() <= fan_in**-0.5
            units = {1: 32, 2: 16, 3: 8, 4: 1}[layer]
            assert values.shape == ((units, fan_in) if kind == "weight" else (units,))
    assert np.abs(shared.tensors["weight_1"]).max() > 0.99 * 64**-0.5
    assert shared.tensors["weight_1"].std() == pytest.approx((3 * 64) ** -0.5, rel=0.05)


def test_decay_that_cannot_work_is_refused():
    (found,) = check_plan(plan_of(algorithm={"weight_decay": 1e-6, "aggregation": "plain"}))
    assert "algorithm.weight_decay" in found and "plain" in found
    assert check_plan(plan_of(algorithm={"weight_decay": 1e-6})) == []
    with pytest.raises(SettingsError, match="flips the signs of values"):
        Learner(plan_of(algorithm={"weight_decay": 0.2}), N_ITEMS, device="cpu")


def test_adam_says_what_it_makes_no_use_of():
    assert algorithm_warnings(plan_of()) == []
    unused, large = algorithm_warnings(plan_of(algorithm={"optimiser": "adam"}))
    assert "user_rate_scale and algorithm.item_rate_scale" in unused
    assert "0.001" in large


def test_scores_are_those_of_the_network(users):
    learner, shared, private = states_of(plan_of(), users)
    net = {name: torch.from_numpy(value) for name, value in shared.tensors.items()}
    vectors = private.tensors["user_embedding"]
    wanted = [
        logits_of(torch.from_numpy(p).double(), net["item_embedding"], net).numpy() for p in vectors
    ]
    ((_, scores),) = learner.local.score_blocks(shared, users, private)
    assert scores.numpy() == pytest.approx(np.stack(wanted), abs=1e-5)
    single = {name: value.astype(np.float32) for name, value in shared.tensors.items()}
    own = learner.server.algorithm.preferences(single, {"user_embedding": vectors[3]})
    assert own == pytest.approx(wanted[3], abs=1e-5)
    assert own.dtype == np.float32


def test_values_outside_the_public_range_are_clipped_and_counted(users):
    for changes in ({"update": {"clip": 0.001}}, {"algorithm": {"network_clip": 1e-6}}):
        values = {"algorithm": {}} | changes
        values["algorithm"] = plan_of().algorithm.model_dump() | values["algorithm"]
        learner, shared, private = states_of(plan_of(**values), users)
        part = learner.contribute("train", 1, shared, users, private)
        assert part.n_clipped > 0
        weight = users.n_train
        for name, sums in learner.server.layout.changes_of(part.vector).items():
            most = 23 << 26 if name == "item_embedding" else weight << 26
            assert np.abs(sums).max() <= most


def test_it_has_no_low_rank_form_and_folds_no_user_in(users):
    (sentence,) = check_plan(plan_of(update={"structure": "colr"}))
    assert 'update.structure = "dense"' in sentence
    learner, shared, _ = states_of(plan_of(), users)
    with pytest.raises(SettingsError, match="fedncf has no user vector"):
        learner.server.algorithm.fold_in(shared.tensors["item_embedding"], users.train_of(0))
