"""The seam of references: methods that an algorithm is held against, on the same users."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.splits import NO_ITEM, UserSplit
from fedrec.evaluation.metrics import Protocol, Split, rates_of_ranks
from fedrec.evaluation.protocols import Ranking
from fedrec_lab.comparison.measurement import Measurement, MeasurementStopped, MethodTask

Scores = Callable[[NDArray[np.int64]], NDArray[np.floating]]
"""From positions of users to their scores of all items given to `fit`, (n_rows, n_items)."""

_SCORES_AT_ONCE = 1 << 23


class Reference(ABC):
    """A method that is measured beside the run's own algorithm.

    Attributes:
        name: its name in `REFERENCES` and in files.
        label: what people read.
        seeded: whether another seed gives another result.
        draws_negatives: whether it trains on sampled negatives, and thus once more for `paper`.
        beside: the algorithm beside whose runs alone it is measured; empty for all.
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
            SettingsError: it cannot run here; the message and remedy become the row's note.
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
            n_items: the items that they count by; each has a user.
        """

    def measure(self, task: MethodTask) -> list[Measurement]:
        """Fit every setting and keep the best; see `Reference.measure`."""
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
    """Return validation and test ranks by protocol and seed; inactive items rank last."""
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
