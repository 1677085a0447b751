"""Between a party's sums over the active items and the vectors that travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.declarations import HOLDER_PAIRS
from fedrec.config.layout import METRICS_SLICE, Layout
from fedrec.config.rows import ActiveRows
from fedrec.config.schema import Plan
from fedrec.model.state import SharedState
from fedrec.training.bounds import SumTerms, check_sum, pairs_of
from fedrec.wire.messages import RoundKind

__all__ = ["Sums", "Travelling"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """What a vector says, addressed by items of the catalogue.

    Attributes:
        changes: the tensors by name, in grid steps; those per item have n_items rows.
        counts: int64 (n_items,).
        metrics: the metrics segment.
    """

    changes: dict[str, NDArray[np.int64]]
    counts: NDArray[np.int64]
    metrics: NDArray[np.int64]


class Travelling:
    """The vectors of a run's rounds, over the rows that each of them covers.

    Args:
        plan: what the federation agreed on.
        n_items: items in the catalogue.
    """

    def __init__(self, plan: Plan, n_items: int) -> None:
        self._plan = plan
        self._n_items = n_items
        self._counting = Layout.counting(plan, n_items)
        self._known: tuple[NDArray[np.int64] | None, ActiveRows] | None = None
        self._layout: Layout | None = None

    def rows(self, kind: RoundKind, shared: SharedState) -> ActiveRows:
        """Return the rows that a round's vector covers, starting from a version."""
        if kind == "count":
            return ActiveRows.whole(self._n_items)
        if self._known is None or self._known[0] is not shared.holders:
            found = ActiveRows.of(self._plan, self._n_items, shared.holders)
            self._known = (shared.holders, found)
        return self._known[1]

    def layout(self, kind: RoundKind, shared: SharedState) -> Layout:
        """Return how a round's vector lies.

        Raises:
            SettingsError: the algorithm cannot work with so many rows.
        """
        if kind == "count":
            return self._counting
        n_rows = self.rows(kind, shared).n_rows
        if self._layout is None or self._layout.n_rows != n_rows:
            self._layout = Layout.of(self._plan, n_rows, self._n_items)
        return self._layout

    def check(self, shared: SharedState) -> None:
        """Refuse a version from which nothing can be trained.

        Raises:
            SettingsError: no item has enough holders, or more have than the algorithm can take.
        """
        self.rows("train", shared).check(self._plan)
        self.layout("train", shared)

    def check_sum(
        self,
        kind: RoundKind,
        shared: SharedState,
        vector: NDArray[np.int64],
        *,
        most_users: int,
        n_clients: int,
    ) -> None:
        """Refuse the sum of a round that no honest clients add up to; see `bounds.SumTerms`.

        Raises:
            SumOutOfBounds: naming what leaves its bounds.
        """
        layout = self.layout(kind, shared)
        pairs = (tensor.name for tensor in layout.tensors if tensor.counted_by == HOLDER_PAIRS)
        check_sum(
            SumTerms(
                kind=kind,
                layout=layout,
                rows=self.rows(kind, shared),
                most_users=most_users,
                n_clients=n_clients,
                holders=shared.last_counted,
                least=self._plan.federation.minimum_item_users,
                begun={name: len(shared.kept[name]) for name in pairs},
            ),
            layout.changes_of(vector),
            vector[layout.count_slice],
            vector[layout.metrics_slice],
        )

    def pack(
        self,
        kind: RoundKind,
        shared: SharedState,
        changes: Mapping[str, NDArray[np.int64]],
        counts: NDArray[np.int64],
        metrics: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the vector of a party's sums.

        Args:
            changes: the tensors by name, in grid steps; those per item have n_active rows.
            counts: users of each active item, int64 (n_active,).
            metrics: the metrics segment.
        """
        rows, layout = self.rows(kind, shared), self.layout(kind, shared)
        per_item = {tensor.name for tensor in layout.tensors if tensor.per_item}
        travelling = {
            name: rows.padded(values) if name in per_item else values
            for name, values in changes.items()
        }
        return layout.pack(travelling, rows.padded(counts), metrics)

    def counts(
        self, kind: RoundKind, shared: SharedState, vector: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the counts of a sum for the active items, int64 (n_active,)."""
        rows, layout = self.rows(kind, shared), self.layout(kind, shared)
        return vector[layout.count_slice][: len(rows.index)]

    def with_rows(
        self,
        kind: RoundKind,
        shared: SharedState,
        vector: NDArray[np.int64],
        kept: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """Return a sum in which other items' rows are zero, and what divides them.

        Args:
            kept: which items of the catalogue keep their rows, bool (n_items,).
        """
        rows, layout, found = self.rows(kind, shared), self.layout(kind, shared), vector.copy()
        lost = np.ones(rows.n_rows, dtype=np.bool_)
        lost[: len(rows.index)] = ~kept[rows.index]
        found[layout.count_slice][lost] = 0
        changes = layout.changes_of(found)
        for tensor in layout.tensors:
            values = changes[tensor.name]
            if tensor.per_item:
                values[lost] = 0
            elif tensor.counted_by == HOLDER_PAIRS:
                for part, lower, upper in pairs_of(len(shared.kept[tensor.name]), len(values)):
                    # Pairs behind the last item's are zero.
                    known = upper < len(lost)
                    values[part][lost[lower * known] | lost[upper * known]] = 0
        return found

    def change(
        self, kind: RoundKind, shared: SharedState, vector: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float64]]:
        """Return the summed tensors by name, as real numbers; those per item for the active ones.

        What stands in rows behind them belongs to no item.
        """
        rows, layout = self.rows(kind, shared), self.layout(kind, shared)
        sent, found = layout.changes_of(vector), {}
        for tensor in layout.tensors:
            values = sent[tensor.name]
            found[tensor.name] = (values[: len(rows.index)] if tensor.per_item else values).astype(
                np.float64
            ) * tensor.step
        return found

    def unpack(self, kind: RoundKind, shared: SharedState, vector: NDArray[np.int64]) -> Sums:
        """Return what a vector, or a sum of such vectors, says of the catalogue."""
        rows, layout = self.rows(kind, shared), self.layout(kind, shared)
        per_item = {tensor.name for tensor in layout.tensors if tensor.per_item}
        changes = {
            name: rows.scatter(values) if name in per_item else values
            for name, values in layout.changes_of(vector).items()
        }
        counts = rows.scatter(vector[layout.count_slice])
        return Sums(changes=changes, counts=counts, metrics=vector[METRICS_SLICE])
