"""References that score by weights between items: EASE, EDLAE, ItemKNN and RP3beta."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError
from fedrec.extras import not_installed
from fedrec_lab.comparison.references.reference import (
    Fit,
    ScoredReference,
    Scores,
    interactions_of,
)
from fedrec_lab.comparison.references.search import Axis, Setting

MOST_INVERTED = 20_000
"""Rows of the largest matrix that is inverted: the fewer of users and items."""
_LAMBDA = Axis(
    name="lambda",
    values=(3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0),
    start=100.0,
    widest=(0.1, 100_000.0),
)


class Edlae(ScoredReference):
    """EDLAE: "Autoencoders that don't overfit towards the Identity" (Steck 2020), section 3.

    X (n_users x n_items) is 1 where a user has an item. Training drops each of a user's items with
    probability p. In closed form this is a ridge on the diagonal in proportion to the counts. With

        D = lambda I + p / (1 - p) diag(X^T X),    P = (X^T X + D)^-1,
        B_ij = -P_ij / P_jj  for i /= j,    B_ii = 0,    the scores are X B.

    With fewer users than items the n_users x n_users matrix K = (I + X D^-1 X^T)^-1 is inverted in
    place of P: X P = K X D^-1.
    """

    name: ClassVar[str] = "edlae"
    label: ClassVar[str] = "EDLAE"
    axes: ClassVar[tuple[Axis, ...]] = (
        _LAMBDA,
        Axis(name="dropout", values=(0.0, 0.1, 0.2, 0.33, 0.5, 0.7, 0.85), start=0.33),
    )

    def prepare(self, users: UserSplit, n_items: int) -> Fit:
        """See `ScoredReference.prepare`.

        Raises:
            SettingsError: both users and items are too many to invert.
        """
        if min(len(users), n_items) > MOST_INVERTED:
            raise SettingsError(
                f"{self.label} inverts a matrix with a row for each user or each item, whichever "
                f"is smaller. It takes at most {MOST_INVERTED} rows, but there are {len(users)} "
                f"users and {n_items} items.",
                remedy="Raise federation.minimum_item_users to have fewer items.",
            )
        held = interactions_of(users, n_items)
        counts = np.asarray(held.sum(0)).ravel()
        dual = len(users) < n_items
        gram = (held @ held.T if dual else held.T @ held).toarray()

        def fit(setting: Setting, seed: int) -> Scores:
            dropout = setting[1] if len(setting) > 1 else 0.0
            ridge = setting[0] + dropout / (1.0 - dropout) * counts
            if dual:
                # Sparse times dense: each column of X is added up, scaled by its own ridge.
                small = gram / setting[0] if not dropout else (held / ridge @ held.T).toarray()
                inverse = _inverse(small + np.eye(len(small)))
                products = np.asarray((held.T @ inverse).T)
                diagonal = np.asarray(held.multiply(products).sum(0)).ravel()
                diagonal = (1.0 - diagonal / ridge) / ridge
                scale = 1.0 / (ridge * diagonal)

                def by_users(rows: NDArray[np.int64]) -> NDArray[np.float64]:
                    return np.asarray(held[rows] - products[rows] * scale)

                return by_users
            inverse = _inverse(gram + np.diag(ridge))
            weights = inverse / -np.diag(inverse)
            np.fill_diagonal(weights, 0.0)

            def by_items(rows: NDArray[np.int64]) -> NDArray[np.float64]:
                return np.asarray(held[rows] @ weights)

            return by_items

        return fit


def _inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Invert a positive definite matrix by its Cholesky factor, in under half of `inv`'s time."""
    factor = torch.linalg.cholesky(torch.from_numpy(matrix))
    return np.asarray(torch.cholesky_inverse(factor).numpy())


class Ease(Edlae):
    """EASE: "Embarrassingly Shallow Autoencoders for Sparse Data" (Steck 2019), EDLAE's p = 0."""

    name: ClassVar[str] = "ease"
    label: ClassVar[str] = "EASE"
    axes: ClassVar[tuple[Axis, ...]] = (_LAMBDA,)


