"""FedMF under scolr, svd and topk: whose sums depend on whom, and what is as without them."""

import numpy as np
import pytest
import torch
from reference.plain_updates import largest_values, nearest_of_rank
from world.plans import users_of

from fedrec.errors import TrainingError
from fedrec.model.state import PrivateState
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner
from fedrec.updates import SCoLR

pytestmark = pytest.mark.slow

N_ITEMS, DIM = 60, 6
SVD = {"structure": "svd", "rank": 2}
TOPK = {"structure": "topk", "ratio": 0.2}
SCOLR = {"structure": "scolr", "rank": 4}


def plan_of(update, **algorithm):
    return Plan.model_validate(
        {
            "federation": {"maximum_users": 64, "minimum_item_users": 1, "seed": 7},
            "algorithm": {"dim": DIM, "learning_rate": 0.4, "regularisation": 0.02, "batch_size": 8}
            | algorithm,
            "update": {"structure": "dense", "clip": 8.0, "fraction_bits": 24} | update,
            # Structures are compared with each other, and not all of them have compiled code.
            "training": {"accelerated": False},
        }
    )


def learner_of(update, **algorithm):
    return Learner(plan_of(update, **algorithm), N_ITEMS, device="cpu")


@pytest.fixture(scope="module")
def users():
    return users_of(23, N_ITEMS)


def contribution(learner, users, round_id=5, shared=None):
    shared = shared or learner.server.initial_shared()
    return learner.contribute(
        "train", round_id, shared, users, learner.local.initial_private(users)
    )


def change_of(learner, part):
    return learner.server.layout.changes_of(part.vector)


@pytest.mark.parametrize("rank", [1, 4, 6])
def test_scolr_in_which_every_user_trains_all_rows_is_colr(users, rank, monkeypatch):
    if rank > 1:
        # At rank 1 there is one row, and every user trains it.
        def everything(self, seed, round_id, user_keys, party_key):
            return torch.ones((len(user_keys), self.rank))

        monkeypatch.setattr(SCoLR, "members", everything)
    updates = (
        {"structure": "colr", "rank": rank},
        {"structure": "scolr", "rank": rank},
        {"structure": "scolr", "rank": rank, "normaliser": "entry"},
    )
    found = []
    for update in updates:
        learner = learner_of(update)
        shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
        for round_id in range(1, 4):
            part = learner.contribute("train", round_id, shared, users, private)
            shared, private = (
                learner.server.apply("train", round_id, shared, part.vector),
                part.private,
            )
        found.append((shared.tensors["item_embedding"], private.tensors["user_embedding"]))
    for table, vectors in found[1:]:
        assert np.array_equal(table, found[0][0])
        assert np.array_equal(vectors, found[0][1])


@pytest.mark.parametrize("update", [SVD, TOPK], ids=["svd", "topk"])
def test_compression_per_client_is_that_of_the_sum(users, update):
    dense, learner = learner_of({}), learner_of(update | {"compress": "client"})
    summed = change_of(dense, contribution(dense, users))["item_embedding"].astype(float)
    expected = nearest_of_rank(summed, 2) if update is SVD else largest_values(summed, 72)
    found = change_of(learner, contribution(learner, users))["item_embedding"]
    assert np.abs(found - expected).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("compress", ["user", "client"])
def test_without_compression_they_are_dense(users, compress):
    parts = {}
    for name, update in (
        ("dense", {}),
        ("topk", {"structure": "topk", "ratio": 1.0}),
        ("svd", {"structure": "svd", "rank": DIM}),
    ):
        learner = learner_of(update | {"compress": compress})
        part = contribution(learner, users)
        shared = learner.server.apply("train", 5, learner.server.initial_shared(), part.vector)
        parts[name] = (part.vector, shared.tensors["item_embedding"])
    assert np.array_equal(parts["topk"][0], parts["dense"][0])
    assert np.array_equal(parts["topk"][1], parts["dense"][1])
    assert np.abs(parts["svd"][0] - parts["dense"][0]).max() <= len(users)
    assert np.abs(parts["svd"][1] - parts["dense"][1]).max() < 1e-5


def test_a_client_of_one_user_draws_that_users_subset(users):
    one = users.select(np.array([4]))
    parts = [
        contribution(learner_of(SCOLR | {"subset": subset}), one) for subset in ("user", "client")
    ]
    assert np.array_equal(parts[0].vector, parts[1].vector)
    whole = [
        contribution(learner_of(SCOLR | {"subset": subset}), users) for subset in ("user", "client")
    ]
    assert not np.array_equal(whole[0].vector, whole[1].vector)


def test_who_takes_part_does_not_change_a_clients_subset(users):
    learner = learner_of(SCOLR | {"subset": "client", "normaliser": "entry"})
    trained = []
    for chosen in (np.arange(23) % 2 == 0, np.arange(23) % 2 == 1):
        part = learner.contribute(
            "train",
            5,
            learner.server.initial_shared(),
            users,
            learner.local.initial_private(users),
            chosen,
        )
        trained.append(change_of(learner, part)["entries"].any(0))
    assert np.array_equal(trained[0], trained[1])


@pytest.mark.parametrize("update", [SVD, TOPK], ids=["svd", "topk"])
def test_one_user_or_a_client_of_it_are_nearly_the_same(users, update):
    one = users.select(np.array([4]))
    found = []
    for compress in ("user", "client"):
        learner = learner_of(update | {"compress": compress})
        found.append(change_of(learner, contribution(learner, one))["item_embedding"])
    assert np.abs(found[0] - found[1]).max() * learner.server.layout.tensors[0].step < 1e-5


def test_a_clients_sum_stays_in_the_range_of_its_users_and_says_what_was_clipped(users):
    """A projection can exceed the values it came from; no client may exceed its users' range."""
    update = SVD | {"rank": 1, "compress": "client", "clip": 1e-3}
    learner = learner_of(update)
    two = users.select(np.array([4, 9]))
    part = contribution(learner, two)
    bound = 2 << 24
    change = change_of(learner, part)["item_embedding"]
    assert np.abs(change).max() == bound
    dense = learner_of({"clip": 1e-3})
    by_user = contribution(dense, two).n_clipped
    assert part.n_clipped > by_user
    assert learner.server.metrics(part.vector).sum_of("clipped_values") == part.n_clipped


@pytest.mark.parametrize("update", [SVD, TOPK], ids=["svd", "topk"])
def test_divergence_is_told_of(users, update):
    """In a client's own compression. That of each user is in the conformance suite."""
    learner = learner_of(update | {"compress": "client"})
    private = learner.local.initial_private(users)
    broken = PrivateState({"user_embedding": private.tensors["user_embedding"] * np.nan})
    with pytest.raises(TrainingError, match=r"algorithm\.learning_rate"):
        learner.contribute("train", 5, learner.server.initial_shared(), users, broken)
