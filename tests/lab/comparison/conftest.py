"""Data with planted tastes, and a federation that trains on it in a blink."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrec.data import generate, leave_one_out
from fedrec.settings.schema import Settings
from fedrec_lab.comparison.measurement import MethodTask


@pytest.fixture(scope="session")
def planted():
    """60 users in 4 clusters of taste, 120 items."""
    made = generate(n_users=60, n_items=120, n_clusters=4, interactions_per_user=12, seed=8)
    return leave_one_out(made.interactions, made.catalogue), made.catalogue


@pytest.fixture(scope="session")
def small():
    """FedMF, two rounds."""
    return Settings.model_validate(
        {
            "federation": {"minimum_item_users": 3, "maximum_users": 64},
            "algorithm": {"dim": 4, "learning_rate": 1.0},
            "update": {"structure": "colr", "rank": 2, "clip": 4.0},
            "protection": {"name": "none"},
            "rounds": {"total": 2},
            "client": {"device": "cpu", "threads": 1},
        }
    )


@pytest.fixture(scope="session")
def task_of(planted, small):
    """Return a function that makes a task on the planted data."""
    users, catalogue = planted
    task = MethodTask(
        settings=small, catalogue=catalogue, users=users, protocols=("full",), seeds=(1,)
    )

    def make(**changes) -> MethodTask:
        return replace(task, **changes)

    return make
