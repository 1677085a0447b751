"""Discrete Laplace noise: integers k with probability proportional to exp(-|k| / b).

The difference of two geometric numbers of ratio q = exp(-1/b), whose binary digits are
independent: digit i is 1 with probability q^(2^i) / (1 + q^(2^i)).
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedrec.privacy.random_bits import BITS, Edges, RandomBits

_REACH = 96
"""Digits from 2^i > 96 b on are never 1; they would be with probability exp(-96) < 2^-138."""
_DIGITS = 80


def discrete_laplace(scale: int, length: int, bits: RandomBits) -> NDArray[np.int64]:
    """Return independent values, int64 (length,).

    Args:
        scale: b, at least 1; the standard deviation is about b sqrt(2).
    """
    noise = np.zeros(length, dtype=np.int64)
    for sign in (1, -1):
        for digit, edge in enumerate(_edges(scale)):
            noise += (sign << digit) * bits.chosen(edge, length)
    return noise


def largest(scale: int) -> int:
    """Return a bound that no value exceeds, in size."""
    return (1 << len(_edges(scale))) - 1


@cache
def _edges(scale: int) -> tuple[Edges, ...]:
    """Return for each digit the probability that it is 0, in units of 2^-128."""
    found = []
    with localcontext() as context:
        context.prec = _DIGITS
        digit = 0
        while (1 << digit) <= _REACH * scale:
            odds = (-Decimal(1 << digit) / scale).exp()
            found.append(Edges((int(Decimal(1 << BITS) / (1 + odds)),)))
            digit += 1
    return tuple(found)
