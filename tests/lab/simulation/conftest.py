"""A small federation that trains in a blink."""

from __future__ import annotations

import pytest

from fedrec.data import generate, leave_one_out
from fedrec.settings.schema import Settings


@pytest.fixture(scope="session")
def data():
    """60 users in 3 clusters of taste, 90 items."""
    made = generate(n_users=60, n_items=120, n_clusters=3, interactions_per_user=12, seed=8)
    return leave_one_out(made.interactions, made.catalogue), made.catalogue


@pytest.fixture(scope="session")
def settings_of():
    """Return a function that makes the small federation's settings."""

    def make(**changes) -> Settings:
        sections = {
            "federation": {"minimum_item_users": 3, "maximum_users": 64},
            "algorithm": {"dim": 8, "learning_rate": 1.0},
            "update": {"structure": "colr", "rank": 3, "clip": 4.0},
            "protection": {"name": "none"},
            "rounds": {"total": 6, "recompute_limit": 16},
            "client": {"device": "cpu"},
        }
        for section, values in changes.items():
            sections[section] = sections.get(section, {}) | values
        return Settings.model_validate(sections)

    return make
