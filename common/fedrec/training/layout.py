"""The flat integer vector of an update: tensors, denominators and metrics, end to end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms import UpdateTensor
from fedrec.config.algorithm import algorithm_of
from fedrec.config.schema import Plan
from fedrec.errors import InternalError
from fedrec.evaluation.metrics import MAXIMUM_PER_USER, METRIC_NAMES
from fedrec.privacy import Mechanism, mechanism_of
from fedrec.protection import PROTECTIONS, Protection, SegmentSpec, VectorSpec
from fedrec.protection.masks import MAX_CLIENTS

__all__ = ["Layout", "dense_values", "protection_of", "shared_values", "vector_spec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each part of an update stands in the vector, and how large it can get.

    Attributes:
        n_items: items in the catalogue.
        tensors: the algorithm's tensors, in their order in the vector.
        maximum_users: most users in one sum.
        maximum_clients: most messages in one sum.
        tagged: whether messages carry linear tags: key holders open sums of more messages than
            they add up themselves, or the authority opens them, to whom members prove by the tags
            that their messages are their own.
        private: names of the parameters that never leave a client.
        mechanism: the noise on the change; None for exact sums.
    """

    n_items: int
    tensors: tuple[UpdateTensor, ...]
    maximum_users: int
    maximum_clients: int
    tagged: bool = False
    private: frozenset[str] = frozenset()
    mechanism: Mechanism | None = None

    @classmethod
    def of(cls, plan: Plan, n_items: int) -> Layout:
        """Return the layout that follows from a plan and the size of the catalogue."""
        most, tagged = _most_messages(plan)
        algorithm = algorithm_of(plan, n_items)
        private = frozenset(entry.name for entry in algorithm.parameters if entry.private)
        tensors = algorithm.tensors
        sent = sorted(private & {tensor.name for tensor in tensors})
        if sent:
            raise InternalError(
                f"{algorithm.name} declares {', '.join(sent)} as private and as part of updates.",
                remedy="This is a defect of the algorithm; please report it.",
            )
        return cls(
            n_items=n_items,
            tensors=tensors,
            private=private,
            maximum_users=plan.federation.maximum_users,
            maximum_clients=most,
            tagged=tagged,
            mechanism=mechanism_of(plan),
        )

    @property
    def change_slice(self) -> slice:
        """All tensors, one behind the other, each row by row."""
        return slice(0, sum(tensor.size for tensor in self.tensors))

    @property
    def count_slice(self) -> slice:
        """One denominator per item: how many users touched its row."""
        return slice(self.change_slice.stop, self.change_slice.stop + self.n_items)

    @property
    def metrics_slice(self) -> slice:
        """The metric sums, in the order of `METRIC_NAMES`."""
        return slice(self.count_slice.stop, self.length)

    @property
    def length(self) -> int:
        """Values in the vector."""
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
                # Weights and counts divide, so that an error there has no bound in the model.
                real=tensor.signed and tensor.fraction_bits > 0,
            )
            for tensor in self.tensors
        )
        return VectorSpec(
            segments=(
                *changes,
                SegmentSpec(name="counts", length=self.n_items, max_abs_sum=users, signed=False),
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

    def _most(self, tensor: UpdateTensor) -> int:
        """Return what no value of a tensor's sum exceeds: all users, and all clients' noise."""
        users = self.maximum_users * tensor.bound
        if self.mechanism is None or not tensor.signed:
            return users
        clipped = self.maximum_users * self.mechanism.bound
        return min(users, clipped) + self.maximum_clients * self.mechanism.largest

    @property
    def noisy(self) -> NDArray[np.bool_]:
        """Which values carry noise, bool (change values,): all that users may send at all."""
        parts = [np.full(tensor.size, tensor.signed) for tensor in self.tensors]
        return np.concatenate(parts)

    def add_noise(self, vector: NDArray[np.int64], n_shares: int = 1) -> NDArray[np.int64]:
        """Return the vector of a training round with clients' noise on every value of the change.

        Untouched rows get it like any other: where noise is missing nobody was.

        Args:
            n_shares: of how many clients; more than one where one process plays several.
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
            changes: the tensors by name, in grid steps; missing ones are zero.

        Raises:
            InternalError: something else is among them, such as a private parameter.
        """
        foreign = set(changes) - {tensor.name for tensor in self.tensors}
        if foreign:
            private = sorted(foreign & self.private)
            raise InternalError(
                f"{'Private parameters' if private else 'Tensors'} that no update has were handed "
                f"over to be sent: {', '.join(private or sorted(foreign))}.",
                remedy="Nothing was sent. This is a defect of the algorithm; please report it.",
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

    def _parts(self) -> list[tuple[UpdateTensor, slice]]:
        ends = np.cumsum([tensor.size for tensor in self.tensors]).tolist()
        return [
            (tensor, slice(end - tensor.size, end))
            for tensor, end in zip(self.tensors, ends, strict=True)
        ]


def _most_messages(plan: Plan) -> tuple[int, bool]:
    """Return the most messages in one sum, and whether it takes tags to open so many."""
    rounds, protection = plan.rounds, PROTECTIONS[plan.protection.name]
    if protection.is_interactive:
        return min(plan.federation.maximum_users, MAX_CLIENTS), False
    if not protection.needs_reveal:
        # A plain sum may have one client for each user.
        return plan.federation.maximum_users, False
    most = max(rounds.recompute_limit, rounds.clients_per_round, rounds.minimum_clients)
    alone = plan.protection.key_holder == "authority"
    if protection.can_tag and (alone or most > rounds.recompute_limit):
        return most, True
    return rounds.recompute_limit, False


def vector_spec(plan: Plan, n_items: int) -> VectorSpec:
    """Return what a federation of this plan sums, for the coordinator, which trains nothing."""
    return Layout.of(plan, n_items).vector_spec


def dense_values(plan: Plan, n_items: int) -> int:
    """Return how many values an update without compression has, denominators left out."""
    dense = plan.model_copy(
        update={"update": plan.update.model_copy(update={"structure": "dense"})}
    )
    return int(Layout.of(dense, n_items).change_slice.stop)


def shared_values(plan: Plan, n_items: int) -> int:
    """Return how many values a version of the shared model has, item counts left out."""
    return sum(
        math.prod(entry.whole_shape(n_items=n_items, n_users=0))
        for entry in algorithm_of(plan, n_items).parameters
        if not entry.private
    )


def protection_of(plan: Plan, n_items: int) -> Protection:
    """Return the protection that a plan asks for, with parameters chosen for its vectors.

    Raises:
        SettingsError: when no parameters of the protection can carry these vectors.
    """
    kind, spec = PROTECTIONS[plan.protection.name], vector_spec(plan, n_items)
    return kind(spec, kind.plan(spec, preset=plan.protection.preset))
