"""Clipping a user's whole contribution, in integers, so that its length is bounded for certain.

The values lie on the grid already. A contribution that is too long is shrunk and rounded towards
zero, which makes no value larger: the bound is the clip itself. Rounding to the nearest, whatever
the direction, could add up to half a step to each of d values, and the bound would be
sqrt(C^2 / g^2 + d / 4 + ...) (Kairouz et al. 2021): ours is within it, and needs no second try.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["clipped_to"]

_MARGIN = 1e-9
"""More than float64 loses in the sum of 2^31 squares, pairwise added up."""


def clipped_to(values: NDArray[np.int64], bound: int) -> tuple[NDArray[np.int64], bool]:
    """Return a contribution whose L2 norm is at most `bound`, and whether that took clipping.

    Args:
        values: int64 (length,), in grid steps, each below 2^53 in size.
        bound: the clip in grid steps.
    """
    real = values.astype(np.float64)
    norm = math.sqrt(float(np.sum(real * real)))
    safe = bound * (1.0 - _MARGIN)
    if norm <= safe:
        return values, False
    return np.trunc(real * (safe / norm * (1.0 - _MARGIN))).astype(np.int64), True
