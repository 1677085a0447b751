"""The seam of references, methods that an algorithm is compared with on the same users.

`ScoredReference` is for those that are fitted to interactions and score: it tunes them on
validation and measures them on all rows and on the rows that may travel. `Ceiling` is what no
method can exceed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.splits import NO_ITEM, UserSplit
from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import Protocol, Split, rates_of_ranks
from fedrec.evaluation.protocols import Ranking
from fedrec_lab.comparison.measurement import (
    Blocks,
    Measurement,
    MeasurementStopped,
    MethodTask,
    kept_ranks,
)
from fedrec_lab.comparison.references.search import Axis, Setting, search
from fedrec_lab.reports.comparison_table import paired_bootstrap

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Scores = Callable[[NDArray[np.int64]], NDArray[np.floating[Any]]]
"""From positions of users to their scores of all items given to `prepare`, (n_rows, n_items)."""
Fit = Callable[[Setting, int], Scores]
"""From a setting and a seed to a fitted model's scores."""

ALL_ROWS = "-all-rows"
"""Suffix of a method's name if it may also use rows that do not travel."""
_SCORES_AT_ONCE = 1 << 23


class Reference(ABC):
    """A method to compare with the run's own algorithm.

    Attributes:
        name: its name in `REFERENCES` and in files.
        label: its display name.
        job_for_each_seed: whether each seed is trained, and resumed, on its own.
        draws_negatives: whether it trains on sampled negatives, and thus once more for `paper`.
        only_with: the only algorithm with which it is compared, or empty for all.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    job_for_each_seed: ClassVar[bool] = False
    draws_negatives: ClassVar[bool] = False
    only_with: ClassVar[str] = ""

    @abstractmethod
    def measure(self, task: MethodTask) -> list[Measurement]:
        """Return the method's measurement under each protocol with each seed.

        Raises:
            SettingsError: the method cannot run here. The message and remedy become the row's note.
            TrainingError: training diverged.
            MeasurementStopped: the task was asked to stop.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSet:
    """The items that a method may use.

    Attributes:
        suffix: the suffix of the method's name.
        label: the suffix of the method's label.
        active: the items' positions in the catalogue, in ascending order.
    """

    suffix: str
    label: str
    active: NDArray[np.int64]


def rows_of(task: MethodTask) -> tuple[RowSet, ...]:
    """Return the rows that may travel, and all rows with a user where these are more."""
    travelling = RowSet(suffix="", label="", active=task.active)
    held = np.unique(task.users.train_items).astype(np.int64)
    if np.array_equal(held, travelling.active):
        return (travelling,)
    return travelling, RowSet(suffix=ALL_ROWS, label=", all rows", active=held)


