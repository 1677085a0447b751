"""The best items of a table of scores, in an order that never depends on the sorting method."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_items"]


def best_items(
    scores: NDArray[np.float32], n: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the n best items of every row, best first; equal scores by ascending row.

    Args:
        scores: (n_rows, n_items); -inf for what may not be chosen.

    Returns:
        (item rows, scores), (n_rows, width), width being n or less where no row has n items to
        choose from. Places that a row cannot fill have item -1 and score -inf.
    """
    available = np.isfinite(scores).sum(axis=1)
    width = min(max(n, 0), int(available.max(initial=0)))
    n_rows, n_items = scores.shape
    chosen = np.empty((n_rows, width), dtype=np.int64)
    for row in range(n_rows):
        line = scores[row]
        pool = np.arange(n_items)
        if 0 < width < n_items:
            # Everything at least as good as the width-th best, so that ties are not cut by chance.
            pool = np.nonzero(line >= np.partition(line, n_items - width)[n_items - width])[0]
        chosen[row] = pool[np.argsort(-line[pool], kind="stable")][:width]
    best = np.take_along_axis(scores, chosen, axis=1)
    chosen[np.isneginf(best)] = -1
    return chosen, best
