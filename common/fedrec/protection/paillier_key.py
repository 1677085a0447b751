"""Paillier's keys: generate them, encrypt with either half, and decrypt with the secret one.

The preset of the papers' measurements uses the package `phe`. Every ciphertext is (1 + m n) r^n mod
n^2 with a random r below n. This is a power with a full exponent modulo n^2, and nothing is
precomputed. Keys are the same, so either kind of key opens ciphertexts of both. `phe` receives
whole numbers only. For a float, it adds an exponent in the clear, which reveals something about the
value.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gmpy2
from gmpy2 import mpz

from fedrec.errors import KeysError, MalformedUpdate
from fedrec.extras import how_to_install
from fedrec.identity.secret import Secret


class FixedBase:
    """A base with a table of its powers.

    Args:
        base: the base, below ``modulus``.
        modulus: the modulus of all arithmetic.
        exponent_bits: exponents are below 2^exponent_bits.
        window_bits: the table has 2^window_bits entries for each of the exponent_bits / window_bits
            windows.
    """

    def __init__(
        self, base: mpz, modulus: mpz, exponent_bits: int, *, window_bits: int = 7
    ) -> None:
        self._modulus = modulus
        self._window_bits = window_bits
        self._rows: list[list[mpz]] = []
        for _ in range(-(-exponent_bits // window_bits)):
            row = [mpz(1)]
            for _ in range((1 << window_bits) - 1):
                row.append(row[-1] * base % modulus)
            self._rows.append(row)
            base = row[-1] * base % modulus

    def power(self, exponent: mpz) -> mpz:
        """Return base^exponent. Digits beyond the table would be lost, so they are an error.

        Raises:
            ValueError: the exponent is negative or too long.
        """
        digits = gmpy2.unpack(exponent, self._window_bits)
        result, modulus = mpz(1), self._modulus
        if len(digits) > len(self._rows):
            raise ValueError("The exponent is longer than the table.")
        for row, digit in zip(self._rows, digits, strict=False):
            result = result * row[digit] % modulus
        return result


COFACTOR_BITS = 20
PUBLIC_WINDOW_BITS = 5
CLOSEST_BITS = 100


@dataclass(frozen=True, slots=True, eq=False)
class PaillierPublicKey:
    """The modulus n, which encrypts and adds, but opens nothing.

    Attributes:
        n: the product of two primes of the same length.
    """

    n: mpz

    @classmethod
    def from_bytes(cls, raw: bytes, key_bits: int) -> PaillierPublicKey:
        """Read a modulus from its bytes.

        Raises:
            KeysError: the number isn't an odd composite of exactly ``key_bits`` bits. A prime in
                its place could only be a factor of another modulus.
        """
        n = mpz(int.from_bytes(raw, "big"))
        if n.bit_length() != key_bits or gmpy2.is_even(n) or gmpy2.is_power(n):
            raise KeysError(
                f"The modulus isn't a product of two primes of {key_bits // 2} bits.",
                remedy="Make the epoch's keys for the federation's present settings.",
            )
        if gmpy2.is_prime(n):
            raise KeysError(
                "The context contains a prime in place of the public modulus.",
                remedy="Pass the coordinator the context from `generate`, and no key.",
            )
        return cls(n)

    @property
    def n_squared(self) -> mpz:
        """The modulus of ciphertexts."""
        return self.n * self.n

    @property
    def ciphertext_bytes(self) -> int:
        """The length of every ciphertext on the wire."""
        return int(self.n.bit_length()) // 4

    def read(self, body: memoryview) -> list[mpz]:
        """Return the ciphertexts of a body with a checked length.

        The product of all ciphertexts shares a factor with n if one of them does, so a single
        greatest common divisor checks all. A ciphertext of 0 would turn every sum into 0. One that
        shares a factor with n can't be opened.

        Raises:
            MalformedUpdate: a ciphertext isn't above 0, below n^2 and prime to n.
        """
        step, n, limit = self.ciphertext_bytes, self.n, self.n_squared
        raw = bytes(body)
        found = [
            mpz.from_bytes(raw[start : start + step], "big") for start in range(0, len(raw), step)
        ]
        product = mpz(1)
        for ciphertext in found:
            if not 0 < ciphertext < limit:
                raise MalformedUpdate("A ciphertext is outside 0 < c < n^2.")
            product = product * ciphertext % n
        if gmpy2.gcd(product, n) != 1:
            raise MalformedUpdate("A ciphertext shares a factor with n.")
        return found

    def write(self, ciphertexts: list[mpz]) -> bytes:
        """Return ciphertexts as frames of one length, end to end."""
        step = self.ciphertext_bytes
        return b"".join(ciphertext.to_bytes(step, "big") for ciphertext in ciphertexts)

    def residues(self) -> Iterator[mpz]:
        """Yield random n-th residues without end, from their own base (Damgard et al.)."""
        bits = int(self.n.bit_length()) // 2
        base = -(_random_unit(self.n) ** 2) % self.n
        table = FixedBase(
            gmpy2.powmod(base, self.n, self.n_squared),
            self.n_squared,
            bits,
            window_bits=PUBLIC_WINDOW_BITS,
        )
        while True:
            yield table.power(mpz(secrets.randbits(bits)))


class PaillierEncryptor(Secret):
    """Encrypt with the modulus alone, and open nothing.

    Its table takes about 10 MB for a key of 3072 bits, and is made with the first encryption.
    """

    def __init__(self, public: PaillierPublicKey) -> None:
        self.public = public
        self._residues = public.residues()

    def encrypt(self, plaintext: mpz) -> mpz:
        """Return a fresh ciphertext of a plaintext between 0 and n, modulo n^2."""
        n, square = self.public.n, self.public.n_squared
        return (1 + plaintext * n) % square * next(self._residues) % square


class _Half:
    """Work modulo one prime: residues and decryption."""

    def __init__(self, prime: mpz, generator: mpz, n: mpz) -> None:
        self.prime = prime
        self.square = prime * prime
        self._generator = generator
        self._n = n
        self._table: FixedBase | None = None
        # The inverse of L((n + 1)^(p - 1)), which is -q modulo p.
        self._scale = gmpy2.invert(-(n // prime), prime)

    def encrypt(self, plaintext: mpz) -> mpz:
        """Return (1 + m n) s modulo the square, with s a fresh uniform n-th residue."""
        if self._table is None:
            # x^p modulo p^2 has the order of x modulo p.
            base = gmpy2.powmod(self._generator, self.prime, self.square)
            self._table = FixedBase(base, self.square, int(self.prime.bit_length()))
        residue = self._table.power(mpz(secrets.randbelow(int(self.prime) - 1)))
        return (1 + plaintext * self._n) % self.square * residue % self.square

    def decrypt(self, ciphertext: mpz) -> mpz:
        """Return the plaintext modulo the prime."""
        power = gmpy2.powmod(ciphertext % self.square, self.prime - 1, self.square)
        return (power - 1) // self.prime * self._scale % self.prime


class PaillierSecretKey(Secret):
    """The factors of n, and a generator modulo each of them.

    Tables are made with the first encryption, and take about 20 MB for a key of 3072 bits.
    """

    def __init__(self, p: mpz, q: mpz, p_generator: mpz, q_generator: mpz) -> None:
        n = p * q
        self.public = PaillierPublicKey(n)
        self._p = _Half(p, p_generator, n)
        self._q = _Half(q, q_generator, n)
        self._numbers = (p, q, p_generator, q_generator)
        self._squares_inverse = gmpy2.invert(self._q.square, self._p.square)
        self._inverse = gmpy2.invert(q, p)

    @classmethod
    def generate(cls, key_bits: int) -> PaillierSecretKey:
        """Return a new key whose modulus has exactly ``key_bits`` bits."""
        half = key_bits // 2
        p, p_generator = _prime_with_generator(half)
        while True:
            q, q_generator = _prime_with_generator(half)
            if abs(p - q).bit_length() > half - CLOSEST_BITS:
                return cls(p, q, p_generator, q_generator)

    def to_bytes(self) -> bytes:
        """Return both primes and their generators, each in a quarter of the ciphertext's bytes."""
        step = self.public.ciphertext_bytes // 4
        return b"".join(number.to_bytes(step, "big") for number in self._numbers)

    @classmethod
    def from_bytes(cls, raw: bytes, public: PaillierPublicKey) -> PaillierSecretKey:
        """Read the key that `to_bytes` wrote.

        Raises:
            KeysError: these aren't the factors of the public modulus, or a base is a square modulo
                its factor.
        """
        step = public.ciphertext_bytes // 4
        numbers = [mpz.from_bytes(raw[at : at + step], "big") for at in range(0, len(raw), step)]
        if len(raw) == 4 * step:
            p, q, *generators = numbers
            factors = p * q == public.n and gmpy2.is_prime(p) and gmpy2.is_prime(q)
            pairs = zip(generators, (p, q), strict=True)
            if factors and all(gmpy2.legendre(base, prime) == -1 for base, prime in pairs):
                return cls(p, q, *generators)
        raise KeysError(
            "The keys of this epoch belong to other parameters.",
            remedy="Unwrap the keys that were made for the federation's present plan.",
        )

    def encrypt(self, plaintext: mpz) -> mpz:
        """Return a fresh ciphertext of a plaintext between 0 and n, modulo n^2."""
        high, low = self._p.encrypt(plaintext), self._q.encrypt(plaintext)
        square = self._q.square
        return low + square * ((high - low) * self._squares_inverse % self._p.square)

    def decrypt(self, ciphertext: mpz) -> mpz:
        """Return the plaintext of a ciphertext that is prime to n, between 0 and n."""
        high, low = self._p.decrypt(ciphertext), self._q.decrypt(ciphertext)
        return low + self._q.prime * ((high - low) * self._inverse % self._p.prime)