class ScoredReference(Reference):
    """A reference that is fitted to interactions, with a setting that validation chooses.

    The first seed chooses the setting by NDCG within the task's budget, for every protocol and each
    set of rows. The other seeds use its setting.

    Attributes:
        seeded: whether the model depends on the seed.
        axes: the settings to try.
    """

    seeded: ClassVar[bool] = False
    axes: ClassVar[tuple[Axis, ...]]

    @abstractmethod
    def prepare(self, users: UserSplit, n_items: int) -> Fit:
        """Return the function that fits the method with one setting.

        Args:
            users: the users with `training_only` interactions, without held-out items.
            n_items: the number of items. Each has a user.
        """

    def measure(self, task: MethodTask) -> list[Measurement]:
        """Tune on each set of rows. See `Reference.measure`."""
        return [found for rows in rows_of(task) for found in self._measure_rows(task, rows)]

    def _measure_rows(self, task: MethodTask, rows: RowSet) -> list[Measurement]:
        if not len(rows.active):
            raise SettingsError("No row has enough users.", remedy="Use more data.")
        fit = self.prepare(training_only(task.users, rows.active), len(rows.active))
        ranks = _Ranks(task, rows, fit, seeded=self.seeded, text=self._text)
        measured: list[Measurement] = []
        for protocol in task.protocols:
            best, note = self._chosen(task, ranks, protocol)
            measured += self._measured(task, ranks, protocol, best, note)
            if task.add_lists is not None and protocol == task.lists_under:
                for seed in task.seeds if self.seeded else task.seeds[:1]:
                    scores = fit(best, seed)
                    task.add_lists(self.name + rows.suffix, seed, _blocks(task, scores, rows))
        return measured

    def _chosen(self, task: MethodTask, ranks: _Ranks, protocol: Protocol) -> tuple[Setting, str]:
        """Return the setting that is best on the first seed's validation, and a note on it."""
        at, seed = task.settings.evaluation.at, task.seeds[0]

        def worth(setting: Setting) -> float:
            rates = rates_of_ranks(ranks.of(setting, seed, protocol)["validation"], at)
            return 0.0 if rates is None else rates.ndcg

        axes = tuple(axis.within(len(ranks.rows.active)) for axis in self.axes)
        chosen = search(axes, task.budget, worth)
        pair = [
            ranks.of(setting, seed, protocol)["validation"]
            for setting in (chosen.best, chosen.worst)
        ]
        return chosen.best, "; ".join((*chosen.notes, *_undecided(pair, chosen.tried, at)))

    def _measured(
        self, task: MethodTask, ranks: _Ranks, protocol: Protocol, setting: Setting, note: str
    ) -> Iterator[Measurement]:
        """Yield the measurement of each seed with a setting. The first one has the note."""
        at = task.settings.evaluation.at
        for seed in task.seeds:
            found = ranks.of(setting, seed, protocol)
            rates = rates_of_ranks(found["test"], at)
            if rates is None:
                continue
            yield Measurement(
                method=self.name + ranks.rows.suffix,
                label=self.label + ranks.rows.label,
                protocol=protocol,
                seed=seed,
                rates=rates,
                validation=rates_of_ranks(found["validation"], at),
                chosen=self._text(setting),
                note="" if seed != task.seeds[0] else note,
                ranks=kept_ranks(found["test"], at),
            )

    def _text(self, setting: Setting) -> str:
        return ", ".join(
            f"{axis.name} {value:g}" for axis, value in zip(self.axes, setting, strict=True)
        )


class _Ranks:
    """The ranks under settings of a reference on a set of rows. Each setting is fitted once.

    Args:
        seeded: whether the model depends on the seed.
        text: describes a setting.

    Attributes:
        rows: the items that the reference may use.
    """

    def __init__(
        self,
        task: MethodTask,
        rows: RowSet,
        fit: Fit,
        *,
        seeded: bool,
        text: Callable[[Setting], str],
    ) -> None:
        self.rows = rows
        self._task, self._fit, self._seeded, self._text = task, fit, seeded, text
        self._known: dict[tuple[Setting, int, Protocol], dict[Split, NDArray[np.float64]]] = {}
        self._rankings: dict[int, Ranking] = {}

    def of(self, setting: Setting, seed: int, protocol: Protocol) -> dict[Split, Any]:
        """Return the ranks of all users on validation and test.

        Raises:
            MeasurementStopped: the task was asked to stop.
        """
        if (setting, seed, protocol) not in self._known:
            task = self._task
            if task.stop():
                raise MeasurementStopped
            rankings = {
                each: self._ranking(each) for each in ((seed,) if self._seeded else task.seeds)
            }
            found = _all_ranks(task, self._fit(setting, seed), self.rows.active, rankings)
            for (of_protocol, of_seed), values in found.items():
                self._known[setting, of_seed, of_protocol] = values
            n_fitted = len({(one, seed) for one, seed, _ in self._known})
            task.tell(f"setting {n_fitted}{self.rows.label}: {self._text(setting)}")
        return self._known[setting, seed, protocol]

    def _ranking(self, seed: int) -> Ranking:
        if seed not in self._rankings:
            task, device = self._task, torch.device("cpu")
            self._rankings[seed] = Ranking(
                task.users, len(task.catalogue), seed=seed, device=device
            )
        return self._rankings[seed]


