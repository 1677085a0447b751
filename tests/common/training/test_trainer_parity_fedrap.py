"""The trainer and FedRAP's plain loop agree: every variant, rows that nobody touches included."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conformance.unrounded import assert_near, begin, train_unrounded
from reference.plain_fedmf import batches_of, samples_of
from reference.plain_fedrap import schedule_of, visit

from fedrec.data import generate, leave_one_out
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

pytestmark = pytest.mark.slow

N_ITEMS, DIM, BATCH, EPOCHS = 40, 5, 7, 3
RATE, ITEM_RATE, DECAY = 0.3, 8.0, 2e-3
VARIANTS = [
    {},
    {"tables": "shared"},
    {"tables": "private"},
    {"sparsity": "none"},
    {"sparsity": "l2"},
    {"schedule": "fixed"},
    {"schedule": "sin"},
    {"schedule": "square"},
    {"schedule": "frac"},
    {"batch_size": 1000},
    {"weight_decay": 0.0},
    {"tolerance": 0.03},
    {"tables": "shared", "rank": 2},
    {"tables": "shared", "rank": 1, "batch_size": 1000, "sparsity": "l2"},
    {"tables": "shared", "rank": DIM, "tolerance": 0.03},
    # All rows are stepped, one by one, and clipping of C's gradients is all that noise leaves.
    {"noise_where": "grad", "noise_clip": 0.02, "noise_multiplier": 1e-12},
    {"noise_where": "grad", "noise_clip": 1e3, "noise_multiplier": 1e-14, "batch_size": 1000},
]


@pytest.fixture(scope="module")
def users():
    """Of 4 to 14 training items out of 40: they differ in minibatches, and miss many items."""
    data = generate(n_users=9, n_items=N_ITEMS, n_clusters=2, interactions_per_user=16, seed=3)
    place = np.arange(len(data.interactions))
    return leave_one_out(data.interactions.take(place % 16 >= place // 16), data.catalogue)


def learner_of(rank=0, **changes):
    algorithm = {
        "name": "fedrap", "dim": DIM, "learning_rate": RATE, "item_rate": ITEM_RATE,
        "weight_decay": DECAY, "batch_size": BATCH, "local_epochs": EPOCHS,
        "negatives_per_positive": 1,
    }  # fmt: skip
    if changes.get("tables") is None:
        algorithm["difference_weight"] = 0.3
    if changes.get("tables") != "private":
        algorithm["sparsity_weight"] = 0.2
    plan = {
        "federation": {"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
        "algorithm": algorithm | changes,
        "update": {"structure": "dense", "clip": 16.0, "fraction_bits": 34}
        | ({"structure": "colr", "rank": rank} if rank else {}),
    }
    return Learner(Plan.model_validate(plan), N_ITEMS, device="cpu")


def plain_round(learner, users, shared, private, round_id, number):
    """Return what training round `number` leaves, which samples are drawn for `round_id`."""
    settings = learner.algorithm.settings
    weight = schedule_of(settings.schedule, number)
    slower = settings.round_decay ** (number - 1)
    basis = learner.algorithm.structure.basis(7, round_id)
    low, change = None if basis is None else torch.tensor(basis), np.zeros((N_ITEMS, DIM))
    after = {name: values.copy() for name, values in private.items()}
    epochs, losses, untouched = [], [], 0
    for index, key in enumerate(users.user_keys().tolist()):
        positives = users.train_of(index).tolist()
        samples = samples_of(7, round_id, key, positives, positives, N_ITEMS, 1)
        untouched += N_ITEMS - len({item for item, _ in samples})
        values = {name: torch.tensor(rows[index]) for name, rows in private.items()}
        if settings.tables != "private":
            values = {"item_embedding": torch.tensor(shared)} | values
        found, loss, n_epochs = visit(
            values,
            [
                batches_of(7, round_id, epoch, key, samples, settings.batch_size)
                for epoch in range(settings.local_epochs)
            ],
            rate=settings.learning_rate * slower,
            item_rate=settings.item_rate * slower,
            decay=settings.weight_decay,
            factor=settings.batch_decay,
            tolerance=settings.tolerance,
            clip=settings.noise_clip if settings.noise_where == "grad" else None,
            tables=settings.tables,
            sparsity=settings.sparsity,
            basis=low,
            apart=weight * settings.difference_weight,
            sparse=weight * settings.sparsity_weight,
        )
        epochs.append(n_epochs)
        losses.append(loss)
        if settings.tables != "private":
            change += found["item_embedding"].numpy() - shared
        for name in private:
            after[name][index] = found[name].numpy()
    assert untouched > 3 * N_ITEMS
    # What travels of it: A, and B B^T = (dim / rank) I.
    sent = change if basis is None else change @ basis.T * len(basis) / DIM
    return SimpleNamespace(
        change=sent, private=after, shared=shared + change / len(users), epochs=epochs,
        losses=np.array(losses),
    )  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_three_rounds_before_rounding(users, variant):
    learner = learner_of(**variant)
    shared, private = begin(learner, users)
    table, own = shared.tensors["item_embedding"], private
    for number, round_id in enumerate((2, 5, 6), start=1):
        expected = plain_round(learner, users, table, own, round_id, number)
        found = train_unrounded(learner, users, shared, private, round_id)
        if learner.algorithm.settings.tables == "private":
            assert not found.change
            assert np.array_equal(found.shared.tensors["item_embedding"], table)
        else:
            assert_near(found.change["item_embedding"], expected.change, 1e-9, "change")
            assert found.change["users"] == [len(users)]
        if "tolerance" not in variant:
            assert_near(found.loss, expected.losses, 1e-9, "losses")
        shared, private = found.shared, found.private
        table, own = expected.shared, expected.private
        assert_near(shared.tensors["item_embedding"], table, 1e-9, "table")
        assert shared.trained == number
        assert set(own) == set(private)
        for name, values in own.items():
            assert_near(private[name], values, 1e-9, name)


def test_who_no_longer_improves_stops_alone(users):
    """And shrinks the untouched rows in the steps that it took, not in those that it did not."""
    learner = learner_of(tolerance=0.16, local_epochs=6)
    shared, private = begin(learner, users)
    expected = plain_round(learner, users, shared.tensors["item_embedding"], private, 4, 1)
    assert len(set(expected.epochs)) > 2, expected.epochs
    found = train_unrounded(learner, users, shared, private, 4)
    assert_near(found.change["item_embedding"], expected.change, 1e-9)
    for name, values in expected.private.items():
        assert_near(found.private[name], values, 1e-9, name)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_three_rounds_on_the_grid(users, variant):
    """In float32; each of the plain rounds starts where the trainer's does."""
    learner = learner_of(**variant)
    shared, private = learner.initial_shared(), learner.initial_private(users)
    for number, round_id in enumerate((2, 5, 6), start=1):
        table = shared.tensors["item_embedding"].astype(np.float32).astype(float)
        own = {name: values.astype(float) for name, values in private.tensors.items()}
        expected = plain_round(learner, users, table, own, round_id, number)
        part = learner.contribute("train", round_id, shared, users, private)
        assert part.n_clipped == 0
        shared, private = learner.apply("train", round_id, shared, part.vector), part.private
        if learner.algorithm.settings.tables != "private":
            step = learner.layout.tensors[0].step
            found = learner.layout.changes_of(part.vector)["item_embedding"] * step
            assert_near(found, expected.change, 1e-5, "change")
            # Also of the rows that hardly anybody touched.
            assert np.abs(found - expected.change).max() < 1e-5 * np.abs(table).max() * len(users)
        assert_near(shared.tensors["item_embedding"], expected.shared, 1e-5, "table")
        for name, values in expected.private.items():
            assert_near(private.tensors[name], values, 1e-5, name)
