"""A federation of ninety users, and what one process makes of a round of it."""

from __future__ import annotations

import numpy as np
import pytest
from world.plans import users_of

from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

N_ITEMS = 200
KINDS = {
    "fedmf, colr": {},
    "fedmf, dense": {"update": {"structure": "dense"}},
    "fedmf, scolr": {"update": {"structure": "scolr", "normaliser": "entry"}},
    "fedmf, topk": {"update": {"structure": "topk"}},
    "pfedrec": {
        "algorithm": {"name": "pfedrec", "dim": 8, "batch_size": 32, "item_rate_scale": 0.01},
        "update": {"structure": "dense", "clip": 256.0},
    },
    "fedncf": {
        "algorithm": {"name": "fedncf", "dim": 8, "batch_size": 32},
        "update": {"structure": "dense"},
    },
    "fedrap": {
        "algorithm": {
            "name": "fedrap",
            "dim": 8,
            "batch_size": 32,
            "item_rate": 8.0,
            "local_epochs": 3,
            "weight_decay": 1e-3,
        },
        "update": {"structure": "dense"},
    },
    "plgc": {
        "algorithm": {
            "name": "plgc",
            "upload": "table",
            "base": {"name": "fedmf", "dim": 8, "batch_size": 32, "local_epochs": 2},
        },
        "update": {"structure": "dense"},
    },
    "under noise": {
        "update": {"structure": "dense"},
        "privacy": {"mechanism": "gaussian", "epsilon": 8.0, "delta": 1e-5},
    },
}
EXACT = {
    "fedals": {"algorithm": {"name": "fedals", "dim": 8}, "update": {"structure": "dense"}},
    "ease": {"algorithm": {"name": "ease"}, "update": {"structure": "dense"}},
    "sketch": {"algorithm": {"name": "sketch"}, "update": {"structure": "dense"}},
    "accelerated, candidates": {
        "training": {"accelerated": True},
        "evaluation": {"protocol": "sampled"},
    },
}


@pytest.fixture(scope="session")
def users():
    return users_of(90, N_ITEMS, clusters=4, each=20, seed=1, thin=0.25)


@pytest.fixture(scope="session")
def plan_of():
    def made(**changes):
        settings = {
            "federation": {"maximum_users": 256, "minimum_item_users": 2, "seed": 5},
            "algorithm": {"dim": 8, "batch_size": 32},
            "update": {"rank": 3},
            "rounds": {"total": 2},
            # Compiled code has threads; processes are the trainer's.
            "training": {"accelerated": False},
        }
        for section, values in changes.items():
            # Another algorithm has other settings.
            kept = {} if "name" in values else settings.get(section, {})
            settings[section] = kept | values
        return Plan.model_validate(settings)

    return made


@pytest.fixture(scope="session")
def play(users):
    """Return two training rounds of a learner, one upon the other."""

    def played(learner: Learner, rounds=(2, 3), participating=None):
        shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
        counted = learner.contribute("count", 1, shared, users, private)
        shared, found = learner.server.apply("count", 1, shared, counted.vector), []
        for number in rounds:
            part = learner.contribute("train", number, shared, users, private, participating)
            shared = learner.server.apply("train", number, shared, part.vector)
            private = part.private
            found.append(part)
        return found

    return played


@pytest.fixture(scope="session")
def same():
    def compared(some, others):
        assert len(some) == len(others)
        for one, other in zip(some, others, strict=True):
            assert np.array_equal(one.vector, other.vector)
            assert set(one.private.tensors) == set(other.private.tensors)
            for name, values in one.private.tensors.items():
                assert np.array_equal(values, other.private.tensors[name]), name

    return compared
