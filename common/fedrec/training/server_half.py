"""Apply a plan to the shared model: its versions, and the vectors that travel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.declarations import HOLDER_PAIRS
from fedrec.evaluation.metrics import MetricSums
from fedrec.model.state import SharedState
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.layout import METRICS_SLICE, Layout
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ActiveRows
from fedrec.training.bounds import SumTerms, check_sum, pairs_of
from fedrec.wire.messages import RoundKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """The contents of a vector, by items of the catalogue.

    Attributes:
        changes: the tensors by name, in grid steps. Those per item have n_items rows.
        counts: int64 (n_items,).
        metrics: the metrics segment.
    """

    changes: dict[str, NDArray[np.int64]]
    counts: NDArray[np.int64]
    metrics: NDArray[np.int64]


class Travelling:
    """The vectors of a run's rounds, over the rows that each round covers.

    Args:
        plan: the plan of the federation.
        n_items: the number of items in the catalogue.
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
        """Return the layout of a round's vector.

        Raises:
            SettingsError: the algorithm can't work with this number of rows.
        """
        if kind == "count":
            return self._counting
        n_rows = self.rows(kind, shared).n_rows
        if self._layout is None or self._layout.n_rows != n_rows:
            self._layout = Layout.of(self._plan, n_rows, self._n_items)
        return self._layout

    def check(self, shared: SharedState) -> None:
        """Refuse a version from which training isn't possible.

        Raises:
            SettingsError: no item has enough holders, or too many have for the algorithm.
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
        """Refuse a round's sum that honest clients can't add up to (see `bounds.SumTerms`).

        Raises:
            SumOutOfBounds: a part is out of bounds. The error names it.
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
        """Return a party's sums as a vector.

        Args:
            changes: the tensors by name, in grid steps. Those per item have n_active rows.
            counts: the number of users of each active item, int64 (n_active,).
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
        """Return the counts in a sum for the active items, int64 (n_active,)."""
        rows, layout = self.rows(kind, shared), self.layout(kind, shared)
        return vector[layout.count_slice][: len(rows.index)]

    def with_rows(
        self,
        kind: RoundKind,
        shared: SharedState,
        vector: NDArray[np.int64],
        kept: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """Return a sum with zeros in the rows of other items, and in their divisors.

        Args:
            kept: the items of the catalogue that keep their rows, bool (n_items,).
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
                    # Pairs after those of the last item are zero.
                    known = upper < len(lost)
                    values[part][lost[lower * known] | lost[upper * known]] = 0
        return found

    def change(
        self, kind: RoundKind, shared: SharedState, vector: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float64]]:
        """Return the summed tensors by name, as real numbers.

        Those per item cover the active items.

        Values in rows after them belong to no item.
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
        """Return the contents of a vector, or of a sum of vectors, by items of the catalogue."""
        rows, layout = self.rows(kind, shared), self.layout(kind, shared)
        per_item = {tensor.name for tensor in layout.tensors if tensor.per_item}
        changes = {
            name: rows.scatter(values) if name in per_item else values
            for name, values in layout.changes_of(vector).items()
        }
        counts = rows.scatter(vector[layout.count_slice])
        return Sums(changes=changes, counts=counts, metrics=vector[METRICS_SLICE])


def shape_problem(plan: Plan, n_items: int, shared: SharedState) -> str:
    """Return the fault of a state for a catalogue of this size, or an empty string.

    Pairs of items grow with the rounds, so any number up to all pairs of active items is valid.
    """
    if shared.holders is not None and shared.holders.shape != (n_items,):
        return f"has item counts of the shape {shared.holders.shape}, but ({n_items},) was expected"
    algorithm = algorithm_of(plan, n_items)
    if shared.recounted is not None and algorithm.derived.counts_rows:
        return "has two item counts, but one was expected"
    rows = ActiveRows.of(plan, n_items, shared.holders)
    if shared.rest is not None and (
        rows.is_whole or not np.array_equal(shared.rest.index, rows.index)
    ):
        return "has separate rows for other items than those with enough holders"
    tables = set() if shared.rest is None else set(shared.rest.tables or ())
    if shared.rest is not None and tables != set(algorithm.derived.row_tables):
        return (
            f"has separate rows of {sorted(tables)}, not of {sorted(algorithm.derived.row_tables)}"
        )
    declared = {
        entry.name: entry.whole_shape(n_items=n_items, n_users=0)
        for entry in algorithm.parameters
        if not entry.private and not entry.published
    }
    if set(shared.tensors) != set(declared):
        return f"has the tensors {sorted(shared.tensors)}, but {sorted(declared)} were expected"
    most = {one.name: one.grown_shape for one in algorithm_of(plan, len(rows.index)).parameters}
    for name, expected in declared.items():
        found = shared.tensors[name].shape
        grows = bool(most[name]) and len(found) == 1 and found <= most[name]
        if found != expected and not grows:
            return f"has {name} of the shape {found}, not {expected} for {n_items} items"
    return ""


class ServerHalf:
    """Compute a plan's shared model for a catalogue of `n_items` items.

    Args:
        plan: the plan of the federation.
        n_items: items in the catalogue.
        initial: returns the initial model, if one process draws it for many parties.

    Attributes:
        layout: the layout of a round of all items. `travelling` gives the rows of a round's vector.
    """

    def __init__(
        self, plan: Plan, n_items: int, *, initial: Callable[[], SharedState] | None = None
    ) -> None:
        self.plan = plan
        self.n_items = n_items
        self.layout = Layout.uncounted(plan, n_items)
        self.travelling = Travelling(plan, n_items)
        self.algorithm = algorithm_of(plan, n_items)
        self._initial = initial or cache(self.algorithm.derived.initial_shared)

    def initial_shared(self) -> SharedState:
        """Return the model that every party starts from, drawn once."""
        return self._initial()

    def active_items(self, shared: SharedState) -> NDArray[np.int64]:
        """Return the rows of items with enough holders, or all rows before the count round."""
        return self.travelling.rows("train", shared).index

    def apply(
        self, kind: RoundKind, number: int, shared: SharedState, aggregate: NDArray[np.int64]
    ) -> SharedState:
        """Return the model after a published round. Pure numpy: the same bits everywhere."""
        mechanism = self.layout.mechanism
        counts = self.travelling.counts(kind, shared, aggregate)
        if mechanism is not None:
            # Holders aren't counted: noise covers rare items, so all of them take part.
            counts = np.full(self.n_items, max(1, self.plan.federation.minimum_item_users))
        if kind == "count":
            return self.apart(shared.counted(counts.copy()))
        if kind == "evaluate":
            return shared
        if not self.algorithm.derived.counts_rows:
            counts = self._counted(shared, aggregate)
        change = self.travelling.change(kind, shared, aggregate)
        if mechanism is not None:
            # One fixed number divides everything, because the number of participants is secret.
            change = {name: values / mechanism.divisor for name, values in change.items()}
            for tensor in self.layout.tensors:
                if not tensor.signed:
                    change[tensor.name] = np.ones(tensor.shape)
            counts = np.ones(self.n_items, dtype=np.int64)
        return self.moved(number, shared, change, counts)

    def _counted(self, shared: SharedState, aggregate: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the last user counts of the active items, with 0 for items with too few users now.

        All counts are 0 if every client of the round abstained.
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
        """Return the shared model after a training round."""
        shared = self.apart(shared)
        moved = self.algorithm.apply(shared.part(), change, counts, number)
        return replace(shared.with_part(moved), trained=shared.trained + 1)

    def apart(self, shared: SharedState) -> SharedState:
        """Return the same version with the rows of active items stored separately."""
        return self.travelling.rows("train", shared).apart(
            shared, self.algorithm.derived.row_tables
        )

    def metrics(self, aggregate: NDArray[np.int64]) -> MetricSums:
        """Return the metric sums of an aggregate."""
        return MetricSums(aggregate[METRICS_SLICE].copy())
