"""Masks: AES-256 in counter mode, read as words of the ring of integers modulo 2^32.

The key has 32 bytes and is used for one mask only, so that the counter starts at 0 (NIST
SP 800-38A). Nothing here draws a number: masks are a function of keys.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

__all__ = ["WORD", "WORD_BYTES", "Words", "add_mask", "keystream"]

Words = NDArray[np.uint32]

WORD = np.dtype("<u4")
WORD_BYTES = 4
BLOCK_BYTES = 1 << 20
_ZEROS = bytes(BLOCK_BYTES)
_AES_BLOCK = 16


def keystream(key: bytes, n_words: int) -> Words:
    """Return the first words that a 32-byte key gives, uint32 of shape (n_words,)."""
    words = np.zeros(n_words, dtype=WORD)
    add_mask(words, key, 1)
    return words


def add_mask(words: Words, key: bytes, sign: int) -> None:
    """Add the mask of a key to ``words`` in place, or subtract it where ``sign`` is -1.

    Both the cipher and the sum release the interpreter's lock.
    """
    encryptor = Cipher(AES256(key), CTR(bytes(_AES_BLOCK))).encryptor()
    step = BLOCK_BYTES // WORD_BYTES
    buffer = bytearray(min(BLOCK_BYTES, words.nbytes) + _AES_BLOCK - 1)
    combine = np.add if sign > 0 else np.subtract
    for start in range(0, len(words), step):
        part = words[start : start + step]
        encryptor.update_into(memoryview(_ZEROS)[: part.nbytes], buffer)
        combine(part, np.frombuffer(buffer, dtype=WORD, count=len(part)), out=part)
