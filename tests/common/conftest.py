"""MovieLens 100K, read once for all tests; whoever tests the reading reads it anew."""

from __future__ import annotations

import pytest

from fedrec.data import FetchedDataset, Interactions, UserSplit, fetch_ml_100k, leave_one_out


@pytest.fixture(scope="session")
def ml_100k() -> FetchedDataset:
    """The data through the product's own fetch; needs a package index the first time."""
    return fetch_ml_100k()


@pytest.fixture(scope="session")
def ml_100k_interactions(ml_100k: FetchedDataset) -> Interactions:
    """Its 100000 interactions in the file's order."""
    return ml_100k.read()[0]


@pytest.fixture(scope="session")
def ml_100k_users(ml_100k: FetchedDataset, ml_100k_interactions: Interactions) -> UserSplit:
    """Its 943 users, the last two interactions of each held out."""
    return leave_one_out(ml_100k_interactions, ml_100k.catalogue)
