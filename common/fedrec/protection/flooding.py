"""Flooding: the noise that hides the noise, where approximate results must leave the members.

A decrypted CKKS value carries an error that depends on the secret key. Before it is released, fresh
Gaussian noise is added that is so much wider that the error no longer shows (Li, Micciancio,
Schultz and Sorrell, eprint 2022/816). In coefficients of the message polynomial its deviation is

    sigma = sqrt(12 tau) 2^(s/2) t,

with tau the decryptions ever released under the key, s the bits of statistical security, and t a
bound on the error: the proven one, not a measured one, since flooding by measured noise is broken.
A real slot sums N coefficients times cosines, so its deviation is sigma sqrt(N / 2).

What it does not give: more than its t. Members train on unflooded sums, and how far a model moves
with the error of earlier sums is bounded here to first order only: as if each sum entered it once,
a grid unit of a sum as at most a step of the model.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import InternalError
from fedrec.protection.noise import bfv_noise
from fedrec.protection.plan import ProtectionPlan

__all__ = ["STATISTICAL_BITS", "Flooding", "system_gaussian"]

STATISTICAL_BITS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Flooding:
    """How wide the noise of a release is.

    Attributes:
        plan: an approximate plan.
        n_sums: revealed sums that went into what is released.
        n_releases: releases that the key may ever see, by all members together.
    """

    plan: ProtectionPlan
    n_sums: int
    n_releases: int

    @property
    def n_decryptions(self) -> int:
        """Return tau: every release gives away as many blocks as a sum has."""
        return self.n_releases * self.plan.n_blocks

    @property
    def error(self) -> float:
        """Return t, in coefficients: the bound of one sum, for each sum that went in."""
        # The noise of a coefficient is the same in both schemes; see `noise`.
        special_bits = self.plan.coeff_mod_bit_sizes[-1]
        bound = bfv_noise(
            self.plan.poly_modulus_degree,
            special_bits,
            self.plan.max_summands,
            self.plan.n_blocks,
        )
        return self.n_sums * bound.smaller

    @property
    def coefficient_deviation(self) -> float:
        """Return sigma."""
        spread = math.sqrt(12 * self.n_decryptions) * 2 ** (STATISTICAL_BITS / 2)
        return spread * self.error

    def deviation(self, segment_index: int) -> float:
        """Return the standard deviation in grid units of a segment.

        Raises:
            InternalError: the plan is exact, so that there is nothing to hide.
        """
        if not self.plan.unit_bits:
            raise InternalError("Exact sums are not flooded.")
        in_slot = self.coefficient_deviation * math.sqrt(self.plan.poly_modulus_degree / 2)
        return float(in_slot / 2.0 ** self.plan.unit_bits[segment_index])


def system_gaussian(count: int) -> NDArray[np.float64]:
    """Return standard normal numbers (count,) from the operating system's random source.

    By Box and Muller from uniform multiples of 2^-53; nobody can draw them again.
    """
    words = np.frombuffer(os.urandom(16 * count), dtype="<u8").reshape(2, count) >> np.uint64(11)
    first, second = (words + np.uint64(1)) * 2.0**-53
    found: NDArray[np.float64] = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)
    return found
