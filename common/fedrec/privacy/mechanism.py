"""Integer noise mechanisms, and the combined privacy cost of their releases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedrec.privacy.noise import (
    SMOOTHING_VARIANCE,
    RandomBits,
    discrete_gaussian,
    discrete_laplace,
    largest_gaussian,
    largest_laplace,
)

_HALVINGS = 200
_MOST_EPSILON = 1e7


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Privacy spent on a user, in rho.

    Attributes:
        gaussian: spent by sums with Gaussian noise.
        laplace: spent by sums with Laplace noise.
    """

    gaussian: float = 0.0
    laplace: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(gaussian=self.gaussian + other.gaussian, laplace=self.laplace + other.laplace)

    def times(self, n_rounds: int) -> Spent:
        """Return the cost of this number of such releases."""
        return Spent(gaussian=self.gaussian * n_rounds, laplace=self.laplace * n_rounds)

    def epsilon(self, delta: float) -> float:
        """Return epsilon at a delta between 0 and 1."""
        if not self.laplace:
            return _gaussian_epsilon(self.gaussian, delta)
        return _concentrated_epsilon(self.gaussian + self.laplace, delta)

    def fits(self, epsilon: float, delta: float) -> bool:
        """Return whether it is within a budget, up to rounding of sums of equal costs."""
        return self.epsilon(delta) <= epsilon * (1.0 + 1e-9)


@lru_cache(maxsize=64)
def largest_rho(kind: str, epsilon: float, delta: float) -> float:
    """Return the largest rho whose epsilon at delta does not exceed the given one.

    Args:
        kind: "gaussian" or "laplace", as in `Spent`.
    """

    def exceeds(rho: float) -> bool:
        return Spent(**{kind: rho}).epsilon(delta) > epsilon

    # sqrt(2 rho) is at most a few epsilon, and rho at least the pure one.
    return _bisect(exceeds, 0.0, 10.0 * (epsilon + 1.0))[0]


def _gaussian_epsilon(rho: float, delta: float) -> float:
    if not rho:
        return 0.0
    mu = math.sqrt(2.0 * rho)
    return _bisect(lambda epsilon: _delta(mu, epsilon) <= delta, 0.0, _MOST_EPSILON)[1]


