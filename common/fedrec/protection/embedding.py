"""The canonical embedding of CKKS in a form that gives the same bits on every machine.

A message polynomial m of degree N has the slots m(z^(3^j)), j < N/2, with z = exp(i pi / N); a
member keeps their real parts. TenSEAL evaluates them by SEAL's floating-point transform, whose
last bits depend on compiler and processor. Where slots are exact integers this does not matter,
since rounding forgets it. In approximate mode it would: two key holders who round a value that
lies near the middle of two integers must round it alike.

The real parts of the slots belong to p(x) = (m(x) + m(1/x)) / 2, whose coefficients are half
integers, because m's are integers: decryption, unlike decoding, is integer arithmetic.
`half_coefficients` transforms back and snaps to them, which forgets what SEAL's transform did to
the last bits; `slots` evaluates them again by elementwise additions and multiplications in
float64, in a fixed order, with roots of unity from integer arithmetic. Only IEEE operations that
are correctly rounded take part, so every machine gets the same bits.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["SNAP_LIMIT", "canonical_slots", "half_coefficients", "roots_of_unity", "slots"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

SNAP_LIMIT = 0.125
"""Farthest that a doubled coefficient may be from an integer before it is snapped to it."""
_PRECISION_BITS = 256


def canonical_slots(real_slots: Floats) -> Floats | None:
    """Return scaled real slots without what a machine's transform did to their last bits.

    Args:
        real_slots: float64 (N/2,), real parts of the slots, times the scale.

    Returns:
        float64 (N/2,), the same bits on every machine; None when the values are not those of a
        polynomial with integer coefficients to within floating point.
    """
    doubled = half_coefficients(real_slots)
    whole = np.rint(doubled)
    if not (np.abs(doubled - whole) <= SNAP_LIMIT).all():
        return None
    found: Floats = slots(whole) / 2
    return found


def half_coefficients(real_slots: Floats) -> Floats:
    """Return twice the coefficients of p, float64 (N,), near integers, from slots (N/2,)."""
    degree = 2 * len(real_slots)
    places = _slot_places(degree)
    values = np.empty(degree, dtype=np.float64)
    values[places] = real_slots
    # p takes equal values at conjugate roots.
    values[degree - 1 - places] = real_slots
    cosines, sines = roots_of_unity(degree)
    twisted = np.fft.fft(values) * (2.0 / degree)
    found: Floats = twisted.real * cosines[:degree] + twisted.imag * sines[:degree]
    return found


def slots(coefficients: Floats) -> Floats:
    """Return the real slots (N/2,) of a polynomial with whole coefficients (N,), in that order.

    The polynomial is evaluated at all z^(2t + 1), t < N: its coefficients are multiplied by
    powers of z and transformed by the radix-2 recursion of Cooley and Tukey.
    """
    degree = len(coefficients)
    cosines, sines = roots_of_unity(degree)
    order = _bit_reversed(degree)
    real = (coefficients * cosines[:degree])[order]
    imaginary = (coefficients * sines[:degree])[order]
    half = 1
    while half < degree:
        step = degree // half
        cosine, sine = cosines[:degree:step][:half], sines[:degree:step][:half]
        real, imaginary = real.reshape(-1, 2, half), imaginary.reshape(-1, 2, half)
        odd_real = real[:, 1] * cosine - imaginary[:, 1] * sine
        odd_imaginary = real[:, 1] * sine + imaginary[:, 1] * cosine
        real = np.concatenate((real[:, 0] + odd_real, real[:, 0] - odd_real), axis=1)
        imaginary = np.concatenate(
            (imaginary[:, 0] + odd_imaginary, imaginary[:, 0] - odd_imaginary), axis=1
        )
        half *= 2
    found: Floats = real.reshape(-1)[_slot_places(degree)]
    return found


@cache
def roots_of_unity(degree: int) -> tuple[Floats, Floats]:
    """Return cosine and sine of pi k / N for k < 2N, each rounded from 256 bits to nearest.

    Args:
        degree: N, a power of two.
    """
    one = 1 << _PRECISION_BITS
    cosine, sine = -one, 0
    for _ in range(degree.bit_length() - 1):
        # Half angles: from pi to pi / N.
        cosine, sine = (
            math.isqrt((one + cosine) * one // 2),
            math.isqrt((one - cosine) * one // 2),
        )
    cosines, sines = [one], [0]
    for _ in range(2 * degree - 1):
        c, s = cosines[-1], sines[-1]
        cosines.append((c * cosine - s * sine) >> _PRECISION_BITS)
        sines.append((c * sine + s * cosine) >> _PRECISION_BITS)
    return (
        np.array([value / one for value in cosines]),
        np.array([value / one for value in sines]),
    )


@cache
def _slot_places(degree: int) -> Indices:
    """Return t for every slot j, where 3^j = 2t + 1 modulo 2N."""
    powers, power = [], 1
    for _ in range(degree // 2):
        powers.append((power - 1) // 2)
        power = power * 3 % (2 * degree)
    return np.array(powers, dtype=np.int64)


@cache
def _bit_reversed(degree: int) -> Indices:
    bits = degree.bit_length() - 1
    order = np.zeros(degree, dtype=np.int64)
    for bit in range(bits):
        order |= ((np.arange(degree) >> bit) & 1) << (bits - 1 - bit)
    return order
