"""Noise as papers put it on uploads: real numbers, from a cryptographic source.

`[privacy]` adds integers whose law is proven, and accounts for them. This is for papers that add
Laplace or Gaussian noise to each value of an upload and state an epsilon of their own. The numbers
are floating point, and what is sent is rounded to the grid; 53 bits of each come from `RandomBits`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedrec.privacy.random_bits import RandomBits

__all__ = ["gaussian_noise", "laplace_noise"]

_UNIT = 2.0**-53


def laplace_noise(scale: float, length: int, bits: RandomBits) -> NDArray[np.float64]:
    """Return independent values, float64 (length,).

    Args:
        scale: b; the density is exp(-|x| / b) / 2b, the standard deviation b sqrt(2).
    """
    words = bits.words(length)
    size = np.log(_uniform(words))
    size *= -scale
    # A bit that `_uniform` leaves out.
    return np.negative(size, out=size, where=(words & np.uint64(1)).astype(np.bool_))


def gaussian_noise(deviation: float, length: int, bits: RandomBits) -> NDArray[np.float64]:
    """Return independent values, float64 (length,), by Box and Muller's method."""
    half = -(-length // 2)
    words = bits.words(2 * half)
    radius = np.sqrt(-2.0 * np.log(_uniform(words[:half]))) * deviation
    angle = _uniform(words[half:]) * (2.0 * math.pi)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:length]


def _uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return numbers between 0 and 1, neither included, from the upper 53 bits."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * _UNIT
