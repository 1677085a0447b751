"""The best of a row of scores."""

import numpy as np
import pytest

from fedrec.recommender.ranking import best_items


@pytest.mark.parametrize("n", [1, 3, 10, 50, 99])
@pytest.mark.parametrize("levels", [3, 1000])
def test_it_is_a_stable_sort_cut_short(n, levels):
    random = np.random.default_rng(n)
    scores = random.integers(levels, size=60).astype(np.float32)
    scores[random.random(60) < 0.3] = -np.inf
    expected = np.argsort(-scores, kind="stable")[: min(n, int(np.isfinite(scores).sum()))]
    assert np.array_equal(best_items(scores, n), expected)


def test_nothing_to_choose_from():
    assert len(best_items(np.full(4, -np.inf, np.float32), 3)) == 0
