"""The trainer and PFedRec's plain loop agree, personal scores included."""

import numpy as np
import pytest
from conformance.unrounded import assert_near, begin, train_unrounded
from reference.plain_pfedrec import train_user

from fedrec.data import generate, leave_one_out
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

N_ITEMS, RATE, ITEM_SCALE = 41, 0.3, 0.1
CASES = [(7, 1), (7, 3), (16, 2), (1000, 1), (1000, 3)]


@pytest.fixture(scope="module")
def users():
    """Of 4 to 14 training items, so that their minibatches differ and items come twice."""
    data = generate(n_users=11, n_items=N_ITEMS, n_clusters=2, interactions_per_user=16, seed=3)
    place = np.arange(len(data.interactions))
    return leave_one_out(data.interactions.take(place % 16 >= place // 16), data.catalogue)


def learner_of(batch_size, epochs, personal, rank=0):
    low = {"structure": "colr", "rank": rank} if rank else {"structure": "dense"}
    return Learner(
        Plan.model_validate(
            {
                "federation": {"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
                "algorithm": {
                    "name": "pfedrec", "dim": 5, "learning_rate": RATE,
                    "item_rate_scale": ITEM_SCALE, "batch_size": batch_size,
                    "local_epochs": epochs, "personal_items": personal,
                },
                "update": {"clip": 64.0, "fraction_bits": 34} | low,
            }
        ),
        N_ITEMS,
        device="cpu",
    )  # fmt: skip


def plain_round(users, table, heads, biases, round_id, batch_size, epochs, basis=None):
    """Return everybody's (w, c, own table) after a round."""
    found = []
    for index, key in enumerate(users.user_keys().tolist()):
        positives = users.train_of(index).tolist()
        found.append(
            train_user(
                heads[index], float(biases[index]), table, key, positives, positives, seed=7,
                round_id=round_id, per_positive=4, epochs=epochs, batch_size=batch_size,
                rate=RATE, item_rate=RATE * N_ITEMS * ITEM_SCALE, basis=basis,
            )
        )  # fmt: skip
    return found


def parts_of(visits, table):
    heads = np.stack([w for w, _, _ in visits])
    biases = np.array([c for _, c, _ in visits])
    change = sum(own - table for _, _, own in visits)
    scores = np.stack([own @ w + c for w, c, own in visits])
    return heads, biases, change, scores


@pytest.mark.parametrize("personal", [True, False])
@pytest.mark.parametrize(("batch_size", "epochs"), CASES)
def test_three_rounds_before_rounding(users, batch_size, epochs, personal):
    learner = learner_of(batch_size, epochs, personal)
    shared, private = begin(learner, users)
    table = shared.tensors["item_embedding"]
    heads, biases = private["user_embedding"], private["user_bias"]
    for round_id in (4, 5, 6):
        visits = plain_round(users, table, heads, biases, round_id, batch_size, epochs)
        heads, biases, change, scores = parts_of(visits, table)
        found = train_unrounded(learner, users, shared, private, round_id)
        assert found.change["users"] == [len(users)]
        assert not found.counts.any()
        assert_near(found.change["item_embedding"], change, 1e-9, "change")
        shared, private, table = found.shared, found.private, table + change / len(users)
        assert_near(shared.tensors["item_embedding"], table, 1e-9, "table")
        assert_near(private["user_embedding"], heads, 1e-9, "heads")
        assert_near(private["user_bias"], biases, 1e-9, "biases")
        if personal:
            assert_near(private["personal_scores"], scores, 1e-9, "scores")


@pytest.mark.parametrize(("batch_size", "epochs"), CASES)
def test_three_rounds_on_the_grid(users, batch_size, epochs):
    """In float32; each of the plain rounds starts where the trainer's does."""
    learner = learner_of(batch_size, epochs, True)
    shared, private = learner.initial_shared(), learner.initial_private(users)
    step = learner.layout.tensors[0].step
    for round_id in (4, 5, 6):
        table = shared.tensors["item_embedding"].astype(np.float32).astype(float)
        heads = private.tensors["user_embedding"].astype(float)
        biases = private.tensors["user_bias"].astype(float)
        visits = plain_round(users, table, heads, biases, round_id, batch_size, epochs)
        heads, biases, change, scores = parts_of(visits, table)
        part = learner.contribute("train", round_id, shared, users, private)
        assert part.n_clipped == 0
        changes = learner.layout.changes_of(part.vector)
        assert changes["users"] == [len(users)]
        assert_near(changes["item_embedding"] * step, change, 1e-5, "change")
        private = part.private
        assert_near(private.tensors["user_embedding"], heads, 1e-5, "heads")
        assert_near(private.tensors["user_bias"], biases, 1e-5, "biases")
        assert_near(private.tensors["personal_scores"], scores, 1e-5, "scores")
        ((_, measured),) = learner.score_blocks(shared, users, private)
        assert np.array_equal(measured.numpy(), private.tensors["personal_scores"])
        shared = learner.apply("train", round_id, shared, part.vector)
        assert_near(shared.tensors["item_embedding"], table + change / len(users), 1e-5, "table")


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize(("batch_size", "epochs"), [(7, 3), (1000, 1)])
def test_three_low_rank_rounds(users, rank, batch_size, epochs):
    """Rows are Q + A B, those that personal scores are made of, too."""
    learner = learner_of(batch_size, epochs, True, rank)
    shared, private = begin(learner, users)
    table = shared.tensors["item_embedding"]
    heads, biases = private["user_embedding"], private["user_bias"]
    for round_id in (4, 5, 6):
        basis = learner.algorithm.structure.basis(7, round_id)
        visits = plain_round(users, table, heads, biases, round_id, batch_size, epochs, basis)
        heads, biases, change, scores = parts_of(visits, table)
        found = train_unrounded(learner, users, shared, private, round_id)
        low = change @ basis.T * (rank / 5)
        assert_near(found.change["item_embedding"], low, 1e-9, "change")
        shared, private, table = found.shared, found.private, table + change / len(users)
        assert_near(shared.tensors["item_embedding"], table, 1e-9, "table")
        assert_near(private["user_embedding"], heads, 1e-9, "heads")
        assert_near(private["user_bias"], biases, 1e-9, "biases")
        assert_near(private["personal_scores"], scores, 1e-9, "scores")
