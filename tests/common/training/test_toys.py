"""Algorithms that fedrec does not have yet keep the seam's contract."""

from dataclasses import replace

import numpy as np
import pytest
from conformance import party
from conformance.algorithm_suite import AlgorithmSuite
from conformance.toys import DIM, TOYS, registered
from world.plans import plan_of, users_of

from fedrec.training.learner import Learner

pytestmark = pytest.mark.slow

N_ITEMS = 40
NAMES = [toy.name for toy in TOYS]


@pytest.fixture(autouse=True, scope="module")
def toys():
    with registered():
        yield


def passes(name, batch_size, epochs):
    """Return the settings for minibatches and epochs; those of a wrapper are its base's."""
    own = {"batch_size": batch_size, "local_epochs": epochs}
    if name == "wrapper-toy":
        base = {"name": "fedmf", "dim": DIM, "regularisation": 0.01, "learning_rate": 0.4}
        return {"base": base | own}
    return own


def several():
    plan = plan_of(
        federation={"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
        algorithm={"name": "several-toy", **passes("several-toy", 7, 2)},
        update={"structure": "dense", "clip": 16.0, "fraction_bits": 34},
    )
    return Learner(plan, N_ITEMS, device="cpu")


def test_every_tensor_has_a_range_and_a_grid_of_its_own():
    tensors = {tensor.name: tensor for tensor in several().server.layout.tensors}
    assert {name: (t.shape, t.limit, t.fraction_bits) for name, t in tensors.items()} == {
        "item_embedding": ((N_ITEMS, 5), 16.0, 34),
        "item_bias": ((N_ITEMS,), 8.0, 29),
        "scale": ((2, 5), 4.0, 34),
        "bias": ((), 4.0, 28),
        "users": ((1,), 1.0, 0),
        "samples": ((1,), 4096.0, 12),
    }


def test_a_tensor_is_clipped_to_its_own_range(monkeypatch):
    """A bias that may move by 2^-10 only moves so far; the others move as before."""
    wide, users = several(), users_of(11, N_ITEMS, clusters=2, each=16, short=16)
    shared, private = wide.server.initial_shared(), wide.local.initial_private(users)
    free = wide.contribute("train", 4, shared, users, private)
    kind = type(wide.server.algorithm)
    parameters = kind.parameters.fget
    narrow = {"bias": 2.0**-10}

    def narrowed(self):
        return tuple(
            replace(entry, limit=narrow[entry.name]) if entry.name in narrow else entry
            for entry in parameters(self)
        )

    monkeypatch.setattr(kind, "parameters", property(narrowed))
    tight = several()
    part = tight.contribute("train", 4, shared, users, private)
    changes = tight.server.layout.changes_of(part.vector)
    before = wide.server.layout.changes_of(free.vector)
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
