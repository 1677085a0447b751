"""What releases cost, against published numbers and other accountants."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from reference.dp_epsilon import by_loss_distributions, by_renyi

from fedrec.privacy import Spent, largest_rho

DELTA = 1e-5


def gaussian(noise: float, rounds: int) -> Spent:
    return Spent(gaussian=1.0 / (2.0 * noise**2)).times(rounds)


@pytest.mark.parametrize(
    ("noise", "ten_rounds", "hundred_rounds"),
    [(1.0, 17.9, 91.8), (2.0, 7.5, 33.1), (4.0, 3.3, 13.2), (8.0, 1.5, 5.7)],
)
def test_the_published_table_without_amplification(noise, ten_rounds, hundred_rounds):
    """Every user in at most 10 of 100 rounds, and every user in all of them, delta 1e-5."""
    # The table is rounded to one digit, which alone is 3 % of its last cell.
    assert gaussian(noise, 10).epsilon(DELTA) == pytest.approx(ten_rounds, rel=0.02, abs=0.05)
    assert gaussian(noise, 100).epsilon(DELTA) == pytest.approx(hundred_rounds, rel=0.02)


@pytest.mark.parametrize(
    ("noise", "rounds", "delta"),
    [(1.0, 1, 1e-5), (3.0, 10, 1e-5), (8.0, 100, 1e-5), (4.0, 5, 1e-8)],
)
@pytest.mark.slow
def test_gaussian_epsilon_is_that_of_privacy_loss_distributions(noise, rounds, delta):
    expected = by_loss_distributions(noise, rounds, delta)
    assert gaussian(noise, rounds).epsilon(delta) == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.5, 2.0, 16.0])
@pytest.mark.parametrize("rounds", [1, 50])
def test_the_general_conversion_is_that_of_renyi_accounting(noise, rounds):
    """dp-accounting tries a list of orders; the best of all is at most one per cent better."""
    spent = Spent(laplace=1.0 / (2.0 * noise**2)).times(rounds)
    found, listed = spent.epsilon(DELTA), by_renyi(noise, rounds, DELTA)
    assert found <= listed * (1.0 + 1e-9)
    assert found == pytest.approx(listed, rel=0.01)


def test_the_exact_curve_is_never_above_the_general_one():
    for rho in (1e-6, 1e-3, 0.1, 1.0, 20.0, 1000.0):
        assert Spent(gaussian=rho).epsilon(DELTA) <= Spent(laplace=rho).epsilon(DELTA)


def test_both_kinds_together_cost_no_less_than_their_sum():
    mixed = Spent(gaussian=0.3) + Spent(laplace=0.2)
    assert mixed.epsilon(DELTA) == Spent(laplace=0.5).epsilon(DELTA)


def test_nothing_costs_nothing():
    assert Spent().epsilon(DELTA) == 0.0
    assert Spent().times(5) == Spent()


def test_large_costs_do_not_overflow():
    """mu = 1,000: the loss is N(mu^2 / 2, mu^2), whose upper 1e-5 point is 4.2649 mu above."""
    spent = Spent(gaussian=1000.0**2 / 2.0)
    assert spent.epsilon(DELTA) == pytest.approx(1000.0**2 / 2.0 + 4.2649 * 1000.0, rel=1e-3)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
def test_a_budget_is_used_up_and_not_exceeded(kind, epsilon):
    rho = largest_rho(kind, epsilon, DELTA)
    assert Spent(**{kind: rho}).epsilon(DELTA) == pytest.approx(epsilon, rel=1e-6)
    assert Spent(**{kind: rho}).fits(epsilon, DELTA)
    assert not Spent(**{kind: rho * 1.001}).fits(epsilon, DELTA)


def test_more_rounds_cost_more():
    found = [gaussian(2.0, rounds).epsilon(DELTA) for rounds in range(1, 30)]
    assert all(later > earlier for earlier, later in pairwise(found))
    assert math.isfinite(found[-1])
