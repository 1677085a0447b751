"""Discrete Gaussian and Laplace noise, the papers' continuous noise, and their randomness.

Discrete Gaussian noise: integers k with probability proportional to exp(-k^2 / (2 s^2)). It is
preferred to Skellam noise because its shares add up to it. For independent discrete Gaussians the
distribution of x_1 + b x_2 is that of standard deviation sqrt(s_1^2 + b^2 s_2^2). Every probability
is within a factor 1 +- 4 exp(-2 pi^2 s^2), 1/s^2 = 1/s_2^2 + b^2/s_1^2 (Poisson summation of the
inner sum, Peikert 2010, theorem 3.1). The same lemma builds a wide one from narrow ones, which come
from small tables, and the sum over clients. With s >= 2, as everywhere here, the factor is 1 +-
3e-34.

It also makes the noise a function of continuous Gaussian noise of variance s^2 - 4: adding discrete
noise of standard deviation 2 around a continuous one gives the discrete one of s. So the statements
of `fedrec.privacy.mechanism` about Gaussian noise hold for this one.

A table ends at 14 standard deviations, with less than 2^-138 outside. Probabilities inside are
exact to 2^-128. Therefore no value ever exceeds `largest_gaussian`.

Discrete Laplace noise: integers k with probability proportional to exp(-|k| / b). It is the
difference of two geometric numbers of ratio q = exp(-1/b), whose binary digits are independent:
digit i is 1 with probability q^(2^i) / (1 + q^(2^i)).
"""

from __future__ import annotations

import math
import secrets
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

BITS = 128


class Edges:
    """Boundaries with which random numbers are compared.

    Args:
        exact: ascending, each between 0 and 2^128.
    """

    def __init__(self, exact: tuple[int, ...]) -> None:
        self.exact = exact
        words = [min(edge, (1 << BITS) - 1) >> 64 for edge in exact]
        self.high = np.array(words, dtype=np.uint64)


class RandomBits:
    """An unpredictable random stream, not to be confused with `fedrec.random_streams`.

    Args:
        key: 32 bytes, used once. None draws it from the operating system. Only tests give one.
    """

    def __init__(self, key: bytes | None = None) -> None:
        cipher = Cipher(algorithms.AES256(key or secrets.token_bytes(32)), modes.CTR(bytes(16)))
        self._stream = cipher.encryptor()

    def words(self, n_words: int) -> NDArray[np.uint64]:
        """Return uniform words of 64 bits, uint64 (n_words,)."""
        return np.frombuffer(self._stream.update(bytes(8 * n_words)), dtype="<u8")

    def chosen(self, edges: Edges, n_draws: int) -> NDArray[np.int64]:
        """Return how many edges each of some uniform numbers below 2^128 reaches, int64.

        The edge of index i is reached with probability 1 - edge / 2^128 exactly.
        """
        drawn = self.words(n_draws)
        reached = np.searchsorted(edges.high, drawn, side="right").astype(np.int64)
        # If the first words are equal, the second ones decide. This is rare, hence one by one.
        place = np.searchsorted(edges.high, drawn, side="left")
        for index in np.nonzero(place != reached)[0].tolist():
            number = (int(drawn[index]) << 64) | int(self.words(1)[0])
            reached[index] = sum(edge <= number for edge in edges.exact)
        return reached


_UNIT = 2.0**-53


def laplace_noise(scale: float, length: int, bits: RandomBits) -> NDArray[np.float64]:
    """Return independent Laplace values, float64 (length,).

    Args:
        scale: b. The density is exp(-|x| / b) / 2b, the standard deviation b sqrt(2).
    """
    words = bits.words(length)
    size = np.log(_uniform(words))
    size *= -scale
    # A bit that `_uniform` leaves out.
    return np.negative(size, out=size, where=(words & np.uint64(1)).astype(np.bool_))


def gaussian_noise(deviation: float, length: int, bits: RandomBits) -> NDArray[np.float64]:
    """Return independent Gaussian values, float64 (length,), by Box and Muller's method."""
    half = -(-length // 2)
    words = bits.words(2 * half)
    radius = np.sqrt(-2.0 * np.log(_uniform(words[:half]))) * deviation
    angle = _uniform(words[half:]) * (2.0 * math.pi)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:length]


def _uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return numbers strictly between 0 and 1, from the upper 53 bits."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * _UNIT


FEWEST_STEPS = 16
"""The smallest standard deviation of a share, in grid steps."""
SMOOTHING_VARIANCE = 4.0

_INNER = 64
_WIDEST_TABLE = 256
_GAUSSIAN_REACH = 14
_DIGITS = 80


def discrete_gaussian(deviation: int, length: int, bits: RandomBits) -> NDArray[np.int64]:
    """Return independent discrete Gaussian values, int64 (length,).

    Args:
        deviation: standard deviation, at least `FEWEST_STEPS`.
    """
    noise = np.zeros(length, dtype=np.int64)
    for factor, square in _levels(deviation * deviation):
        edges, reach = _table(square)
        noise += factor * (bits.chosen(edges, length) - reach)
    return noise


def largest_gaussian(deviation: int) -> int:
    """Return a bound on the size of every value."""
    return sum(factor * _reach_of(square) for factor, square in _levels(deviation * deviation))


def _levels(square: int) -> list[tuple[int, Decimal]]:
    """Return factors and variances of narrow noises that add up exactly to a variance."""
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
    return int(_GAUSSIAN_REACH * square.sqrt()) + 1


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


_LAPLACE_REACH = 96
"""Digits from 2^i > 96 b on are never 1. The exact probability is exp(-96) < 2^-138."""


def discrete_laplace(scale: int, length: int, bits: RandomBits) -> NDArray[np.int64]:
    """Return independent discrete Laplace values, int64 (length,).

    Args:
        scale: b, at least 1. The standard deviation is about b sqrt(2).
    """
    noise = np.zeros(length, dtype=np.int64)
    for sign in (1, -1):
        for digit, edge in enumerate(_edges(scale)):
            noise += (sign << digit) * bits.chosen(edge, length)
    return noise


def largest_laplace(scale: int) -> int:
    """Return a bound on the size of every value."""
    return (1 << len(_edges(scale))) - 1


@cache
def _edges(scale: int) -> tuple[Edges, ...]:
    """Return for each digit the probability that it is 0, in units of 2^-128."""
    found = []
    with localcontext() as context:
        context.prec = _DIGITS
        digit = 0
        while (1 << digit) <= _LAPLACE_REACH * scale:
            odds = (-Decimal(1 << digit) / scale).exp()
            found.append(Edges((int(Decimal(1 << BITS) / (1 + odds)),)))
            digit += 1
    return tuple(found)
