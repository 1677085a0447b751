"""Randomness for noise: a stream of AES-256 under a key of its own, and exact choices from it.

No floating point decides anything: a choice compares 128 random bits with a table of integers,
so that no pattern of roundings tells which number the noise was added to (Mironov 2012).
"""

from __future__ import annotations

import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

__all__ = ["BITS", "Edges", "RandomBits"]

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
