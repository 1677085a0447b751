"""What a plan means for the shared model alone: its first version, and what sums make of it.

A party that opens or applies sums needs this and no user's data. It is pure numpy, and nothing here
imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedrec.config.algorithm import algorithm_of
from fedrec.config.layout import METRICS_SLICE, Layout
from fedrec.config.schema import Plan
from fedrec.evaluation.metrics import MetricSums
from fedrec.model.state import SharedState
from fedrec.training.travelling import Travelling
from fedrec.wire.messages import RoundKind

__all__ = ["ServerHalf"]


class ServerHalf:
    """A plan's shared model for a catalogue of `n_items` items.

    Args:
        plan: what the federation agreed on.
        n_items: items in the catalogue.
        initial: returns the model that every party starts from, where one process draws it for
            many parties.

    Attributes:
        layout: of a round of all items; which rows a round's vector covers `travelling` knows.
    """

    def __init__(
        self, plan: Plan, n_items: int, *, initial: Callable[[], SharedState] | None = None
    ) -> None:
        self.plan = plan
        self.n_items = n_items
        self.layout = Layout.uncounted(plan, n_items)
        self.travelling = Travelling(plan, n_items)
        self.algorithm = algorithm_of(plan, n_items)
        self._initial = initial or cache(self.algorithm.initial_shared)

    def initial_shared(self) -> SharedState:
        """Return the model that every party starts from, drawn once."""
        return self._initial()

    def active_items(self, shared: SharedState) -> NDArray[np.int64]:
        """Return the rows of items that enough users hold (all, before they were counted)."""
        return self.travelling.rows("train", shared).index

    def apply(
        self, kind: RoundKind, number: int, shared: SharedState, aggregate: NDArray[np.int64]
    ) -> SharedState:
        """Return the model after a published round: pure numpy, the same bits everywhere."""
        mechanism = self.layout.mechanism
        counts = self.travelling.counts(kind, shared, aggregate)
        if mechanism is not None:
            # Nobody counts holders: noise covers rare items, so all of them take part.
            counts = np.full(self.n_items, max(1, self.plan.federation.minimum_item_users))
        if kind == "count":
            return self.apart(shared.counted(counts.copy()))
        if kind == "evaluate":
            return shared
        if not self.algorithm.counts_rows:
            counts = self._counted(shared, aggregate)
        change = self.travelling.change(kind, shared, aggregate)
        if mechanism is not None:
            # One fixed number divides everything: how many took part is nobody's to know.
            change = {name: values / mechanism.divisor for name, values in change.items()}
            for tensor in self.layout.tensors:
                if not tensor.signed:
                    change[tensor.name] = np.ones(tensor.shape)
            counts = np.ones(self.n_items, dtype=np.int64)
        return self.moved(number, shared, change, counts)

    def _counted(self, shared: SharedState, aggregate: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the last count's users of the active items, 0 of those that too few hold now.

        Nobody holds anything where nobody trained: every client of the round abstained.
        """
        active = self.active_items(shared)
        if shared.last_counted is None or not self.metrics(aggregate).participants:
            return np.zeros(len(active), dtype=np.int64)
        counts = shared.last_counted[active]
        return np.where(counts >= self.plan.federation.minimum_item_users, counts, 0)

    def moved(
        self,
        number: int,
        shared: SharedState,
        change: dict[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
    ) -> SharedState:
        """Return what a training round leads to."""
        shared = self.apart(shared)
        moved = self.algorithm.apply(shared.part(), change, counts, number)
        return replace(shared.with_part(moved), trained=shared.trained + 1)

    def apart(self, shared: SharedState) -> SharedState:
        """Return the same version with the rows of active items apart from the others."""
        return self.travelling.rows("train", shared).apart(shared, self.algorithm.row_tables)

    def metrics(self, aggregate: NDArray[np.int64]) -> MetricSums:
        """Return the metric sums of an aggregate."""
        return MetricSums(aggregate[METRICS_SLICE].copy())