_NEIGHBOURS = Axis(
    name="neighbours",
    values=(10.0, 20.0, 50.0, 100.0, 200.0, 500.0),
    start=100.0,
    widest=(4.0, 5000.0),
    counts_rows=True,
)
_WEIGHTINGS = ("cosine", "BM25", "TF-IDF")


class ItemKNN(ScoredReference):
    """ItemKNN as the package `implicit` has it: the cosine of items' columns, nearest items alone.

    The axis `weighting` is 0 for plain columns, 1 for BM25 and 2 for TF-IDF.
    """

    name: ClassVar[str] = "item-knn"
    label: ClassVar[str] = "ItemKNN (implicit)"
    axes: ClassVar[tuple[Axis, ...]] = (
        _NEIGHBOURS,
        Axis(name="weighting", values=(0.0, 1.0, 2.0), start=1.0),
    )

    def prepare(self, users: UserSplit, n_items: int) -> Fit:
        """See `ScoredReference.prepare`.

        Raises:
            SettingsError: the package is not installed.
        """
        try:
            from implicit import nearest_neighbours
        except ImportError as error:
            raise not_installed("implicit") from error
        held = interactions_of(users, n_items)
        kinds = (
            nearest_neighbours.CosineRecommender,
            nearest_neighbours.BM25Recommender,
            nearest_neighbours.TFIDFRecommender,
        )

        def fit(setting: Setting, seed: int) -> Scores:
            # The package counts an item among its own neighbours.
            model = kinds[int(setting[1])](K=int(setting[0]) + 1, num_threads=1)
            with warnings.catch_warnings():
                # It converts its own weighted matrix, and warns of that.
                warnings.simplefilter("ignore")
                model.fit(held, show_progress=False)
            return _sparse_scores(held, model.similarity)

        return fit

    def _text(self, setting: Setting) -> str:
        return f"neighbours {setting[0]:g}, {_WEIGHTINGS[int(setting[1])]}"


class RP3Beta(ScoredReference):
    """RP3beta (Paudel et al. 2017): three steps of a random walk, popular items pushed back.

    If user u has item i, p_ui = 1 / n_u^alpha and p_iu = 1 / n_i^alpha. The weight from item i to
    item j is sum_u p_iu p_uj / n_j^beta. The largest weights of each row are kept.
    """

    name: ClassVar[str] = "rp3beta"
    label: ClassVar[str] = "RP3beta"
    axes: ClassVar[tuple[Axis, ...]] = (
        _NEIGHBOURS,
        Axis(name="alpha", values=(0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6), start=1.0),
        Axis(name="beta", values=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0), start=0.4),
    )

    def prepare(self, users: UserSplit, n_items: int) -> Fit:
        """See `ScoredReference.prepare`."""
        held = interactions_of(users, n_items)
        of_users = np.maximum(np.asarray(held.sum(1)), 1.0)
        of_items = np.asarray(held.sum(0)).ravel()

        def fit(setting: Setting, seed: int) -> Scores:
            neighbours, alpha, beta = setting
            walk = held.multiply(of_users**-alpha).tocsr().multiply(of_items**-beta).tocsr()
            back = held.T.multiply(of_items[:, None] ** -alpha).tocsr()
            return _sparse_scores(held, _nearest(back @ walk, int(neighbours)))

        return fit


def _nearest(weights: Any, neighbours: int) -> Any:
    """Return the largest weights of each row, without the diagonal. Both matrices are sparse."""
    from scipy.sparse import csr_matrix

    weights.setdiag(0.0)
    weights.eliminate_zeros()
    for begin, end in zip(weights.indptr[:-1], weights.indptr[1:], strict=True):
        if end - begin > neighbours:
            row = weights.data[begin:end]
            row[np.argpartition(-row, neighbours)[neighbours:]] = 0.0
    weights.eliminate_zeros()
    return csr_matrix(weights)


def _sparse_scores(held: Any, weights: Any) -> Scores:
    """Return X W for sparse item weights W."""

    def scores(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray((held[rows] @ weights).toarray())

    return scores
