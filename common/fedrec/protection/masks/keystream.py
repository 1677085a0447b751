"""Masks: AES-256 in counter mode, added modulo 2^32, or modulo 2^64 where a value needs it.

Words lie in one array of 32 bits: first two for each wide value, the lower one first, then one for
each narrow value. A wide value is one number to every sum, so that its words carry: a party that
adds up learns the sum of the values and nothing about the parts that they were written in.

The key has 32 bytes and is used for one mask only, so that the counter starts at 0 (NIST
SP 800-38A). Nothing here draws a number: masks are a function of keys.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

__all__ = ["WIDE", "WORD", "WORD_BYTES", "Words", "add_mask", "add_words"]

Words = NDArray[np.uint32]

WORD = np.dtype("<u4")
WIDE = np.dtype("<u8")
WORD_BYTES = 4
BLOCK_BYTES = 1 << 20
_ZEROS = bytes(BLOCK_BYTES)
_AES_BLOCK = 16


def add_words(total: Words, words: Words, sign: int, *, n_wide: int) -> None:
    """Add words to a sum in place, or subtract them where ``sign`` is -1.

    Args:
        n_wide: how many wide values both begin with.
    """
    combine = np.add if sign > 0 else np.subtract
    end = 2 * n_wide
    wide = total[:end].view(WIDE)
    combine(wide, words[:end].view(WIDE), out=wide)
    combine(total[end:], words[end:], out=total[end:])


def add_mask(words: Words, key: bytes, sign: int, *, n_wide: int) -> None:
    """Add the mask of a key to ``words`` in place, or subtract it where ``sign`` is -1.

    Both the cipher and the sum release the interpreter's lock.

    Args:
        n_wide: how many wide values the words begin with.
    """
    encryptor = Cipher(AES256(key), CTR(bytes(_AES_BLOCK))).encryptor()
    step = BLOCK_BYTES // WORD_BYTES
    buffer = bytearray(min(BLOCK_BYTES, words.nbytes) + _AES_BLOCK - 1)
    for start in range(0, len(words), step):
        part = words[start : start + step]
        encryptor.update_into(memoryview(_ZEROS)[: part.nbytes], buffer)
        mask = np.frombuffer(buffer, dtype=WORD, count=len(part))
        wide_words = min(max(2 * n_wide - start, 0), len(part))
        add_words(part, mask, sign, n_wide=wide_words // 2)
