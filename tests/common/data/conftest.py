"""Data shared by the tests of this folder."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def ml_100k_shuffled(ml_100k_interactions):
    """The interactions of MovieLens 100K in another order."""
    order = np.random.default_rng(7).permutation(len(ml_100k_interactions))
    return ml_100k_interactions.take(order)
