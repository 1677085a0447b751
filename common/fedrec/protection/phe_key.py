"""Paillier's keys as the package `phe` uses them: the preset of the papers' measurements.

Every ciphertext is (1 + m n) r^n mod n^2 with a random r below n, a power with a full exponent
modulo n^2, and nothing is prepared beforehand. Keys are the same as everywhere here, so that
ciphertexts of either kind are opened by either. Only whole numbers go through `phe`: what it
encrypts of a float has an exponent in the clear that tells about the value.
"""

from __future__ import annotations

from typing import Any

from gmpy2 import mpz

from fedrec.errors import KeysError
from fedrec.extras import how_to_install
from fedrec.protection.paillier_key import (
    PaillierEncryptor,
    PaillierPublicKey,
    PaillierSecretKey,
)


def _phe() -> Any:
    try:
        import phe
    except ImportError as error:
        raise KeysError(
            "Protection paillier with the preset paper needs the package phe, which is missing.",
            remedy=f"Install it with: {how_to_install('phe')}; or use protection.preset = "
            '"single-3072", which sends the same and takes an eighth of the time.',
        ) from error
    return phe


class PheEncryptor(PaillierEncryptor):
    """Encrypts with the modulus alone by `phe`."""

    def __init__(self, public: PaillierPublicKey) -> None:
        super().__init__(public)
        self._theirs = _phe().PaillierPublicKey(int(public.n))

    def encrypt(self, plaintext: mpz) -> mpz:
        """Return a fresh ciphertext of a plaintext between 0 and n, modulo n^2."""
        return mpz(self._theirs.raw_encrypt(int(plaintext)))


class PheSecretKey(PaillierSecretKey):
    """Encrypts and decrypts by `phe`."""

    def __init__(self, p: mpz, q: mpz, p_generator: mpz, q_generator: mpz) -> None:
        super().__init__(p, q, p_generator, q_generator)
        phe = _phe()
        self._theirs = phe.PaillierPublicKey(int(self.public.n))
        self._private = phe.PaillierPrivateKey(self._theirs, int(p), int(q))

    def encrypt(self, plaintext: mpz) -> mpz:
        """Return a fresh ciphertext of a plaintext between 0 and n, modulo n^2."""
        return mpz(self._theirs.raw_encrypt(int(plaintext)))

    def decrypt(self, ciphertext: mpz) -> mpz:
        """Return the plaintext of a ciphertext that is prime to n, between 0 and n."""
        return mpz(self._private.raw_decrypt(int(ciphertext)))
