"""Computing a CKKS secret key from two decrypted sums: Li and Micciancio's attack in practice.

A ciphertext (c0, c1) modulo a prime q decrypts to the polynomial m = c0 + c1 s, of which whoever
publishes decrypted values publishes the real parts of the slots. Those are the slots of
p = m + m*, halved, where * puts 1/x for x; and since m has integer coefficients, p is known
exactly, noise included. In the ring modulo q,

    p - c0 - c0* = c1 s + c1* s*,

which two sums turn into two equations for s and s*. After a number-theoretic transform they are
solved point by point.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedrec.protection.ciphertext_blocks import Residues

Numbers = NDArray[np.object_]
Floats = NDArray[np.float64]


def recover_key(
    sums: tuple[Residues, Residues],
    released: tuple[NDArray[np.float64], NDArray[np.float64]],
    prime: int,
) -> Numbers:
    """Return what the secret key's coefficients are if the released values are decryptions.

    Args:
        sums: two ciphertexts modulo one prime in SEAL's transformed form, (2, 1, N) each.
        released: what was published of each, real slots (N/2,) times the scale.
        prime: q.

    Returns:
        N numbers in (-q/2, q/2); a key's are -1, 0 and 1.
    """
    equations = []
    for block, slots in zip(sums, released, strict=True):
        c0, c1 = (block[part, 0].astype(object) for part in (0, 1))
        published = transform(np.rint(half_coefficients(slots)).astype(np.int64), prime)
        equations.append(((published - c0 - _conjugate(c0)) % prime, c1, _conjugate(c1)))
    (right1, a1, b1), (right2, a2, b2) = equations
    determinant = (a1 * b2 - a2 * b1) % prime
    inverse = np.array([pow(int(d), -1, prime) for d in determinant], dtype=object)
    return coefficients((right1 * b2 - right2 * b1) * inverse % prime, prime)


def half_coefficients(real_slots: Floats) -> Floats:
    """Return twice the coefficients of p, (N,), near integers, from its slots (N/2,).

    A slot j is p at the root with the exponent 3^j, and p takes equal values at conjugate roots.
    """
    degree = 2 * len(real_slots)
    powers = np.ones(degree // 2, dtype=np.int64)
    for place in range(1, len(powers)):
        powers[place] = powers[place - 1] * 3 % (2 * degree)
    values = np.empty(degree)
    values[powers // 2] = values[degree - 1 - powers // 2] = real_slots
    twist = np.exp(-1j * np.pi * np.arange(degree) / degree)
    found: Floats = (np.fft.fft(values) * twist).real * (2.0 / degree)
    return found


def transform(polynomial: NDArray[np.int64], prime: int) -> Numbers:
    """Return the values at the odd powers of a 2N-th root, bit-reversed as SEAL has them."""
    degree = len(polynomial)
    powers = _powers(degree, prime)
    values = _cyclic(polynomial.astype(object) * powers[:degree] % prime, powers[::2], prime)
    return values[_reversed_order(degree)]


def coefficients(values: Numbers, prime: int) -> Numbers:
    """Return the polynomial (N,) that `transform` has these values of, centred around zero."""
    degree = len(values)
    powers = _powers(degree, prime)
    backwards = np.concatenate((powers[:1], powers[:0:-1]))
    natural = values[_reversed_order(degree)]
    shifted = _cyclic(natural, backwards[::2], prime) * pow(degree, -1, prime)
    # The inverse of the N-th power of the root, -1, is itself.
    found = shifted * backwards[:degree] % prime
    return np.where(found > prime // 2, found - prime, found)


def _conjugate(values: Numbers) -> Numbers:
    """Put 1/x for x: the power 2t + 1 becomes 2(N - 1 - t) + 1, bit-reversed the mirror image."""
    return values[::-1]


def _cyclic(values: Numbers, roots: Numbers, prime: int) -> Numbers:
    """Return the values of a polynomial (N,) at all powers (N,) of an N-th root."""
    size = len(values)
    found = values[_reversed_order(size)]
    half = 1
    while half < size:
        found = found.reshape(-1, 2, half)
        odd = found[:, 1] * roots[:: size // (2 * half)][:half] % prime
        even = found[:, 0]
        found = np.concatenate(((even + odd) % prime, (even - odd) % prime), axis=1)
        half *= 2
    return found.reshape(-1)


@cache
def _powers(degree: int, prime: int) -> Numbers:
    """Return all 2N powers of the smallest primitive 2N-th root, which SEAL takes."""
    order = 2 * degree
    roots = (pow(base, (prime - 1) // order, prime) for base in range(2, 1000))
    primitive = next(root for root in roots if pow(root, degree, prime) == prime - 1)
    square, odd, smallest = primitive * primitive % prime, primitive, primitive
    for _ in range(degree):
        odd = odd * square % prime
        smallest = min(smallest, odd)
    powers = [1]
    for _ in range(order - 1):
        powers.append(powers[-1] * smallest % prime)
    return np.array(powers, dtype=object)


@cache
def _reversed_order(size: int) -> NDArray[np.int64]:
    bits = size.bit_length() - 1
    return np.array([int(f"{place:0{bits}b}"[::-1], 2) for place in range(size)], dtype=np.int64)
