"""The paired bootstrap over users."""

import math

import numpy as np
import pytest

from fedrec.errors import DataError
from fedrec_lab.reports.comparison_table import paired_bootstrap


def test_the_estimate_is_the_plain_difference():
    model = np.array([0.0, 1.0, 50.0, -1.0])
    other = np.array([1.0, 1.0, 0.0, -1.0])
    found = paired_bootstrap(model, other)
    second = 1 / math.log2(3)
    assert found.users == 3
    assert found.difference.estimate == pytest.approx(((1 - second) - 1) / 3, abs=1e-6)
    assert found.ratio.estimate == pytest.approx((1 + second) / (2 * second + 1), abs=1e-5)


def test_of_several_seeds_a_user_has_the_mean():
    model = np.array([[0.0, 1.0, -1.0], [50.0, 1.0, -1.0]])
    other = np.array([1.0, 1.0, -1.0])
    found = paired_bootstrap(model, other)
    assert found.users == 2
    assert found.difference.estimate == pytest.approx((0.5 - 1 / math.log2(3)) / 2, abs=1e-6)
    assert found.difference.text().startswith("= -0.0655 [")
    with pytest.raises(DataError, match="different users"):
        paired_bootstrap(model, other[:2])


def test_equal_ranks_leave_no_doubt():
    ranks = np.arange(40.0)
    found = paired_bootstrap(ranks, ranks)
    assert (found.difference.low, found.difference.estimate, found.difference.high) == (0, 0, 0)
    assert (found.ratio.low, found.ratio.high) == (1, 1)
    assert not found.difference.excludes(0.0)


@pytest.mark.slow
def test_the_interval_is_that_of_the_normal_approximation():
    """Where ranks are 0 or a miss, gains are 0 and 1 and the spread is known."""
    random = np.random.default_rng(5)
    model = np.where(random.random(2000) < 0.4, 0.0, 99.0)
    other = np.where(random.random(2000) < 0.3, 0.0, 99.0)
    found = paired_bootstrap(model, other, seed=2)
    gains = (model == 0).astype(float) - (other == 0)
    half = 1.96 * gains.std() / math.sqrt(2000)
    assert found.difference.low == pytest.approx(gains.mean() - half, abs=0.1 * half)
    assert found.difference.high == pytest.approx(gains.mean() + half, abs=0.1 * half)
    assert found.difference.excludes(0.0)
    assert found.ratio.low > 1


def test_the_same_seed_gives_the_same_interval_in_any_chunks(monkeypatch):
    random = np.random.default_rng(1)
    model, other = random.integers(20, size=(2, 300)).astype(float)
    found = paired_bootstrap(model, other, n_resamples=500, seed=7)
    monkeypatch.setattr("fedrec_lab.reports.comparison_table._WEIGHTS_AT_ONCE", 1000)
    assert paired_bootstrap(model, other, n_resamples=500, seed=7) == found
    assert paired_bootstrap(model, other, n_resamples=500, seed=8) != found


def test_a_reference_without_any_hit_has_an_infinite_ratio():
    found = paired_bootstrap(np.zeros(9), np.full(9, 99.0))
    assert found.ratio.estimate == found.ratio.low == math.inf


def test_other_users_are_refused():
    with pytest.raises(DataError, match="different users"):
        paired_bootstrap(np.array([0.0, -1.0]), np.array([0.0, 1.0]))
    with pytest.raises(DataError, match="different users"):
        paired_bootstrap(np.zeros(2), np.zeros(3))
    with pytest.raises(DataError, match="nothing to compare"):
        paired_bootstrap(np.full(2, -1.0), np.full(2, -1.0))


def test_every_metric_has_its_own_difference():
    model, other = np.array([0.0, 1.0, 50.0, -1.0]), np.array([1.0, 1.0, 0.0, -1.0])
    hr = paired_bootstrap(model, other, metric="hr")
    assert hr.difference.estimate == pytest.approx(-1 / 3)
    mrr = paired_bootstrap(model, other, metric="mrr")
    assert mrr.difference.estimate == pytest.approx((1 - 0.5 + 0 - 1) / 3, abs=1e-6)
