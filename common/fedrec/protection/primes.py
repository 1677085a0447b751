"""The primes behind a parameter set, computed here so that no key and no SEAL is needed.

SEAL takes the largest primes of each bit size that are 1 modulo 2N; a test compares with SEAL.
"""

from __future__ import annotations

from functools import cache

__all__ = ["batching_prime", "coefficient_primes"]

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
