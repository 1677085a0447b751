"""The trainer and PLGC's plain loop agree over FedRAP, whose own table it mixes.

Both tables move there and shrink as wholes, so that norms change where no row is touched.
"""

import math

import numpy as np
import pytest
import torch
from conformance.unrounded import assert_near, begin, train_unrounded
from reference.plain_fedmf import batches_of, samples_of
from reference.plain_plgc import Rule, added_visit
from world.plans import check_plan

from fedrec.data import generate, leave_one_out
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

pytestmark = pytest.mark.slow

N_ITEMS, EPOCHS = 30, 3
BASE = {
    "name": "fedrap", "dim": 4, "learning_rate": 0.3, "item_rate": 8.0, "weight_decay": 2e-3,
    "local_epochs": EPOCHS, "tolerance": 0.0, "difference_weight": 0.3, "sparsity_weight": 0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def users():
    """Of 4 to 10 training items, so that they miss many."""
    data = generate(n_users=7, n_items=N_ITEMS, n_clusters=2, interactions_per_user=12, seed=3)
    place = np.arange(len(data.interactions))
    return leave_one_out(data.interactions.take(place % 12 >= place // 12), data.catalogue)


def plan_of(weight=0.0, batch_size=7, rounds=None, base=None, **own):
    inner = BASE | {"batch_size": batch_size} if base is None else base
    return Plan.model_validate(
        {
            "federation": {"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
            "algorithm": {
                "name": "plgc", "weight": weight, "base": inner, **own,
                **({"projector": False} if weight else {}),
            },
            "update": {"structure": "dense", "clip": 16.0, "fraction_bits": 34},
            "rounds": rounds or {},
        }
    )  # fmt: skip


@pytest.mark.parametrize("batch_size", [7, 1000])
@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_three_rounds(users, weight, batch_size):
    learner = Learner(plan_of(weight, batch_size), N_ITEMS, device="cpu")
    rule = Rule(base="", steps=(), rates={}, epochs=EPOCHS, batch_size=batch_size, weight=weight)
    shared, private = begin(learner, users)
    table, after = torch.tensor(shared.tensors["item_embedding"]), private
    names = ("own_embedding", "user_embedding", "user_bias")
    for number, round_id in enumerate((4, 5, 6), start=1):
        change, scores, before = torch.zeros_like(table), [], after
        after = {name: before[name].copy() for name in names}
        for index, key in enumerate(users.user_keys().tolist()):
            positives = users.train_of(index).tolist()
            samples = samples_of(7, round_id, key, positives, positives, N_ITEMS, 4)
            values = {name: torch.tensor(np.asarray(before[name][index])) for name in names}
            if number == 1:
                values["own_embedding"] = table
            slower = 0.97 ** (number - 1)
            found, own_scores = added_visit(
                values | {"item_embedding": table},
                [batches_of(7, round_id, epoch, key, samples, batch_size)
                 for epoch in range(EPOCHS)],
                rate=0.3 * slower, item_rate=8.0 * slower, decay=2e-3, factor=0.95,
                apart=0.3 * math.tanh(number / 10), sparse=0.2 * math.tanh(number / 10), rule=rule,
            )  # fmt: skip
            change += found["item_embedding"] - table
            scores.append(own_scores.numpy())
            for name in names:
                after[name][index] = found[name].numpy()
        result = train_unrounded(learner, users, shared, private, round_id)
        shared, private = result.shared, result.private
        table = table + change / len(users)
        assert_near(shared.tensors["item_embedding"], table.numpy(), 1e-9, "G")
        assert shared.trained == number
        for name in names:
            assert_near(private[name], after[name], 1e-9, name)
        assert_near(private["personal_scores"], np.stack(scores), 1e-9, "scores")


def test_only_the_shared_table_is_sent(users):
    algorithm = Learner(plan_of(), N_ITEMS, device="cpu").algorithm
    assert [tensor.name for tensor in algorithm.tensors] == ["item_embedding", "users"]
    assert algorithm.own_tables == {"item_embedding": "own_embedding"}
    assert check_plan(plan_of(rounds={"user_fraction": 0.5})) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"upload": "table"}, "users of fedrap train and send the shared table"),
        ({"base": {"name": "fedrap", "tables": "shared"}}, "shrinks rows that a user does not"),
        ({"base": {"name": "fedrap", "weight_decay": 0.9}}, "algorithm.base.weight_decay times"),
    ],
)
def test_what_means_nothing_is_refused(changes, words):
    (problem,) = check_plan(plan_of(**changes))
    assert words in problem
    shared_alone = {"name": "fedrap", "tables": "shared"}
    assert check_plan(plan_of(base=shared_alone, upload="table")) == []
