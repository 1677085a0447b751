"""Select the best items of a row of scores, without excluded ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedrec.data.catalogue import Catalogue

Ids: TypeAlias = NDArray[np.object_]
"""Item ids, str. The empty string fills unused places."""
Scores: TypeAlias = NDArray[np.float32]
"""Scores, best first. -inf fills unused places."""


def best_items(scores: NDArray[np.float32], n: int) -> NDArray[np.int64]:
    """Return the positions of the n best scores, best first, with ties in order of position.

    Args:
        scores: (n_items,), -inf for excluded items.

    Returns:
        int64 of shape (n,), or shorter where there is less to choose from.
    """
    width = min(n, int((scores > -np.inf).sum()))
    if width == 0:
        return np.empty(0, dtype=np.int64)
    # Everything at least as good as the width-th best, so that no tie is cut arbitrarily.
    least = np.partition(scores, len(scores) - width)[len(scores) - width]
    pool = np.nonzero(scores >= least)[0]
    return pool[np.argsort(-scores[pool], kind="stable")][:width]


def side_by_side(best: list[tuple[Ids, Scores]], *, one: bool) -> tuple[Ids, Scores]:
    """Return one answer unchanged, or many as the rows of a table, padded to the longest."""
    if one:
        return best[0]
    width = max((len(ids) for ids, _ in best), default=0)
    all_ids = np.full((len(best), width), "", dtype=np.object_)
    all_scores = np.full((len(best), width), -np.inf, dtype=np.float32)
    for row, (ids, scores) in enumerate(best):
        all_ids[row, : len(ids)] = ids
        all_scores[row, : len(scores)] = scores
    return all_ids, all_scores


def allowed_items(
    learned: NDArray[np.bool_],
    catalogue: Catalogue,
    *,
    candidates: Iterable[str] | None,
    block: Iterable[str] | None,
) -> NDArray[np.bool_]:
    """Return the items that may be recommended to any user, bool (n_items,).

    Args:
        learned: bool (n_items,).
        candidates: item ids to choose from. None means all.
        block: item ids that are never returned, even if they are among `candidates`.

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
    """Yield each row of scores with -inf at items that are not allowed or excluded for that row.

    Args:
        rows_of_scores: float32 (n_items,) for each user. Changed in place.
        excluded: rows of the items in each user's history.
    """
    for scores, rows in zip(rows_of_scores, excluded, strict=True):
        scores[~allowed] = -np.inf
        scores[rows] = -np.inf
        yield scores
