"""EASE: "Embarrassingly Shallow Autoencoders for Sparse Data" (Steck 2019), equation 8.

X (n_users x n_items) is 1 where a user has an item. Of all item-to-item weights B with a zero
diagonal, those that minimise |X - X B|^2 + lambda |B|^2 are, with P = (X^T X + lambda I)^-1,

    B_ij = -P_ij / P_jj  for i /= j,    and the scores are X B.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError
from fedrec_lab.comparison.references.reference import Fitted, ScoredReference

GRID = (100.0, 300.0, 1000.0)
MOST_ITEMS = 20_000
_CELLS_AT_ONCE = 1 << 23


class Ease(ScoredReference):
    """All interactions in one place and the exact solution for each lambda of `GRID`."""

    name: ClassVar[str] = "ease"
    label: ClassVar[str] = "EASE, centralised"
    seeded: ClassVar[bool] = False

    def fit(self, users: UserSplit, n_items: int, seed: int) -> Iterator[Fitted]:
        """Yield the closed form for each lambda; see `ScoredReference.fit`."""
        if n_items > MOST_ITEMS:
            raise SettingsError(
                f"EASE inverts an item-by-item matrix, and {n_items} items are more than the "
                f"{MOST_ITEMS} that it is tried with.",
                remedy="Raise federation.minimum_item_users to have fewer items.",
            )
        gram = np.zeros((n_items, n_items))
        at_once = max(1, _CELLS_AT_ONCE // max(1, n_items))
        for begin in range(0, len(users), at_once):
            rows = np.arange(begin, min(len(users), begin + at_once))
            held = _dense(users, rows, n_items)
            gram += held.T @ held
        for regularisation in GRID:
            weights = item_weights(gram, regularisation)

            def scores(
                rows: NDArray[np.int64], weights: NDArray[np.float64] = weights
            ) -> NDArray[np.float64]:
                return np.asarray(_dense(users, rows, n_items) @ weights)

            yield Fitted(setting=f"lambda {regularisation:g}", scores=scores)


def item_weights(gram: NDArray[np.float64], regularisation: float) -> NDArray[np.float64]:
    """Return B, float64 (n_items, n_items), from X^T X of the same shape."""
    inverse = np.linalg.inv(gram + regularisation * np.eye(len(gram)))
    weights = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return np.asarray(weights)


def _dense(users: UserSplit, rows: NDArray[np.int64], n_items: int) -> NDArray[np.float64]:
    """Return the users' rows of X, float64 (n_rows, n_items)."""
    held = np.zeros((len(rows), n_items))
    for place, user in enumerate(rows.tolist()):
        held[place, users.train_of(user)] = 1.0
    return held
