"""Bounds on the noise of a sum of fresh encryptions, and their derivation.

Letters: N = degree, Q = product of the data primes, P = special prime, t = plain modulus,
K = number of summed messages, s = secret key, norms are over coefficients.

**Fresh noise.** SEAL encrypts at the key level, modulo QP, and divides by P with rounding to
the nearest. With public key (-(a s + e), a), ternary u and s, and errors e, e0, e1, the phase of
a fresh encryption of zero is

    (e0 + e1 s - e u) / P + r0 + r1 s,

with r0, r1 the rounding errors of the division, in [-1/2, 1/2]. SEAL's errors are centred
binomial in [-21, 21] (or Gaussian of deviation 3.2, cut at 19.2), so the first term is at most
21 (2N + 1) / P, far below one. Encoding a message rounds once more, by at most 1/2 a coefficient.

**Worst case (proven).** |r0 + r1 s| <= (1 + N) / 2 for every coefficient, whatever the dice.

**Likely.** By RLWE the polynomials that are divided by P are indistinguishable from uniform, so
r0 and r1 are taken as independent uniform values on [-1/2, 1/2], also between messages; they are
strictly subgaussian with variance 1/12. (This is the one heuristic step; the tail is computed.)
The encoding errors depend on data, so they keep their worst case. All "likely" bounds fail with
probability below 2^-40 for a whole summed vector, every block and slot of it together.

- BFV, a coefficient: r0 + r1 s has variance at most (N + 1) / 12 since |s_j| <= 1.
- CKKS, a slot: the real part of the phase at a primitive 2N-th root of unity z. For fixed s,
  r0(z) + r1(z) s(z) has real part of variance (N/2) (1 + |s(z)|^2) / 12. A uniform ternary
  coefficient is strictly subgaussian with variance 2/3; with 16 directions, |s(z)|^2 is below
  (2N/3) ln(16 n / d) / cos^2(pi/16) for all of n slots, except for one key in 1/d, d = 2^-41.

**Decryption.** BFV: the rounding of Q m / t adds 1/2, and a sum decrypts exactly while its noise
is below Q / (2t). CKKS: a slot is off by the sum of the real phase, at most the sum of the
absolute coefficients, divided by the scale; then floating point adds `float_error`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["FAILURE_BITS", "NoiseBound", "bfv_noise", "ckks_noise", "float_error"]

FAILURE_BITS = 40
ERROR_MAX = 21
DIRECTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseBound:
    """A bound that always holds, and one that fails with probability below 2^-40.

    Both are absolute values: coefficients modulo Q for BFV, slots times scale for CKKS.
    """

    worst_case: float
    likely: float

    def proof(self, limit: float) -> str:
        """Say which of the two keeps a sum below ``limit``."""
        if self.worst_case <= limit:
            return "worst case"
        return "probability" if self.smaller <= limit else "none"

    @property
    def smaller(self) -> float:
        """The tighter of the two bounds."""
        return min(self.worst_case, self.likely)


def bfv_noise(degree: int, special_bits: int, n_summands: int, n_blocks: int) -> NoiseBound:
    """Bound the noise of every coefficient of a sum of BFV ciphertexts."""
    certain = n_summands * (0.5 + _divided_error(degree, special_bits))
    tail = math.log(2 * degree * n_blocks) + FAILURE_BITS * math.log(2)
    variance = n_summands * (degree + 1) / 12
    return NoiseBound(
        worst_case=certain + n_summands * (1 + degree) / 2,
        likely=certain + math.sqrt(2 * variance * tail),
    )


def ckks_noise(
    degree: int, special_bits: int, n_summands: int, n_blocks: int, *, n_primes: int
) -> NoiseBound:
    """Bound the error of every real slot of a sum of CKKS ciphertexts, times the scale.

    With several data primes SEAL composes a coefficient from 64-bit words in floating point,
    where a borrow between words costs up to 2^11; that is inside both bounds.
    """
    half = degree // 2
    per_coefficient = 0.5 + _divided_error(degree, special_bits)
    borrow = 2**11 if n_primes > 1 else 0
    certain = degree * (n_summands * per_coefficient + borrow)
    key_tail = math.log(DIRECTIONS * half) + (FAILURE_BITS + 1) * math.log(2)
    key_squared = 2 * degree / 3 * key_tail / math.cos(math.pi / DIRECTIONS) ** 2
    tail = math.log(2 * half * n_blocks) + (FAILURE_BITS + 1) * math.log(2)
    variance = n_summands * half * (1 + key_squared) / 12
    return NoiseBound(
        worst_case=certain + n_summands * degree * (1 + degree) / 2,
        likely=certain + math.sqrt(2 * variance * tail),
    )


def float_error(degree: int, n_summands: int) -> float:
    """Bound the error of encoding K messages and decoding their sum, per unit of the sum's bound.

    The transform of length N in double precision errs by at most log2(N) e relative to the
    2-norm (Higham, Accuracy and Stability, theorem 24.2); e = 16 x 2^-53 covers its constants,
    inexact roots and the conversion to double. A slot is off by at most the 2-norm of the error.
    With B the bound on the sum of absolute values in a slot, the summed vector has 2-norm at
    most sqrt(N) B, and the K encoded ones together at most sqrt(K) sqrt(N) B (Cauchy-Schwarz).
    """
    relative = math.log2(degree) * 16 * 2.0**-53
    return relative * math.sqrt(degree) * (1 + math.sqrt(n_summands))


def _divided_error(degree: int, special_bits: int) -> float:
    """Bound (e0 + e1 s - e u) / P, with P at least half of 2^special_bits."""
    return float(ERROR_MAX * (2 * degree + 1) / 2.0 ** (special_bits - 1))
