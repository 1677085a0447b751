"""What releases cost: epsilon at a given delta, for one user and all rounds together.

A release of a sum with Gaussian noise of z times the clip costs rho = 1 / (2 z^2) (zero-
concentrated differential privacy, Bun and Steinke 2016), and costs add up. Gaussian noise alone
has an exact answer (Balle and Wang 2018, theorem 8): with mu = sqrt(2 rho)
    delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu).
Where Laplace noise is involved the general conversion holds (Canonne, Kamath and Steinke 2020,
proposition 12): epsilon = min over a > 1 of a rho + ln(1 - 1/a) - ln(a delta) / (a - 1).
Nothing is subtracted for rounds in which a user might not have taken part: no amplification.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Spent", "cheapest_rho"]

_HALVINGS = 200
_MOST_EPSILON = 1e7


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What was released about a user, in rho.

    Attributes:
        gaussian: of sums with Gaussian noise.
        laplace: of sums with Laplace noise.
    """

    gaussian: float = 0.0
    laplace: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(gaussian=self.gaussian + other.gaussian, laplace=self.laplace + other.laplace)

    def times(self, n_rounds: int) -> Spent:
        """Return the cost of that many such releases."""
        return Spent(gaussian=self.gaussian * n_rounds, laplace=self.laplace * n_rounds)

    def epsilon(self, delta: float) -> float:
        """Return epsilon at a delta between 0 and 1."""
        if not self.laplace:
            return _gaussian_epsilon(self.gaussian, delta)
        return _concentrated_epsilon(self.gaussian + self.laplace, delta)

    def fits(self, epsilon: float, delta: float) -> bool:
        """Tell whether it stays within a budget; sums of equal costs meet it but for rounding."""
        return self.epsilon(delta) <= epsilon * (1.0 + 1e-9)


@lru_cache(maxsize=64)
def cheapest_rho(kind: str, epsilon: float, delta: float) -> float:
    """Return the largest rho whose epsilon at delta is no more than the one given.

    Args:
        kind: "gaussian" or "laplace", as in `Spent`.
    """

    def exceeds(rho: float) -> bool:
        return Spent(**{kind: rho}).epsilon(delta) > epsilon

    # sqrt(2 rho) is no more than a few epsilon, and rho at least what is pure.
    return _bisect(exceeds, 0.0, 10.0 * (epsilon + 1.0))[0]


def _gaussian_epsilon(rho: float, delta: float) -> float:
    if not rho:
        return 0.0
    mu = math.sqrt(2.0 * rho)
    return _bisect(lambda epsilon: _delta(mu, epsilon) <= delta, 0.0, _MOST_EPSILON)[1]


def _delta(mu: float, epsilon: float) -> float:
    """Return the delta of Gaussian noise at an epsilon, without overflow.

    exp(epsilon) Phi(-b) = exp(-a^2 / 2) / sqrt(2 pi) x Mills(b), a, b = epsilon/mu -+ mu/2.
    """
    low, high = epsilon / mu - mu / 2.0, epsilon / mu + mu / 2.0
    tail = 0.5 * math.erfc(low / math.sqrt(2.0))
    return tail - math.exp(-low * low / 2.0) / math.sqrt(2.0 * math.pi) * _mills(high)


def _mills(x: float) -> float:
    """Return (1 - Phi(x)) / phi(x) for x >= 0."""
    if x < 25.0:
        return math.exp(x * x / 2.0) * math.sqrt(math.pi / 2.0) * math.erfc(x / math.sqrt(2.0))
    square = 1.0 / (x * x)
    return (1.0 - square * (1.0 - 3.0 * square * (1.0 - 5.0 * square * (1.0 - 7.0 * square)))) / x


def _concentrated_epsilon(rho: float, delta: float) -> float:
    """Minimise over a = 1 + exp(t); what is minimised has one valley."""

    def at(place: float) -> float:
        order = 1.0 + math.exp(place)
        return order * rho - math.log1p(math.exp(-place)) - math.log(delta * order) / (order - 1.0)

    low, high = -30.0, 30.0
    for _ in range(_HALVINGS):
        left, right = low + (high - low) / 3.0, high - (high - low) / 3.0
        low, high = (low, right) if at(left) <= at(right) else (left, high)
    return max(0.0, at((low + high) / 2.0))


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return the two ends of the place from which on a condition holds."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high