def _random_unit(n: mpz) -> mpz:
    while True:
        found = mpz(secrets.randbelow(int(n)))
        if gmpy2.gcd(found, n) == 1:
            return found


def _prime_with_generator(bits: int) -> tuple[mpz, mpz]:
    """Return a prime p = 2 c r + 1 with its two highest bits set, and a generator modulo p.

    r is a random prime of bits - COFACTOR_BITS bits, and c is drawn among all values that fit.
    """
    large = _random_prime(bits - COFACTOR_BITS)
    low, high = (mpz(3) << (bits - 2)) // (2 * large) + 1, (mpz(1) << bits) // (2 * large)
    while True:
        cofactor = low + secrets.randbelow(int(high - low))
        prime = 2 * cofactor * large + 1
        if gmpy2.is_prime(prime):
            break
    orders = [(prime - 1) // factor for factor in {2, large, *_small_factors(int(cofactor))}]
    while True:
        generator = 2 + mpz(secrets.randbelow(int(prime) - 3))
        if all(gmpy2.powmod(generator, order, prime) != 1 for order in orders):
            return prime, generator


def _random_prime(bits: int) -> mpz:
    while True:
        found = mpz(secrets.randbits(bits - 2) | 1) + (mpz(3) << (bits - 2))
        if gmpy2.is_prime(found):
            return found


def _small_factors(number: int) -> set[int]:
    found, factor = set(), 2
    while factor * factor <= number:
        while number % factor == 0:
            found.add(factor)
            number //= factor
        factor += 1
    return found | ({number} if number > 1 else set())


def _phe() -> Any:
    try:
        import phe
    except ImportError as error:
        raise KeysError(
            "Protection paillier with the preset paper needs the package phe, which is missing.",
            remedy=f"Install it with: {how_to_install('phe')}. Or use protection.preset = "
            '"single-3072", which sends the same and takes an eighth of the time.',
        ) from error
    return phe


class PheEncryptor(PaillierEncryptor):
    """Encrypt with the modulus alone, with `phe`."""

    def __init__(self, public: PaillierPublicKey) -> None:
        super().__init__(public)
        self._theirs = _phe().PaillierPublicKey(int(public.n))

    def encrypt(self, plaintext: mpz) -> mpz:
        """Return a fresh ciphertext of a plaintext between 0 and n, modulo n^2."""
        return mpz(self._theirs.raw_encrypt(int(plaintext)))


class PheSecretKey(PaillierSecretKey):
    """Encrypt and decrypt with `phe`."""

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
