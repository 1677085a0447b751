"""The seam of references, methods that an algorithm is compared with on the same users.

Those that are fitted to interactions and score are here, too: EASE and iALS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.splits import NO_ITEM, UserSplit
from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import Protocol, Split, rates_of_ranks
from fedrec.evaluation.protocols import Ranking
from fedrec.extras import how_to_install
from fedrec_lab.comparison.measurement import Measurement, MeasurementStopped, MethodTask

Scores = Callable[[NDArray[np.int64]], NDArray[np.floating]]
"""From positions of users to their scores of all items given to `fit`, (n_rows, n_items)."""

_SCORES_AT_ONCE = 1 << 23


class Reference(ABC):
    """A method that is compared with the run's own algorithm.

    Attributes:
        name: its name in `REFERENCES` and in files.
        label: its display name.
        seeded: whether another seed gives another result.
        draws_negatives: whether it trains on sampled negatives, and thus once more for `paper`.
        next to: the only algorithm with which it is compared, or empty for all.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    seeded: ClassVar[bool]
    draws_negatives: ClassVar[bool] = False
    beside: ClassVar[str] = ""

    @abstractmethod
    def measure(self, task: MethodTask) -> list[Measurement]:
        """Return what the method reaches under each protocol with each seed.

        Raises:
            SettingsError: it cannot run here. The message and remedy become the row's note.
            TrainingError: it diverged.
            MeasurementStopped: the task was asked to stop.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A fitted model.

    Attributes:
        setting: what distinguishes it from the others of its grid: "lambda 300".
        scores: see `Scores`.
    """

    setting: str
    scores: Scores


class ScoredReference(Reference):
    """A reference that is fitted to interactions once for each setting of a small grid.

    The best setting is chosen for every protocol and seed by NDCG on validation.
    """

    @abstractmethod
    def fit(self, users: UserSplit, n_items: int, seed: int) -> Iterator[Fitted]:
        """Yield a fitted model for each setting of the grid.

        Args:
            users: with `training_only` interactions: held-out items are absent.
            n_items: the items that they count by. Each has a user.
        """

    def measure(self, task: MethodTask) -> list[Measurement]:
        """Fit every setting and keep the best. See `Reference.measure`."""
        seeds = task.seeds
        if not self.seeded:
            return self._measure_fit(task, seeds)
        return [found for seed in seeds for found in self._measure_fit(task, (seed,))]

    def _measure_fit(self, task: MethodTask, seeds: tuple[int, ...]) -> list[Measurement]:
        active, device = task.active, torch.device("cpu")
        rankings = {
            seed: Ranking(task.users, len(task.catalogue), seed=seed, device=device)
            for seed in seeds
        }
        best: dict[tuple[Protocol, int], tuple[float, Measurement]] = {}
        for fitted in self.fit(training_only(task.users, active), len(active), seeds[0]):
            if task.stop():
                raise MeasurementStopped
            ranks = _all_ranks(task, fitted.scores, active, rankings)
            for (protocol, seed), (validation, test) in ranks.items():
                at = task.settings.evaluation.at
                known, rates = rates_of_ranks(validation, at), rates_of_ranks(test, at)
                key = (protocol, seed)
                if known is None or rates is None:
                    continue
                if key not in best or known.ndcg > best[key][0]:
                    found = Measurement(
                        method=self.name,
                        label=self.label,
                        protocol=protocol,
                        seed=seed,
                        rates=rates,
                        chosen=fitted.setting,
                    )
                    best[key] = (known.ndcg, found)
            task.tell(fitted.setting)
        return [measurement for _, measurement in best.values()]