def _delta(mu: float, epsilon: float) -> float:
    """Return the delta of Gaussian noise at an epsilon (Balle and Wang 2018, theorem 8).

    It doesn't overflow:
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
    """Return the epsilon of rho-zCDP at delta (Canonne, Kamath and Steinke 2020, corollary 13).

    It is the minimum over orders a = 1 + exp(t). There is only one.
    """

    def at(place: float) -> float:
        order = 1.0 + math.exp(place)
        return order * rho - math.log1p(math.exp(-place)) - math.log(delta * order) / (order - 1.0)

    low, high = -30.0, 30.0
    for _ in range(_HALVINGS):
        left, right = low + (high - low) / 3.0, high - (high - low) / 3.0
        low, high = (low, right) if at(left) <= at(right) else (left, high)
    return max(0.0, at((low + high) / 2.0))


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return an interval around the point from which a condition holds."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


BUDGET_SPENT = "the privacy budget is spent"
"""The beginning of the reason for which a run without remaining budget ends."""
_UNLIKELY_BITS = 40
"""Probability 2^-40: in one of that many rounds, honest noise is taken for an attack."""


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Clip each user to `bound`, sum up, and add every client's noise.

    Attributes:
        kind: the distribution of the noise, discrete.
        bound: largest L2 norm of a user's contribution, in grid steps.
        share: deviation (gaussian) or scale (laplace) of one client's noise, in grid steps.
        clients: smallest number of clients in a published sum.
        noisy: the honest ones among them, whose noise the guarantee needs.
        rounds_per_user: largest number of rounds in which a user takes part.
        epsilon, delta: the budget.
        divisor: the divisor of sums, which replaces the number of users.
        in_parts: whether all sums of a run are parts of one release. A user's contributions to all
            of them are one vector, which is clipped to `bound` as a whole. A part that is drawn
            again has new noise, and counts as a release of its own.
    """

    kind: Literal["gaussian", "laplace"]
    bound: int
    share: int
    clients: int
    noisy: int
    rounds_per_user: int
    epsilon: float
    delta: float
    divisor: float
    in_parts: bool = False

    @cached_property
    def cost(self) -> Spent:
        """The cost of one release for a user that takes part in it.

        Parts of one release together cost what a single sum of the whole vector does. This also
        holds if values of a part depend on the noisy sums before it. Under adaptive composition,
        the mu^2 = |x_i|^2 / deviation^2 of a user's parts add up, to bound^2 / deviation^2 at most
        (Dong, Roth and Su, "Gaussian Differential Privacy", 2022).
        """
        return self._cost(self.noisy)

    def _cost(self, noisy: int) -> Spent:
        if self.kind == "laplace":
            # Coordinate i is pure with |x_i| / b, hence concentrated with x_i^2 / (2 b^2).
            return Spent(laplace=self.bound**2 / (2.0 * self.share**2))
        variance = noisy * (self.share**2 - SMOOTHING_VARIANCE)
        return Spent(gaussian=self.bound**2 / (2.0 * variance))

    @property
    def deviation(self) -> float:
        """The smallest standard deviation of a sum's noise, in grid steps."""
        if self.kind == "laplace":
            return self.share * math.sqrt(2.0)
        return self.share * math.sqrt(self.noisy)

    @property
    def largest(self) -> int:
        """A bound on the noise of one client, in size and in grid steps."""
        if self.kind == "laplace":
            return largest_laplace(self.share)
        return largest_gaussian(self.share)

    def reach(self, n_shares: int, n_values: int) -> int:
        """Return a bound on each of `n_values` values of a sum's noise, in size and grid steps.

        It fails with a probability of 2^-40 in all. A sum of n discrete Gaussians of deviation s
        exceeds x with a probability of at most 2 exp(-x^2 / (2 n s^2)), like a continuous one: its
        moment generating function is no larger (Canonne, Kamath and Steinke 2020). That of
        discrete Laplace noise of scale b is at most (1 - b^2 t^2)^-n. With t = u / b and
        u^2 = L / (L + n), where L = ln(2 values 2^40), Chernoff's bound is
        x <= b (L - n ln(1 - u^2)) / u <= 2 b sqrt(L (L + n)).

        Args:
            n_shares: clients whose noise is in the sum.
        """
        unlikely = math.log(2.0 * max(n_values, 1)) + _UNLIKELY_BITS * math.log(2.0)
        if self.kind == "laplace":
            found = 2.0 * self.share * math.sqrt(unlikely * (unlikely + n_shares))
        else:
            found = self.share * math.sqrt(2.0 * unlikely * n_shares)
        return min(math.ceil(found), n_shares * self.largest)

    @property
    def budget(self) -> str:
        """The budget as text."""
        return f"privacy.epsilon = {self.epsilon:g} at delta = {self.delta:g}"

    def noise(self, length: int, bits: RandomBits | None = None) -> NDArray[np.int64]:
        """Return one client's noise for `length` values, int64 (length,), fresh every time."""
        source = RandomBits() if bits is None else bits
        if self.kind == "laplace":
            return discrete_laplace(self.share, length, source)
        return discrete_gaussian(self.share, length, source)

    def releases(self, n_sums: int, n_published: int) -> int:
        """Return how many releases some noisy sums are, at most.

        Args:
            n_sums: noisy sums, whether they were published or not.
            n_published: those that were published. If sums are parts of one release, only these are
                certainly different parts.
        """
        if not self.in_parts:
            return n_sums
        found = min(1, n_sums) + max(0, n_sums - max(1, n_published))
        most = self.most_sums
        if n_published and most is not None and found == most + 1:
            # The last sum was allowed, so no earlier one was the same part.
            return most
        return found

    def allows_another(self, n_sums: int, n_published: int) -> bool:
        """Return whether the budget has room for one more noisy sum after these.

        If sums are parts of one release, it may draw an unpublished part again.
        """
        drawn = n_sums - n_published if self.in_parts else n_sums
        return self.most_sums is None or drawn < self.most_sums

    def spent(self, n_releases: int) -> Spent:
        """Return the cost of this number of releases for the user that is in most of them."""
        return self.cost.times(min(n_releases, self.rounds_per_user))

    def epsilon_after(self, n_releases: int) -> float:
        """Return that user's epsilon at the plan's delta."""
        return self.spent(n_releases).epsilon(self.delta)

    def epsilon_under(self, n_shares: int, n_releases: int) -> float:
        """Return that user's epsilon against a reader that does not know this many shares.

        Under laplace, each client's own noise is enough.
        """
        cost = self._cost(n_shares)
        return cost.times(min(n_releases, self.rounds_per_user)).epsilon(self.delta)

    @cached_property
    def most_sums(self) -> int | None:
        """The number of releases within the budget, or None if `rounds_per_user` keeps it."""
        if self.spent(self.rounds_per_user).fits(self.epsilon, self.delta):
            return None
        low, high = 0, self.rounds_per_user
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.spent(middle).fits(self.epsilon, self.delta)
            low, high = (middle, high) if fits else (low, middle)
        return low
