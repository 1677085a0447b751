"""Rounds of the trainer whose changes are not rounded: what is compared with plain twins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms.cohort import BlockChange
from fedrec.algorithms.individual import UserUpdates
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.algorithms.whole_decay import decaying, shrinking
from fedrec.data import UserSplit
from fedrec.model.state import SharedState
from fedrec.training.learner import Learner
from fedrec.training.trainer import Trainer

Tensors = dict[str, NDArray[np.float64]]


class UnroundedSums:
    """A `ChangeSink` that adds up what it is given, in float64.

    Attributes:
        rows, whole: sums by tensor, of active items and one row for unused places.
        blocks: every block's change as it came.
    """

    def __init__(self, n_active: int) -> None:
        self._n_active = n_active
        self.rows: dict[str, torch.Tensor] = {}
        self.whole: dict[str, torch.Tensor] = {}
        self._counts = torch.zeros(n_active + 1, dtype=torch.int64)
        self.blocks: list[BlockChange] = []
        self._steps: list[torch.Tensor] = []

    def add_block(self, change: BlockChange) -> torch.Tensor:
        """Add users' changes; nothing is clipped."""
        self.blocks.append(change)
        item = change.item.reshape(-1)
        once = torch.ones(len(change.item), dtype=torch.int64)
        for name, values in change.rows.items():
            weight = change.weight.get(name, once)[:, None, None]
            flat = (values.to(torch.float64) * weight).reshape(len(item), -1)
            nothing = torch.zeros((self._n_active + 1, flat.shape[1]), dtype=torch.float64)
            self.rows.setdefault(name, nothing).index_add_(0, item, flat)
            if name in change.idle:
                idle = (change.idle[name].to(torch.float64) * weight).reshape(len(item), -1)
                self.rows[name].index_add_(0, item, idle, alpha=-1.0)
        if change.steps is not None:
            weight = next(iter(change.weight.values()), once)
            self._steps.append(torch.stack([change.steps, weight], dim=1))
        for name, values in change.whole.items():
            weighted = values.to(torch.float64) * change.weight.get(name, once)[:, None]
            self.whole[name] = self.whole.get(name, 0.0) + weighted.sum(0)
        self._counts.index_add_(0, item, torch.ones_like(item))
        return torch.zeros(len(change.item), dtype=torch.int64)

    def settle(
        self,
        tables: Mapping[str, torch.Tensor],
        shrinking: Mapping[str, torch.Tensor],
        weighed: Collection[str] = (),
    ) -> None:
        """Add what every user's rows shrink by where no user touches them.

        Args:
            weighed: tensors in which users count as often as their training items.
        """
        for name in self.rows.keys() & shrinking.keys():
            table = tables[name].to(torch.float64).reshape(self._n_active, -1)
            for step, weight in torch.cat(self._steps).tolist():
                times = weight if name in weighed else 1
                self.rows[name][:-1] += times * table * shrinking[name][step].to(torch.float64)

    def tensors(self, learner: Learner, active: NDArray[np.int64]) -> Tensors:
        """Return the sums in the shapes of the update's tensors."""
        found = {}
        for tensor in learner.server.layout.tensors:
            if not tensor.per_item and tensor.name not in self.whole:
                continue  # it only shows a server the user
            found[tensor.name] = np.zeros(tensor.shape)
            if tensor.per_item:
                rows = self.rows[tensor.name][:-1].numpy()
                found[tensor.name][active] = rows.reshape(-1, *tensor.shape[1:])
            else:
                found[tensor.name] += self.whole[tensor.name].numpy().reshape(tensor.shape)
        return found

    @property
    def counts(self) -> NDArray[np.int64]:
        """Users who touched each active item."""
        return self._counts[:-1].numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnroundedRound:
    """What a round of every user leaves behind: sums, counts, private tensors, mean losses."""

    change: Tensors
    counts: NDArray[np.int64]
    shared: SharedState
    private: Tensors
    loss: NDArray[np.float64]
    sums: UnroundedSums