def _all_ranks(
    task: MethodTask, scores: Scores, active: NDArray[np.int64], rankings: dict[int, Ranking]
) -> dict[tuple[Protocol, int], tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return validation and test ranks by protocol and seed. Inactive items rank last."""
    n_users, n_items = len(task.users), len(task.catalogue)
    splits: tuple[Split, Split] = ("validation", "test")
    found = {
        (protocol, seed): (np.full(n_users, -1.0), np.full(n_users, -1.0))
        for protocol in task.protocols
        for seed in rankings
    }
    at_once = max(1, _SCORES_AT_ONCE // max(1, n_items))
    for begin in range(0, n_users, at_once):
        rows = np.arange(begin, min(n_users, begin + at_once))
        whole = torch.full((len(rows), n_items), -torch.inf, dtype=torch.float64)
        whole[:, torch.from_numpy(active)] = torch.from_numpy(
            np.asarray(scores(rows), dtype=np.float64)
        )
        for (protocol, seed), ranks in found.items():
            for split, values in zip(splits, ranks, strict=True):
                values[rows] = rankings[seed].ranks(whole, rows, split, protocol)
    return found


def training_only(users: UserSplit, active: NDArray[np.int64]) -> UserSplit:
    """Return the training items among the active ones, counted by their position there.

    The held-out items are left out, so that no reference can see them.
    """
    named = (active, users.train_items, users.validation_items, users.test_items)
    position = np.full(1 + max(int(items.max(initial=-1)) for items in named), -1, dtype=np.int64)
    position[active] = np.arange(len(active))
    nothing = np.full(len(users), NO_ITEM, dtype=np.int64)
    return replace(users.renumbered(position), validation_items=nothing, test_items=nothing)


EASE_GRID = (100.0, 300.0, 1000.0)
MOST_ITEMS = 20_000
_CELLS_AT_ONCE = 1 << 23


class Ease(ScoredReference):
    """EASE: "Embarrassingly Shallow Autoencoders for Sparse Data" (Steck 2019), equation 8.

    X (n_users x n_items) is 1 where a user has an item. Of all item-to-item weights B with a zero
    diagonal, those that minimise |X - X B|^2 + lambda |B|^2 are, with P = (X^T X + lambda I)^-1,

        B_ij = -P_ij / P_jj  for i /= j,    and the scores are X B.

    All interactions are in one place. There is an exact solution for each lambda of `EASE_GRID`.
    """

    name: ClassVar[str] = "ease"
    label: ClassVar[str] = "EASE, centralised"
    seeded: ClassVar[bool] = False

    def fit(self, users: UserSplit, n_items: int, seed: int) -> Iterator[Fitted]:
        """Yield the closed form for each lambda. See `ScoredReference.fit`."""
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
        for regularisation in EASE_GRID:
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


IALS_GRID = ((1.0, 10.0), (5.0, 20.0), (10.0, 50.0))
"""alpha and lambda."""
DIM = 64
ITERATIONS = 15


class IALS(ScoredReference):
    """iALS (Hu, Koren, Volinsky 2008) as the package `implicit` trains it, on all data together.

    The package weighs an interaction with alpha and everything else with 1. Each (alpha, lambda) of
    `IALS_GRID` is tried. Its random numbers follow from the seed, its sums from the number of
    threads: two machines agree to some digits only.
    """

    name: ClassVar[str] = "ials"
    label: ClassVar[str] = "iALS, centralised (implicit)"
    seeded: ClassVar[bool] = True

    def fit(self, users: UserSplit, n_items: int, seed: int) -> Iterator[Fitted]:
        """Yield a model for each setting. See `ScoredReference.fit`.

        Raises:
            SettingsError: the package is not installed.
        """
        try:
            from implicit.cpu.als import AlternatingLeastSquares
            from scipy.sparse import csr_matrix
            from threadpoolctl import threadpool_limits
        except ImportError as error:
            raise SettingsError(
                "The package implicit is not installed.",
                remedy=f"Install it with: {how_to_install('implicit')}",
            ) from error
        values = np.ones(users.n_train, dtype=np.float32)
        held = csr_matrix(
            (values, users.train_items.astype(np.int32), users.train_indptr.astype(np.int32)),
            shape=(len(users), n_items),
        )
        for alpha, regularisation in IALS_GRID:
            # Threads of BLAS below threads of the package only wait for each other.
            with threadpool_limits(1, "blas"):
                model = AlternatingLeastSquares(
                    factors=DIM,
                    regularization=regularisation,
                    alpha=alpha,
                    iterations=ITERATIONS,
                    random_state=seed % (1 << 32),
                )
                model.fit(held, show_progress=False)
            users_table = np.asarray(model.user_factors, dtype=np.float64)
            items_table = np.asarray(model.item_factors, dtype=np.float64)

            def scores(
                rows: NDArray[np.int64],
                of_users: NDArray[np.float64] = users_table,
                of_items: NDArray[np.float64] = items_table,
            ) -> NDArray[np.float64]:
                return np.asarray(of_users[rows] @ of_items.T)

            yield Fitted(setting=f"alpha {alpha:g}, lambda {regularisation:g}", scores=scores)
