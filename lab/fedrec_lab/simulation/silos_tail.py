"""Tail at home in a simulation: every silo scores the items that don't travel by its own users.

The mathematics is in `fedrec.recommender.tail`. Rounds, their metrics and the shared model are the
same with and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.errors import DataError
from fedrec.evaluation.metrics import Protocol
from fedrec.evaluation.protocols import held_out_ranks
from fedrec.model.state import PrivateState, SharedState
from fedrec.recommender.tail import (
    LocalTail,
    TailFigures,
    check_tail_users,
    crossed,
    figures_of,
    weighed,
)
from fedrec.settings.schema import Settings
from fedrec.training.learner import Learner
from fedrec_lab.reports.comparison_table import RESAMPLES, PairedBootstrap, paired_bootstrap

TAIL = "tail_at_home"
"""The method's name in tables."""
_USERS_AT_ONCE = 1024


def check_tail(settings: Settings, n_users: int, n_clients: int) -> None:
    """Check before training that every silo is small enough, if `client.tail` is set.

    Raises:
        SettingsError: a silo has too many users.
    """
    if settings.client.tail:
        check_tail_users(-(-n_users // n_clients))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SilosTail:
    """The effect of the silos' own scores.

    Attributes:
        silos: each silo's weight and figures.
        shared: every user's validation rank under the shared model, float64 (n_users,). The
            protocol is `full`, and -1 means that there is no such item.
        crossed: the same with the tail, under the weight that the other half of the silo chose.
        test: the ranks of test items without and with the tail, by protocol.
    """

    silos: tuple[TailFigures, ...]
    shared: NDArray[np.float64]
    crossed: NDArray[np.float64]
    test: Mapping[Protocol, tuple[NDArray[np.float64], NDArray[np.float64]]]

    @property
    def weights(self) -> str:
        """Return the silos' weights as text."""
        found = [f"{silo.weight:g}" for silo in self.silos]
        return f"weight {found[0]}" if len(set(found)) == 1 else f"weights {'/'.join(found)}"

    def gain(self, at: int) -> PairedBootstrap | None:
        """Return NDCG@K on validation with the tail minus without it, or None if none are left."""
        try:
            return paired_bootstrap(self.crossed, self.shared, at=at, n_resamples=RESAMPLES)
        except DataError:
            return None

    def helps(self, at: int) -> bool:
        """Return whether validation shows that the tail helps: the interval lies above 0."""
        found = self.gain(at)
        return found is not None and found.difference.low > 0.0

    def verdict(self, at: int) -> str:
        """Return the result on validation as a sentence."""
        rows = max((silo.n_rows for silo in self.silos), default=0)
        if not rows:
            return "no item that doesn't travel has client.tail_minimum_users users at any silo."
        found = self.gain(at)
        if found is None:
            return "no user has a validation item, so no weight was chosen."
        if not any(silo.weight for silo in self.silos):
            return "validation chose weight 0 at every silo, so that nothing changes."
        ending = "helps" if found.difference.low > 0.0 else "is not shown to help"
        if found.difference.high < 0.0:
            ending = "hurts"
        return (
            f"the tail {ending}: NDCG@{at} on validation changes by {found.difference.text()}, "
            "where each half of a silo's users chooses the weight for the other half."
        )


def measure_silos(
    learner: Learner,
    shared: SharedState,
    private: PrivateState,
    users: UserSplit,
    groups: Sequence[NDArray[np.int64]],
    least: int,
    protocols: Sequence[Protocol],
    check: Callable[[], None] = lambda: None,
) -> SilosTail:
    """Choose every silo's weight on its validation items, and rank its test items.

    Args:
        private: the private state of all users.
        groups: the positions of each silo's users.
        least: the value of `client.tail_minimum_users`.
        protocols: the protocols under which test items are ranked.
        check: called before every block of users. Its errors end the measurement.
    """
    plan = learner.server.plan
    travelling = np.zeros(learner.server.n_items, dtype=np.bool_)
    travelling[learner.server.active_items(shared)] = True
    before, after = np.full(len(users), -1.0), np.full(len(users), -1.0)
    test = {name: (before.copy(), before.copy()) for name in protocols}
    silos = []
    for group in groups:
        own = users.select(group)
        tail = LocalTail(own.train_indptr, np.asarray(own.train_items), travelling, least)
        blocks = partial(_silo_scores, learner, shared, private, own, group, check)
        ranks = weighed(tail, own, blocks())
        figures = figures_of(tail, ranks, plan.evaluation.at)
        silos.append(figures)
        before[group], after[group] = ranks[0], crossed(ranks, plan.evaluation.at)
        for rows, scores, with_tail in _added(tail, figures.weight, blocks()) if test else ():
            chosen = own.select(rows)
            for name, found in test.items():
                for side, values in zip(found, (scores, with_tail), strict=True):
                    side[group[rows]] = held_out_ranks(
                        torch.from_numpy(values),
                        chosen,
                        "test",
                        protocol=name,
                        seed=plan.federation.seed,
                    )
    return SilosTail(silos=tuple(silos), shared=before, crossed=after, test=test)


def _silo_scores(
    learner: Learner,
    shared: SharedState,
    private: PrivateState,
    own: UserSplit,
    group: NDArray[np.int64],
    check: Callable[[], None] = lambda: None,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield scores of a silo's users, by positions in the silo."""
    for begin in range(0, len(group), _USERS_AT_ONCE):
        check()
        some = np.arange(begin, min(len(group), begin + _USERS_AT_ONCE))
        part, rows = own.select(some), private.rows(group[some])
        for found, scores in learner.local.score_blocks(shared, part, rows):
            yield some[found], scores.cpu().numpy()


def _added(
    tail: LocalTail, weight: float, blocks: Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]]:
    """Yield positions in a silo, scores without and with its tail."""
    for rows, scores in blocks:
        with_tail = scores.copy()
        tail.add(with_tail, np.array([tail.own(row) for row in rows.tolist()]), weight)
        yield rows, scores, with_tail


def scores_with_tail(
    learner: Learner,
    shared: SharedState,
    private: PrivateState,
    users: UserSplit,
    groups: Sequence[NDArray[np.int64]],
    least: int,
    silos: SilosTail,
) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
    """Yield positions of users and their scores with the tail, under the weights of `silos`."""
    travelling = np.zeros(learner.server.n_items, dtype=np.bool_)
    travelling[learner.server.active_items(shared)] = True
    for group, figures in zip(groups, silos.silos, strict=True):
        own = users.select(group)
        tail = LocalTail(own.train_indptr, np.asarray(own.train_items), travelling, least)
        blocks = _silo_scores(learner, shared, private, own, group)
        for rows, _, found in _added(tail, figures.weight, blocks):
            yield group[rows], torch.from_numpy(found)
