"""What is never recommended: unlearned and blocked items, and what a user has already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedrec.data.catalogue import Catalogue

__all__ = ["allowed_items", "without_excluded"]


def allowed_items(
    learned: NDArray[np.bool_],
    catalogue: Catalogue,
    *,
    candidates: Iterable[str] | None,
    block: Iterable[str] | None,
) -> NDArray[np.bool_]:
    """Return which items may be recommended to anybody, bool (n_items,).

    Args:
        learned: bool (n_items,).
        candidates: item ids to choose from; None means all.
        block: item ids that are never returned; stronger than `candidates`.

    Raises:
        CatalogueMismatch: an unknown item.
    """
    allowed = learned.copy()
    if candidates is not None:
        chosen = np.zeros_like(allowed)
        chosen[catalogue.rows_of(candidates)] = True
        allowed &= chosen
    if block is not None:
        allowed[catalogue.rows_of(block)] = False
    return allowed


def without_excluded(
    rows_of_scores: Iterable[NDArray[np.float32]],
    allowed: NDArray[np.bool_],
    excluded: Sequence[NDArray[np.int64]],
) -> Iterator[NDArray[np.float32]]:
    """Yield each row of scores, -inf at what is not allowed and at the row's excluded items.

    Args:
        rows_of_scores: float32 (n_items,) for each user; changed in place.
        excluded: rows of the items that each user has already.
    """
    for scores, rows in zip(rows_of_scores, excluded, strict=True):
        scores[~allowed] = -np.inf
        scores[rows] = -np.inf
        yield scores
