"""Ciphertexts as arrays of residues modulo primes, packed to the bit; sizes never depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import MalformedUpdate
from fedrec.protection.plan import ProtectionPlan

# These bases decide primality for every number below 3.3e24 (Sorenson and Webster, 2015).
_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


@cache
def coefficient_primes(degree: int, bit_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the primes of ``SEAL CoeffModulus::Create``, in its order.

    Of primes of the same size the smallest comes first, as SEAL pops them off a sorted list.
    """
    found = {bits: _largest(degree, bits, bit_sizes.count(bits)) for bits in set(bit_sizes)}
    return tuple(found[bits].pop() for bits in bit_sizes)


@cache
def batching_prime(degree: int, bits: int) -> int:
    """Return the largest prime of ``bits`` bits that is 1 modulo 2 x degree."""
    return _largest(degree, bits, 1)[0]


def _largest(degree: int, bits: int, count: int) -> list[int]:
    step = 2 * degree
    found: list[int] = []
    candidate = ((1 << bits) - 1) // step * step + 1
    while len(found) < count:
        if candidate < 1 << (bits - 1):
            raise ValueError(f"fewer than {count} primes of {bits} bits are 1 modulo {step}")
        if _is_prime(candidate):
            found.append(candidate)
        candidate -= step
    return found


def _is_prime(number: int) -> bool:
    """Decide primality by Miller-Rabin with bases that are enough for 64 bits."""
    if number < 2 or any(number % base == 0 for base in _BASES):
        return number in _BASES
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, base, odd, twos) for base in _BASES)


def _passes(number: int, base: int, odd: int, twos: int) -> bool:
    power = pow(base, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


Residues = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidueLayout:
    """Shape and packing of one block.

    Attributes:
        degree: N.
        primes: the data primes, each below 2^61.
    """

    degree: int
    primes: tuple[int, ...]

    @classmethod
    def of(cls, degree: int, bit_sizes: tuple[int, ...]) -> ResidueLayout:
        """Return the layout of a parameter set, whose last prime never leaves the client."""
        return cls(degree=degree, primes=coefficient_primes(degree, bit_sizes)[:-1])

    @classmethod
    def of_plan(cls, plan: ProtectionPlan) -> ResidueLayout:
        """Return the layout that ``plan`` implies."""
        return cls.of(plan.poly_modulus_degree, plan.coeff_mod_bit_sizes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (2, n_primes, N) of a block."""
        return (2, len(self.primes), self.degree)

    @property
    def frame_bytes(self) -> int:
        """Bytes of a packed block."""
        return sum(self._packed_bytes(prime) for prime in self.primes)

    def pack(self, block: Residues) -> bytes:
        """Return a block of reduced residues as exactly ``frame_bytes`` bytes."""
        return b"".join(
            _pack(block[:, index, :], prime.bit_length()) for index, prime in enumerate(self.primes)
        )

    def unpack(self, frame: bytes | memoryview) -> Residues:
        """Return the block that `pack` packed.

        Raises:
            MalformedUpdate: when a residue is not below its prime.
        """
        block = np.empty(self.shape, dtype=np.uint64)
        start = 0
        for index, prime in enumerate(self.primes):
            stop = start + self._packed_bytes(prime)
            residues = _unpack(frame[start:stop], prime.bit_length(), 2 * self.degree)
            if residues.max() >= prime:
                raise MalformedUpdate("A ciphertext holds a residue that is not below its prime.")
            block[:, index, :] = residues.reshape(2, self.degree)
            start = stop
        return block

    def add_to(self, total: Residues, block: Residues) -> None:
        """Add reduced residues of shape (..., 2, n_primes, N) to ``total``, modulo the primes."""
        moduli = np.array(self.primes, dtype=np.uint64)[:, None]
        total += block
        # Below the prime the subtraction wraps to a huge number, so the minimum reduces.
        np.minimum(total, total - moduli, out=total)

    def _packed_bytes(self, prime: int) -> int:
        return 2 * self.degree * prime.bit_length() // 8


def _pack(residues: Residues, bits: int) -> bytes:
    values = residues.reshape(-1)
    parts = []
    for start, kind in _words(bits):
        parts.append((values >> np.uint64(start)).astype(kind).tobytes())
    high = (values >> np.uint64(bits // 8 * 8)).astype(np.uint8)
    for bit in range(bits % 8):
        parts.append(np.packbits((high >> bit) & 1).tobytes())
    return b"".join(parts)


def _unpack(packed: bytes | memoryview, bits: int, count: int) -> Residues:
    values: Residues = np.zeros(count, dtype=np.uint64)
    at = 0
    for start, kind in _words(bits):
        word = np.frombuffer(packed, dtype=kind, count=count, offset=at)
        values |= word.astype(np.uint64) << np.uint64(start)
        at += word.nbytes
    high = np.zeros(count, dtype=np.uint8)
    for bit in range(bits % 8):
        plane = np.frombuffer(packed, dtype=np.uint8, count=count // 8, offset=at)
        high |= np.unpackbits(plane) << bit
        at += plane.nbytes
    values |= high.astype(np.uint64) << np.uint64(bits // 8 * 8)
    return values


@cache
def _words(bits: int) -> tuple[tuple[int, str], ...]:
    """Return where the words that hold the whole bytes of a residue begin, and their types."""
    words, start = [], 0
    for width, kind in ((32, "<u4"), (16, "<u2"), (8, "u1")):
        if bits - start >= width:
            words.append((start, kind))
            start += width
    return tuple(words)
