"""Algorithms that fedrec does not have yet run on the trainer, and as their plain loops say."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conformance import party
from conformance.algorithm_suite import AlgorithmSuite
from conformance.toys import DIM, TOYS, registered
from conformance.unrounded import assert_near, begin, train_unrounded
from reference import plain_toys
from reference.plain_fedmf import batches_of, samples_of

from fedrec.data import generate, leave_one_out
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

pytestmark = pytest.mark.slow

N_ITEMS, EPOCHS, BATCH = 40, 2, 7
NAMES = [toy.name for toy in TOYS]


@pytest.fixture(autouse=True, scope="module")
def toys():
    with registered():
        yield


@pytest.fixture(scope="module")
def users():
    """Of 4 to 14 training items out of 40, so that their minibatches differ."""
    data = generate(n_users=11, n_items=N_ITEMS, n_clusters=2, interactions_per_user=16, seed=3)
    place = np.arange(len(data.interactions))
    return leave_one_out(data.interactions.take(place % 16 >= place // 16), data.catalogue)


def passes(name, batch_size, epochs):
    """Return the settings for minibatches and epochs; those of a wrapper are its base's."""
    own = {"batch_size": batch_size, "local_epochs": epochs}
    if name == "wrapper-toy":
        base = {"name": "fedmf", "dim": DIM, "regularisation": 0.01, "learning_rate": 0.4}
        return {"base": base | own}
    return own


