"""The flat integer vector of an update: tensors, denominators and metrics, end to end.

A count round's vector has a count for each item of the catalogue. Every other vector covers the
travelling rows (`fedrec.plan.travelling_rows`): those of the trained items, or all without a count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms import Parameter, UpdateTensor
from fedrec.errors import InternalError, SettingsError
from fedrec.evaluation.metrics import MAXIMUM_PER_USER, METRIC_NAMES
from fedrec.plan.algorithm import about_algorithm, algorithm_of
from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.protections import about_protection
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ROW_STEP, padded_rows
from fedrec.privacy import Mechanism
from fedrec.protection import PROTECTIONS, Protection, SegmentSpec, VectorSpec

METRICS_SLICE = slice(-len(METRIC_NAMES), None)
"""The place of the metric sums in every vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The position of each part of an update in the vector, and its bounds.

    Attributes:
        n_rows: item rows that the vector covers, each with a count.
        tensors: the algorithm's tensors, in their order in the vector. None in a count round.
        maximum_users: largest number of users in one sum.
        maximum_clients: largest number of messages in one sum.
        tagged: whether messages carry linear tags. They let the authority open sums that it does
            not recompute, and prove that members' messages are their own.
        private: names of the parameters that never leave a client.
        mechanism: the noise on the change, or None for exact sums.
        counts_rows: whether users count the rows that they touch. Otherwise the counts are zero.
    """

    n_rows: int
    tensors: tuple[UpdateTensor, ...]
    maximum_users: int
    maximum_clients: int
    tagged: bool = False
    private: frozenset[str] = frozenset()
    mechanism: Mechanism | None = None
    counts_rows: bool = True

    @classmethod
    def of(cls, plan: Plan, n_rows: int, n_items: int | None = None) -> Layout:
        """Return the layout of rounds that train or measure, over `n_rows` rows.

        Args:
            n_items: items in the catalogue, which set how many values have an index in the clear.
                By default every item has a row.

        Raises:
            SettingsError: the algorithm does not support this number of rows.
        """
        most, tagged = _most_messages(plan)
        algorithm = algorithm_of(plan, n_rows)
        private = frozenset(
            entry.name for entry in algorithm.parameters if entry.private and not entry.shown
        )
        tensors = algorithm.tensors
        if n_items is not None and any(tensor.entries for tensor in tensors):
            kept = {tensor.name: tensor.entries for tensor in algorithm_of(plan, n_items).tensors}
            tensors = tuple(replace(tensor, entries=kept[tensor.name]) for tensor in tensors)
        sent = sorted(private & {tensor.name for tensor in tensors})
        if sent:
            raise InternalError(
                f"{algorithm.name} declares {', '.join(sent)} both as private and as part of "
                "updates.",
                remedy="This is a defect of the algorithm. Please report it.",
            )
        return cls(
            n_rows=n_rows,
            tensors=tensors,
            private=private,
            maximum_users=plan.federation.maximum_users,
            maximum_clients=most,
            tagged=tagged,
            mechanism=mechanism_of(plan),
            counts_rows=algorithm.derived.counts_rows,
        )

    @classmethod
    def of_round(cls, plan: Plan, kind: str, n_rows: int, n_items: int) -> Layout:
        """Return the layout of a round over `n_rows` rows of a catalogue.

        Raises:
            SettingsError: the algorithm cannot train this number of rows. A count round takes any.
        """
        if kind == "count":
            return cls.counting(plan, n_items)
        return cls.of(plan, n_rows, n_items)

    @classmethod
    def uncounted(cls, plan: Plan, n_items: int) -> Layout:
        """Return the layout over all items, or over the maximum that the algorithm supports."""
        try:
            return cls.of(plan, n_items, n_items)
        except SettingsError:
            return cls.largest(plan, n_items)

    @classmethod
    def counting(cls, plan: Plan, n_items: int) -> Layout:
        """Return the layout of the count round: a count for each item of the catalogue."""
        most, tagged = _most_messages(plan)
        return cls(
            n_rows=n_items,
            tensors=(),
            maximum_users=plan.federation.maximum_users,
            maximum_clients=most,
            tagged=tagged,
            mechanism=mechanism_of(plan),
        )

    @classmethod
    def largest(cls, plan: Plan, n_items: int) -> Layout:
        """Return a layout at least as large as that of every round. Protections are planned for it.

        The number of trained items is unknown before the count. An algorithm that cannot work with
        all of the catalogue is planned for as many rows as it can.

        Raises:
            SettingsError: the algorithm supports no number of rows.
        """
        if plan.privacy.mechanism != "none":
            return cls.of(plan, n_items)
        n_counts = padded_rows(n_items)
        try:
            return cls.of(plan, n_counts, n_items)
        except SettingsError:
            works, fails = 0, n_counts // ROW_STEP
        while fails - works > 1:
            middle = (works + fails) // 2
            try:
                cls.of(plan, middle * ROW_STEP, n_items)
                works = middle
            except SettingsError:
                fails = middle
        return replace(cls.of(plan, max(1, works) * ROW_STEP, n_items), n_rows=n_counts)

    @property
    def change_slice(self) -> slice:
        """All tensors, one after the other, each row by row."""
        return slice(0, sum(tensor.size for tensor in self.tensors))

    @property
    def count_slice(self) -> slice:
        """One denominator per row: the number of users that touched it."""
        return slice(self.change_slice.stop, self.change_slice.stop + self.n_rows)

    @property
    def metrics_slice(self) -> slice:
        """The metric sums, in the order of `METRIC_NAMES`."""
        return slice(self.count_slice.stop, self.length)

    @property
    def length(self) -> int:
        """The number of values in the vector."""
        return int(self.count_slice.stop) + len(METRIC_NAMES)

    @property
    def vector_spec(self) -> VectorSpec:
        """Return lengths and proven bounds for the protection's planner."""
        users = self.maximum_users
        changes = (
            SegmentSpec(
                name=tensor.name,
                length=tensor.size,
                max_abs_sum=self._most(tensor),
                signed=tensor.signed,
                # Every message carries enough Laplace noise, however its values travel.
                whole=self._is_shared_noise and tensor.signed,
                entries=min(tensor.entries, tensor.size),
            )
            for tensor in self.tensors
        )
        return VectorSpec(
            segments=(
                *changes,
                SegmentSpec(name="counts", length=self.n_rows, max_abs_sum=users, signed=False),
                SegmentSpec(
                    name="metrics",
                    length=len(METRIC_NAMES),
                    max_abs_sum=users * MAXIMUM_PER_USER,
                    signed=False,
                ),
            ),
            max_summands=self.maximum_clients,
            tagged=self.tagged,
        )

    @property
    def _is_shared_noise(self) -> bool:
        return self.mechanism is not None and self.mechanism.kind == "gaussian"

    def _most(self, tensor: UpdateTensor) -> int:
        """Return a bound on any value of a tensor's sum, with all users' and clients' noise."""
        users = self.maximum_users * tensor.bound
        if self.mechanism is None or not tensor.signed:
            return users
        clipped = self.maximum_users * self.mechanism.bound
        return min(users, clipped) + self.maximum_clients * self.mechanism.largest

    @property
    def noisy(self) -> NDArray[np.bool_]:
        """The values that carry noise, bool (change values,): all that users may send."""
        parts = [np.full(tensor.size, tensor.signed) for tensor in self.tensors]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.bool_)

    def add_noise(self, vector: NDArray[np.int64], n_shares: int = 1) -> NDArray[np.int64]:
        """Return the vector of a training round with clients' noise on every value of the change.

        Untouched rows get noise, too: a slot without noise would mean that no client contributed to
        it.

        Args:
            n_shares: the number of clients' shares, above 1 if one process simulates several
                clients.
        """
        if self.mechanism is None:
            return vector
        noisy, out = self.noisy, vector.copy()
        for _ in range(n_shares):
            out[self.change_slice][noisy] += self.mechanism.noise(int(noisy.sum()))
        return out

    def pack(
        self,
        changes: Mapping[str, NDArray[np.int64]],
        counts: NDArray[np.int64],
        metrics: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the vector of `length` values from its parts.

        Args:
            changes: the tensors by name, in grid steps. Missing ones are zero.

        Raises:
            InternalError: `changes` has any other name, such as a private parameter.
        """
        foreign = set(changes) - {tensor.name for tensor in self.tensors}
        if foreign:
            private = sorted(foreign & self.private)
            raise InternalError(
                f"The algorithm tried to send {'private parameters' if private else 'tensors'} "
                f"that no update has: {', '.join(private or sorted(foreign))}.",
                remedy="Nothing was sent. This is a defect of the algorithm. Please report it.",
            )
        vector = np.zeros(self.length, dtype=np.int64)
        for tensor, part in self._parts():
            if tensor.name in changes:
                vector[part] = changes[tensor.name].reshape(-1)
        vector[self.count_slice] = counts
        vector[self.metrics_slice] = metrics
        return vector

    def changes_of(self, vector: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return the tensors by name, in grid steps."""
        return {tensor.name: vector[part].reshape(tensor.shape) for tensor, part in self._parts()}

    def padding(self, n_active: int) -> list[slice]:
        """Return the positions of the rows after the active ones. Every sum is zero there."""
        found = [
            slice(part.start + n_active * (tensor.size // self.n_rows), part.stop)
            for tensor, part in self._parts()
            if tensor.per_item
        ]
        return [*found, slice(self.count_slice.start + n_active, self.count_slice.stop)]

    def _parts(self) -> list[tuple[UpdateTensor, slice]]:
        ends = np.cumsum([tensor.size for tensor in self.tensors]).tolist()
        return [
            (tensor, slice(end - tensor.size, end))
            for tensor, end in zip(self.tensors, ends, strict=True)
        ]


def _most_messages(plan: Plan) -> tuple[int, bool]:
    """Return the largest number of messages in a sum, and whether opening that many takes tags."""
    rounds, protection = plan.rounds, PROTECTIONS[plan.protection.name]
    if not protection.needs_reveal:
        # A sum may have one client for each user.
        most = about_protection(plan.protection.name).most_clients
        users = plan.federation.maximum_users
        return users if most is None else min(users, most), False
    asked = max(rounds.clients_per_round, plan.most_in_cells)
    most = max(rounds.recompute_limit, asked, rounds.minimum_clients)
    if not plan.authority_opens:
        return most, False
    return (most, True) if protection.can_tag else (rounds.recompute_limit, False)


def vector_spec(plan: Plan, n_items: int) -> VectorSpec:
    """Return the largest vector that a federation with this plan may sum."""
    return Layout.largest(plan, n_items).vector_spec


def dense_values(plan: Plan, n_rows: int) -> int:
    """Return the number of values in an update without compression, without denominators.

    If the algorithm supports fewer rows, this is its largest update.
    """
    dense = plan.model_copy(
        update={"update": plan.update.model_copy(update={"structure": "dense"})}
    )
    return int(Layout.uncounted(dense, n_rows).change_slice.stop)


def shared_values(plan: Plan, n_items: int, n_rows: int | None = None) -> int:
    """Return the number of values in a version of the shared model, without item counts.

    Args:
        n_rows: trained item rows, or None for all of them.
    """
    most = n_items if n_rows is None else min(n_rows, n_items)
    return sum(
        math.prod(entry.grown_shape or entry.whole_shape(n_items=n_items, n_users=0))
        for entry in algorithm_of(plan, most).parameters
        if not entry.private and not entry.published
    )


def own_model_bytes(plan: Plan, n_rows: int) -> int:
    """Return the size of a user's own model if a server makes one for each user, else 0."""
    # Received values are float32.
    return 4 * sum(size for entry, size in _user_sizes(plan, n_rows) if entry.received)


def computed_bytes(plan: Plan, n_rows: int) -> int:
    """Return the maximum published besides sums if the server makes users' models, else 0."""
    # Computed values are float64, with names and shapes.
    return sum(8 * size + 256 for entry, size in _user_sizes(plan, n_rows) if entry.computed)


def _user_sizes(plan: Plan, n_rows: int) -> Iterator[tuple[Parameter, int]]:
    """Yield each parameter with the number of values that one user has of it."""
    for entry in algorithm_of(plan, n_rows).parameters:
        yield entry, math.prod(entry.whole_shape(n_items=n_rows, n_users=1))


def training_modules(plan: Plan) -> tuple[str, ...]:
    """Return the optional packages that training with a plan imports, clients and server in one."""
    return ("torch", *about_algorithm(plan).modules)


def protection_modules(plan: Plan) -> tuple[str, ...]:
    """Return the optional packages that key holders import, as in `training_modules`."""
    return about_protection(plan.protection.name).modules(plan.protection.preset)


def protection_of(plan: Plan, n_items: int) -> Protection:
    """Return the protection that a plan names, with parameters for its largest vector.

    `Protection.over` adapts it to the vector of a round.

    Raises:
        SettingsError: the protection has no parameters for these vectors.
    """
    kind, spec = PROTECTIONS[plan.protection.name], vector_spec(plan, n_items)
    return kind(spec, kind.plan(spec, preset=plan.protection.preset))
