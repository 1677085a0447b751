"""Data shared by the tests of this folder."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.data import Interactions


@pytest.fixture(scope="session")
def ml_100k_shuffled(ml_100k_interactions: Interactions) -> Interactions:
    """The interactions of MovieLens 100K in another order."""
    order = np.random.default_rng(7).permutation(len(ml_100k_interactions))
    return ml_100k_interactions.take(order)