def learner_of(name, **algorithm):
    own = passes(name, BATCH, EPOCHS)
    plan = Plan.model_validate(
        {
            "federation": {"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
            "algorithm": {"name": name} | own | algorithm,
            "update": {"structure": "dense", "clip": 16.0, "fraction_bits": 34},
        }
    )
    return Learner(plan, N_ITEMS, device="cpu")


def visit_of(name, algorithm, values, epochs, pace):
    """Return a user's values after a round by the plain loop."""
    settings = algorithm.settings
    if name == "sam-toy":
        rates = {"item_embedding": 10.0, "user_embedding": 0.5, "user_bias": 0.5}
        return plain_toys.sgd_visit(
            values, epochs, plain_toys.sharpness, rates, radius=settings.radius
        )
    if name == "wrapper-toy":
        rates = {"item_embedding": 0.4, "user_embedding": 0.4, "own_item": 0.4}
        return plain_toys.sgd_visit(
            values, epochs, plain_toys.wrapper(0.01), rates, per_occurrence=True
        )
    if name == "schedule-toy":
        rates = {"item_embedding": 3.0 * pace, "user_embedding": 0.3 * pace}
        return plain_toys.sgd_visit(values, epochs, plain_toys.schedule(pace), rates)
    rates = {"item_embedding": 3.0, "item_bias": 3.0, "scale": 0.2, "bias": 0.2}
    middle = plain_toys.sgd_visit(values, epochs[:EPOCHS], plain_toys.several, rates)
    private = ["own_rows", "user_embedding"]
    return plain_toys.adam_visit(middle, epochs[EPOCHS:], plain_toys.several, 0.05, private)


def plain_round(name, learner, users, shared, private, round_id):
    """Return (sums of changes, next shared, next private)."""
    algorithm = learner.algorithm
    entries = {entry.name: entry for entry in algorithm.parameters}
    n_epochs = sum(phase.epochs for phase in algorithm.phases({"pace": 1.0}))
    pace = float(shared.get("pace", 1.0))
    sums = {n: np.zeros_like(v) for n, v in shared.items() if n != "pace"}
    counts, samples_seen = np.zeros(N_ITEMS), 0
    after = {n: v.copy() for n, v in private.items()}
    for index, key in enumerate(users.user_keys().tolist()):
        positives = users.train_of(index).tolist()
        samples = samples_of(7, round_id, key, positives, positives, N_ITEMS, 4)
        epochs = [
            batches_of(7, round_id, epoch, key, samples, algorithm.batch_size)
            for epoch in range(n_epochs)
        ]
        touched = sorted({item for item, _ in samples})
        values = {n: torch.tensor(v) for n, v in shared.items() if n != "pace"}
        values |= {n: torch.tensor(v[index]) for n, v in private.items()}
        found = visit_of(name, algorithm, values, epochs, pace)
        counts[touched] += 1
        samples_seen += len(positives)
        for n in sums:
            weight = len(positives) if entries[n].mean == "samples" else 1
            sums[n] += weight * (found[n].numpy() - shared[n])
        for n in private:
            after[n][index] = found[n].numpy()
    following = {}
    for n, total in sums.items():
        mean = entries[n].mean
        if mean == "holders":
            divisor = np.maximum(counts, 1).reshape(-1, *[1] * (total.ndim - 1))
        else:
            divisor = samples_seen if mean == "samples" else len(users)
        following[n] = shared[n] + total / divisor
    if "pace" in shared:
        following["pace"] = shared["pace"] * 1.25
    return SimpleNamespace(sums=sums, shared=following, private=after)


@pytest.mark.parametrize("name", NAMES)
def test_two_rounds_before_rounding(users, name):
    learner = learner_of(name)
    shared, private = begin(learner, users)
    tensors, own = dict(shared.tensors), private
    for round_id in (4, 5):
        expected = plain_round(name, learner, users, tensors, own, round_id)
        found = train_unrounded(learner, users, shared, private, round_id)
        for key, total in expected.sums.items():
            assert_near(found.change[key], total, 1e-9, key)
        shared, private = found.shared, found.private
        tensors, own = expected.shared, expected.private
        for key, value in tensors.items():
            assert_near(shared.tensors[key], value, 1e-9, key)
        assert set(private) == set(own)
        for key, value in own.items():
            assert_near(private[key], value, 1e-9, key)


@pytest.mark.parametrize("name", NAMES)
def test_two_rounds_on_the_grid(users, name):
    learner = learner_of(name)
    shared, private = learner.initial_shared(), learner.initial_private(users)
    tolerance = 1e-3 if name == "several-toy" else 2e-5
    for round_id in (4, 5):
        tensors = {k: v.astype(np.float32).astype(float) for k, v in shared.tensors.items()}
        own = {k: v.astype(float) for k, v in private.tensors.items()}
        expected = plain_round(name, learner, users, tensors, own, round_id)
        part = learner.contribute("train", round_id, shared, users, private)
        assert part.n_clipped == 0
        changes = learner.layout.changes_of(part.vector)
        for tensor in learner.layout.tensors:
            if tensor.name in expected.sums:
                found = changes[tensor.name] * tensor.step
                assert_near(found, expected.sums[tensor.name], tolerance, tensor.name)
        private, shared = part.private, learner.apply("train", round_id, shared, part.vector)
        for key, value in expected.shared.items():
            assert_near(shared.tensors[key], value, tolerance, key)
        for key, value in expected.private.items():
            assert_near(private.tensors[key], value, tolerance, key)


def test_every_tensor_has_a_range_and_a_grid_of_its_own():
    tensors = {tensor.name: tensor for tensor in learner_of("several-toy").layout.tensors}
    assert {name: (t.shape, t.limit, t.fraction_bits) for name, t in tensors.items()} == {
        "item_embedding": ((N_ITEMS, 5), 16.0, 34),
        "item_bias": ((N_ITEMS,), 8.0, 29),
        "scale": ((2, 5), 4.0, 34),
        "bias": ((), 4.0, 28),
        "users": ((1,), 1.0, 0),
        "samples": ((1,), 4096.0, 12),
    }


def test_a_tensor_is_clipped_to_its_own_range(users, monkeypatch):
    """A bias that may move by 2^-10 only moves so far; the others move as before."""
    wide = learner_of("several-toy")
    shared, private = wide.initial_shared(), wide.initial_private(users)
    free = wide.contribute("train", 4, shared, users, private)
    kind = type(wide.algorithm)
    parameters = kind.parameters.fget
    narrow = {"bias": 2.0**-10}

    def narrowed(self):
        return tuple(
            replace(entry, limit=narrow[entry.name]) if entry.name in narrow else entry
            for entry in parameters(self)
        )

    monkeypatch.setattr(kind, "parameters", property(narrowed))
    tight = learner_of("several-toy")
    part = tight.contribute("train", 4, shared, users, private)
    changes, before = tight.layout.changes_of(part.vector), wide.layout.changes_of(free.vector)
    assert 0 < part.n_clipped <= len(users)
    assert abs(int(changes["bias"])) <= len(users) << 28
    for name in ("item_embedding", "item_bias", "scale"):
        assert np.array_equal(changes[name], before[name])


class TestToys(AlgorithmSuite):
    """The toys keep the seam's contract."""

    @pytest.fixture(scope="class", params=NAMES)
    @classmethod
    def choice(cls, request):
        with registered():
            yield request.param, "dense"

    @pytest.fixture(scope="class")
    @classmethod
    def plan(cls, choice):
        return party.plan_of(*choice, algorithm=passes(choice[0], 16, 2))
