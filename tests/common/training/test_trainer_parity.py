"""The trainer and FedMF's plain loop agree, under every update structure."""

import numpy as np
import pytest
from conformance.unrounded import assert_near, begin, train_unrounded
from reference.plain_fedmf import Rule
from reference.plain_fedmf_rounds import Structure, fedmf_round

from fedrec.data import generate, leave_one_out
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

# PFedRec's parity stays in the fast part.
pytestmark = pytest.mark.slow

N_ITEMS, DIM, RATE = 40, 6, 0.4
STRUCTURES = {
    "dense": ({"structure": "dense"}, Structure()),
    "colr": ({"structure": "colr", "rank": 2}, Structure(name="colr")),
    "scolr": ({"structure": "scolr", "rank": 4}, Structure(name="scolr")),
    "scolr-entry": (
        {"structure": "scolr", "rank": 4, "normaliser": "entry"},
        Structure(name="scolr", normaliser="entry"),
    ),
    "scolr-client": (
        {"structure": "scolr", "rank": 4, "subset": "client"},
        Structure(name="scolr", subset="client"),
    ),
    "scolr-client-entry": (
        {"structure": "scolr", "rank": 4, "subset": "client", "normaliser": "entry"},
        Structure(name="scolr", subset="client", normaliser="entry"),
    ),
    "svd": ({"structure": "svd", "rank": 2}, Structure(name="svd", rank=2)),
    "topk": ({"structure": "topk", "ratio": 0.2}, Structure(name="topk", n_kept=48)),
}


@pytest.fixture(scope="module")
def users():
    """Of 4 to 14 training items out of 40: with 4 negatives for each, most items come twice."""
    data = generate(n_users=11, n_items=N_ITEMS, n_clusters=2, interactions_per_user=16, seed=3)
    place = np.arange(len(data.interactions))
    return leave_one_out(data.interactions.take(place % 16 >= place // 16), data.catalogue)


def learner_of(update, gamma, batch_size, **changes):
    return Learner(
        Plan.model_validate(
            {
                "federation": {"maximum_users": 64, "minimum_item_users": 1, "seed": 7},
                "algorithm": {
                    "dim": DIM, "learning_rate": RATE, "regularisation": gamma,
                    "batch_size": batch_size, "local_epochs": 3,
                },
                "update": {"clip": 8.0, "fraction_bits": 32} | update | changes,
            }
        ),
        N_ITEMS,
        device="cpu",
    )  # fmt: skip


def plain_round(learner, users, structure, table, vectors, round_id):
    settings = learner.plan.algorithm
    rule = Rule(rate=RATE, gamma=settings.regularisation, epochs=3, batch_size=settings.batch_size)
    return fedmf_round(
        table, vectors, users.user_keys().tolist(),
        [users.train_of(index).tolist() for index in range(len(users))], rule, structure,
        learner.algorithm.structure.basis(7, round_id), seed=7, round_id=round_id, per_positive=4,
    )  # fmt: skip


@pytest.mark.parametrize("gamma", [0.0, 0.02])
@pytest.mark.parametrize("batch_size", [7, 1000])
@pytest.mark.parametrize("name", STRUCTURES)
def test_three_rounds_before_rounding(users, name, batch_size, gamma):
    update, structure = STRUCTURES[name]
    learner = learner_of(update, gamma, batch_size)
    shared, private = begin(learner, users)
    table, vectors = shared.tensors["item_embedding"], private["user_embedding"]
    for round_id in (4, 5, 6):
        expected = plain_round(learner, users, structure, table, vectors, round_id)
        found = train_unrounded(learner, users, shared, private, round_id)
        assert np.array_equal(found.counts, expected.counts)
        if structure.normaliser == "entry":
            assert np.array_equal(found.change["entries"], expected.entries)
        assert_near(found.change["item_embedding"], expected.change, 1e-9, "change")
        shared, private = found.shared, found.private
        table, vectors = expected.table, expected.vectors
        assert_near(shared.tensors["item_embedding"], table, 1e-9, "table")
        assert_near(private["user_embedding"], vectors, 1e-9, "vectors")


@pytest.mark.parametrize("batch_size", [7, 1000])
@pytest.mark.parametrize("name", STRUCTURES)
def test_three_rounds_on_the_grid(users, name, batch_size):
    """In float32; each of the plain rounds starts where the trainer's does."""
    update, structure = STRUCTURES[name]
    learner = learner_of(update, 0.02, batch_size)
    shared, private = learner.initial_shared(), learner.initial_private(users)
    step = learner.layout.tensors[0].step
    for round_id in (4, 5, 6):
        table = shared.tensors["item_embedding"].astype(np.float32).astype(float)
        vectors = private.tensors["user_embedding"].astype(float)
        expected = plain_round(learner, users, structure, table, vectors, round_id)
        part = learner.contribute("train", round_id, shared, users, private)
        assert part.n_clipped == 0
        assert np.array_equal(part.vector[learner.layout.count_slice], expected.counts)
        changes = learner.layout.changes_of(part.vector)
        assert_near(changes["item_embedding"] * step, expected.change, 1e-5, "change")
        assert_near(part.private.tensors["user_embedding"], expected.vectors, 1e-5, "vectors")
        shared, private = learner.apply("train", round_id, shared, part.vector), part.private
        assert_near(shared.tensors["item_embedding"], expected.table, 1e-5, "table")
