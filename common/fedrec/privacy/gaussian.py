"""Discrete Gaussian noise: integers k with probability proportional to exp(-k^2 / (2 s^2)).

Chosen over Skellam because shares of it add up to it: for independent discrete Gaussians the
law of x_1 + b x_2 is that of standard deviation sqrt(s_1^2 + b^2 s_2^2), every probability within
a factor 1 +- 4 exp(-2 pi^2 s^2), 1/s^2 = 1/s_2^2 + b^2/s_1^2 (Poisson summation of the inner sum;
Peikert 2010, theorem 3.1). The same lemma makes a wide one of narrow ones, which come from small
tables, and the sum over clients. With s >= 2, as everywhere here, the factor is 1 +- 3e-34.

It also makes the noise a function of continuous Gaussian noise of variance s^2 - 4: adding
discrete noise of standard deviation 2 around a continuous one gives the discrete one of s. So
what `fedrec.privacy.mechanism` says of Gaussian noise holds for this one.

A table ends at 14 standard deviations, outside of which less than 2^-138 lies; what lies inside
has its probability to 2^-128. Therefore no value is ever larger than `largest` says.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedrec.privacy.random_bits import BITS, Edges, RandomBits

FEWEST_STEPS = 16
"""The smallest standard deviation of a share, in grid steps."""
SMOOTHING_VARIANCE = 4.0

_INNER = 64
_WIDEST_TABLE = 256
_REACH = 14
_DIGITS = 80


def discrete_gaussian(deviation: int, length: int, bits: RandomBits) -> NDArray[np.int64]:
    """Return independent values, int64 (length,).

    Args:
        deviation: standard deviation, at least `FEWEST_STEPS`.
    """
    noise = np.zeros(length, dtype=np.int64)
    for factor, square in _levels(deviation * deviation):
        edges, reach = _table(square)
        noise += factor * (bits.chosen(edges, length) - reach)
    return noise


def largest(deviation: int) -> int:
    """Return a bound that no value exceeds, in size."""
    return sum(factor * _reach_of(square) for factor, square in _levels(deviation * deviation))


def _levels(square: int) -> list[tuple[int, Decimal]]:
    """Return factors and variances of narrow noise that adds up to a variance, exactly."""
    found: list[tuple[int, Decimal]] = []
    factor, left = 1, Decimal(square)
    with localcontext() as context:
        context.prec = _DIGITS
        while left > _WIDEST_TABLE**2:
            found.append((factor, Decimal(_INNER**2)))
            left -= _INNER**2
            # The inner sum stays smooth: 1 / s^2 <= 31^2 / 64^2 + 1 / 66^2 < 1 / 4.
            step = min(31, int(left.sqrt() / 66))
            factor, left = factor * step, left / step**2
        found.append((factor, left))
    return found


def _reach_of(square: Decimal) -> int:
    return int(_REACH * square.sqrt()) + 1


@cache
def _table(square: Decimal) -> tuple[Edges, int]:
    """Return cumulated probabilities of -reach .. reach in units of 2^-128, and the reach."""
    reach = _reach_of(square)
    with localcontext() as context:
        context.prec = _DIGITS
        # exp(-(k+1)^2/2s^2) = exp(-k^2/2s^2) x exp(-(2k+1)/2s^2): two products for each value.
        ratio = (-1 / (2 * square)).exp()
        squared = ratio * ratio
        half = [Decimal(1)]
        for _ in range(reach):
            half.append(half[-1] * ratio)
            ratio *= squared
        weights = [*half[:0:-1], *half]
        total = sum(weights)
        edges, sum_so_far = [], Decimal(0)
        for weight in weights[:-1]:
            sum_so_far += weight
            edges.append(int(sum_so_far / total * (1 << BITS)))
    return Edges(tuple(edges)), reach