def begin(learner: Learner, users: UserSplit) -> tuple[SharedState, Tensors]:
    """Return what every user starts from, private tensors in float64."""
    private = learner.local.initial_private(users).tensors
    return learner.server.initial_shared(), {
        name: v.astype(np.float64) for name, v in private.items()
    }


def train_unrounded(
    learner: Learner,
    users: UserSplit,
    shared: SharedState,
    private: Tensors,
    round_id: int,
    dtype: torch.dtype = torch.float64,
    taking: NDArray[np.bool_] | None = None,
) -> UnroundedRound:
    """Train every user, or those who are taking part, in one round and apply the mean."""
    algorithm = learner.server.algorithm
    assert isinstance(algorithm, TrainedAlgorithm)
    cohort = learner.local.cohort(shared, users)
    start = algorithm.derived.start(shared, cohort.active, round_id, learner.local.device, dtype)
    trainer = Trainer(algorithm, replace(start, party_key=cohort.party_key))
    sums = UnroundedSums(len(cohort.active))
    after = {name: values.copy() for name, values in private.items()}
    loss = np.full(len(users), np.nan)
    for chunk in learner.local.chunks(cohort, taking):
        where = chunk.user_index.numpy()
        own = {name: torch.from_numpy(values[where]).to(dtype) for name, values in private.items()}
        result = trainer.train(chunk, own, sums)
        for name, values in result.private.items():
            assert values.dtype is dtype
            after[name][where] = values.numpy()
        loss[where] = result.loss.numpy()
    weighed = [entry.name for entry in algorithm.parameters if entry.mean == "samples"]
    sums.settle(decaying(algorithm, start), shrinking(algorithm, start), weighed)
    change = sums.tensors(learner, cohort.active)
    counts = np.zeros(learner.server.n_items, dtype=np.int64)
    if algorithm.derived.counts_rows:
        counts[cohort.active] = sums.counts
    applied = algorithm.apply(shared, MappingProxyType(change), counts, round_id)
    if algorithm.derived.personalises:
        applied = personalise(learner, users, shared, applied, after, ~np.isnan(loss), round_id)
    return UnroundedRound(
        change=change,
        counts=counts,
        shared=replace(applied, trained=shared.trained + 1),
        private=after,
        loss=loss,
        sums=sums,
    )


def personalise(
    learner: Learner,
    users: UserSplit,
    before: SharedState,
    applied: SharedState,
    private: Tensors,
    trained: NDArray[np.bool_],
    number: int,
) -> SharedState:
    """Give those who trained their own model, in place, and return the version after that."""
    algorithm = learner.server.algorithm
    assert isinstance(algorithm, TrainedAlgorithm)
    keys = users.user_keys()
    rows = np.nonzero(trained)[0]
    rows = rows[np.argsort(keys[rows])]
    sent = {
        name: private[own].copy() for name, own in algorithm.sent.sources.items() if own in private
    }
    updates = UserUpdates(
        before,
        active=learner.server.active_items(before),
        user_keys=keys[rows],
        samples=np.diff(users.train_indptr)[rows],
        number=number,
        read=lambda name, some: sent[name][rows[some]],
        shown=lambda name: private[name][rows],
    )
    found = algorithm.personalise(updates)
    for name, mixture in found.own.items():
        tables = updates.mixed(mixture.of, mixture.weights)
        table_of = np.arange(len(rows)) if mixture.table_of is None else mixture.table_of
        private[name][rows[table_of >= 0]] = tables[table_of[table_of >= 0]]
    return applied.with_tensors(**found.shared)


def assert_near(found: object, expected: object, tolerance: float, what: str = "") -> None:
    """Compare by norms: |found - expected| <= tolerance |expected|, of something not zero."""
    one, other = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert one.shape == other.shape, what
    norm = float(np.linalg.norm(other))
    assert norm > 0, f"{what} is all zero"
    apart = float(np.linalg.norm(one - other)) / norm
    assert apart <= tolerance, f"{what}: {apart:.2g} of its norm apart"
