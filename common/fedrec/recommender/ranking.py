"""The best of a row of scores, in an order that never depends on the sorting method."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_items"]


def best_items(scores: NDArray[np.float32], n: int) -> NDArray[np.int64]:
    """Return the positions of the n best scores, best first; equal scores by position.

    Args:
        scores: (n_items,), -inf for what may not be chosen.

    Returns:
        int64 of shape (n,), or shorter where there is less to choose from.
    """
    width = min(n, int((scores > -np.inf).sum()))
    if width == 0:
        return np.empty(0, dtype=np.int64)
    # Everything at least as good as the width-th best, so that no tie is cut by chance.
    least = np.partition(scores, len(scores) - width)[len(scores) - width]
    pool = np.nonzero(scores >= least)[0]
    return pool[np.argsort(-scores[pool], kind="stable")][:width]
