"""Randomness for noise: exact choices from a stream of AES-256; and the papers' real numbers."""

from __future__ import annotations

import math
import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

BITS = 128


class Edges:
    """What random numbers are compared with.

    Args:
        exact: ascending, each between 0 and 2^128.
    """

    def __init__(self, exact: tuple[int, ...]) -> None:
        self.exact = exact
        words = [min(edge, (1 << BITS) - 1) >> 64 for edge in exact]
        self.high = np.array(words, dtype=np.uint64)


class RandomBits:
    """A stream that nobody can predict, not to be confused with `fedrec.random_streams`.

    Args:
        key: 32 bytes, used once; None draws it from the operating system. Tests alone give one.
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
        # Where the first words are equal the second ones decide: rare, hence one by one.
        place = np.searchsorted(edges.high, drawn, side="left")
        for index in np.nonzero(place != reached)[0].tolist():
            number = (int(drawn[index]) << 64) | int(self.words(1)[0])
            reached[index] = sum(edge <= number for edge in edges.exact)
        return reached


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
