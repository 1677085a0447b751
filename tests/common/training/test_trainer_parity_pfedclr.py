"""The trainer and PFedCLR's plain loops agree: torch's own Adam over whole tables, user by user."""

import numpy as np
import pytest
import torch
from conformance.unrounded import assert_near, begin, train_unrounded
from reference.plain_pfedclr import Settings, pfedclr_round

from fedrec.data import generate, leave_one_out
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

pytestmark = pytest.mark.slow

N_ITEMS, RATE, PERSONAL_RATE, BATCH, EPOCHS = 41, 0.02, 0.03, 23, 2
CASES = {
    "clr": {},
    "cf": {"variant": "cf"},
    "af": {"variant": "af"},
    "no aggregation": {"aggregation": False},
    "shrunk gradients": {"gradient_clip": 0.01},
    "af, shrunk gradients": {"variant": "af", "gradient_clip": 0.01},
}


@pytest.fixture(scope="module")
def users():
    """Of 4 to 14 training items, so that weights and minibatches differ and items come twice."""
    data = generate(n_users=11, n_items=N_ITEMS, n_clusters=2, interactions_per_user=16, seed=3)
    place = np.arange(len(data.interactions))
    return leave_one_out(data.interactions.take(place % 16 >= place // 16), data.catalogue)


def learner_of(case):
    # Rank 3 of 5: neither 1 nor all.
    rank = {} if "variant" in CASES[case] else {"rank": 3}
    algorithm = {
        "name": "pfedclr", "dim": 5, "learning_rate": RATE, "personal_rate": PERSONAL_RATE,
        "local_epochs": EPOCHS, "batch_size": BATCH, "item_deviation": 0.5,
    }  # fmt: skip
    plan = Plan.model_validate(
        {
            "federation": {"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
            "algorithm": algorithm | rank | CASES[case],
            "update": {"structure": "dense", "clip": 8.0, "fraction_bits": 30},
        }
    )
    return Learner(plan, N_ITEMS, device="cpu")


def plain(case, users, table, private, round_id):
    settings = Settings(
        variant=CASES[case].get("variant", "clr"), rate=RATE, personal_rate=PERSONAL_RATE,
        epochs=EPOCHS, batch_size=BATCH, longest=CASES[case].get("gradient_clip", 0.0),
        aggregation=CASES[case].get("aggregation", True),
    )  # fmt: skip
    histories = [users.train_of(index).tolist() for index in range(len(users))]
    return pfedclr_round(
        torch.from_numpy(np.asarray(table, dtype=np.float64)), private,
        users.user_keys().tolist(), histories, settings, seed=7, round_id=round_id,
        n_items=N_ITEMS,
    )  # fmt: skip


def of_users(tensors):
    """Return each user's own tensors in float64, the kept scores left out."""
    names = [name for name in tensors if name != "personal_scores"]
    n_users = len(tensors["user_embedding"])
    return [
        {name: torch.from_numpy(tensors[name][user].astype(np.float64)) for name in names}
        for user in range(n_users)
    ]


def compare(found, expected, tolerance):
    """Compare private tensors and kept scores."""
    for name in expected.private[0]:
        own = np.stack([values[name].numpy() for values in expected.private])
        assert_near(found[name], own, tolerance, name)
    assert_near(found["personal_scores"], torch.stack(expected.scores), tolerance, "scores")


@pytest.mark.parametrize("case", CASES)
def test_three_rounds_before_rounding(users, case):
    learner = learner_of(case)
    shared, private = begin(learner, users)
    table, own = shared.tensors["item_embedding"], of_users(private)
    for round_id in (4, 5, 6):
        expected = plain(case, users, table, own, round_id)
        found = train_unrounded(learner, users, shared, private, round_id)
        assert_near(found.change["item_embedding"], expected.change, 1e-9, "change")
        assert found.change["samples"] == [expected.weight] == [users.n_train]
        assert not found.counts.any()
        assert found.loss == pytest.approx(np.array(expected.losses), rel=1e-9)
        shared, private = found.shared, found.private
        table, own = expected.table.numpy(), expected.private
        assert_near(shared.tensors["item_embedding"], table, 1e-9, "table")
        compare(private, expected, 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_three_rounds_on_the_grid(users, case):
    """In float32; each of the plain rounds starts where the trainer's does."""
    learner = learner_of(case)
    shared, private = learner.initial_shared(), learner.initial_private(users)
    for round_id in (4, 5, 6):
        table = shared.tensors["item_embedding"].astype(np.float32)
        expected = plain(case, users, table, of_users(private.tensors), round_id)
        part = learner.contribute("train", round_id, shared, users, private)
        assert part.n_clipped == 0
        step = learner.layout.tensors[0].step
        change = learner.layout.changes_of(part.vector)["item_embedding"] * step
        assert_near(change, expected.change, 1e-3, "change")
        private, shared = part.private, learner.apply("train", round_id, shared, part.vector)
        assert_near(shared.tensors["item_embedding"], expected.table, 1e-3, "table")
        compare(private.tensors, expected, 1e-3)