def _blocks(task: MethodTask, scores: Scores, rows: RowSet) -> Blocks:
    """Yield all users' scores over the whole catalogue."""
    n_users, n_items = len(task.users), len(task.catalogue)
    at_once = max(1, _SCORES_AT_ONCE // n_items)
    for begin in range(0, n_users, at_once):
        some = np.arange(begin, min(n_users, begin + at_once))
        found = torch.full((len(some), n_items), -torch.inf, dtype=torch.float64)
        found[:, torch.from_numpy(rows.active)] = torch.from_numpy(
            np.asarray(scores(some), dtype=np.float64)
        )
        yield some, found


def _undecided(pair: Sequence[NDArray[np.float64]], n_tried: int, at: int) -> list[str]:
    """Return a warning where validation cannot tell even the best setting from the worst."""
    if n_tried < 2 or not bool((pair[0] >= 0).any()):
        return []
    bootstrap = paired_bootstrap(pair[0], pair[1], at=at, n_resamples=1000)
    found = bootstrap.difference
    if found.excludes(0.0):
        return []
    return [
        f"warning: {bootstrap.users} validation users are too few to choose among {n_tried} "
        f"settings: the best has {found.estimate:.4f} [{found.low:.4f}, {found.high:.4f}] more "
        "NDCG than the worst"
    ]


def _all_ranks(
    task: MethodTask, scores: Scores, active: NDArray[np.int64], rankings: dict[int, Ranking]
) -> dict[tuple[Protocol, int], dict[Split, NDArray[np.float64]]]:
    """Return ranks on validation and test by protocol and seed. Inactive items rank last."""
    n_users = len(task.users)
    splits: tuple[Split, Split] = ("validation", "test")
    found = {
        (protocol, seed): {split: np.full(n_users, -1.0) for split in splits}
        for protocol in task.protocols
        for seed in rankings
    }
    at_once = max(1, _SCORES_AT_ONCE // len(active))
    for begin in range(0, n_users, at_once):
        rows = np.arange(begin, min(n_users, begin + at_once))
        block = torch.from_numpy(np.asarray(scores(rows), dtype=np.float64))
        for (protocol, seed), ranks in found.items():
            for split, values in ranks.items():
                values[rows] = rankings[seed].ranks(block, rows, split, protocol, columns=active)
    return found


def training_only(users: UserSplit, active: NDArray[np.int64]) -> UserSplit:
    """Return the training items among the active ones, counted by their position there.

    The held-out items are left out, so that no reference can see them.
    """
    named = (active, np.asarray(users.train_items), users.validation_items, users.test_items)
    position = np.full(1 + max(int(items.max(initial=-1)) for items in named), -1, dtype=np.int64)
    position[active] = np.arange(len(active))
    nothing = np.full(len(users), NO_ITEM, dtype=np.int64)
    return replace(users.renumbered(position), validation_items=nothing, test_items=nothing)


def interactions_of(
    users: UserSplit, n_items: int, dtype: type[np.floating[Any]] = np.float64
) -> csr_matrix:
    """Return X, sparse (n_users, n_items): 1 where a user has an item."""
    from scipy.sparse import csr_matrix

    return csr_matrix(
        (np.ones(users.n_train, dtype=dtype), users.train_items, users.train_indptr),
        shape=(len(users), n_items),
    )


class Ceiling(Reference):
    """The figures of a model that ranks the held-out item first whenever it may recommend it.

    HR, NDCG and MRR are all the share of held-out items that can be recommended at all.
    """

    name: ClassVar[str] = "ceiling"
    label: ClassVar[str] = "ceiling: held-out items with a row"

    def measure(self, task: MethodTask) -> list[Measurement]:
        """Count held-out items. See `Reference.measure`."""
        at, held, found = task.settings.evaluation.at, task.users.test_items, []
        for rows in rows_of(task):
            within = np.isin(held, rows.active)
            ranks = np.where(held < 0, -1.0, np.where(within, 0.0, float(at)))
            rates = rates_of_ranks(ranks, at)
            if rates is None:
                continue
            found += [
                Measurement(
                    method=self.name + rows.suffix,
                    label=self.label + rows.label,
                    protocol=protocol,
                    seed=seed,
                    rates=rates,
                )
                for protocol in task.protocols
                for seed in task.seeds
            ]
        return found
