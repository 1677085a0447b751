"""The flat integer vector of an update: tensors, denominators and metrics, end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.config.schema import Plan
from fedrec.evaluation.metrics import MAXIMUM_PER_USER, METRIC_NAMES
from fedrec.protection import PROTECTIONS, Protection, SegmentSpec, VectorSpec
from fedrec.updates import UPDATES

__all__ = ["Layout", "protection_of", "vector_spec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each part of an update stands in the vector, and how large it can get.

    Attributes:
        n_items: rows of the item table.
        width: values per item row.
        clip: every user's values lie in [-clip, clip].
        fraction_bits: values are multiples of clip x 2^-fraction_bits.
        maximum_users: most users in one sum.
        maximum_clients: most messages in one sum.
    """

    n_items: int
    width: int
    clip: float
    fraction_bits: int
    maximum_users: int
    maximum_clients: int

    @classmethod
    def of(cls, plan: Plan, n_items: int) -> Layout:
        """Return the layout that follows from a plan and the size of the catalogue."""
        structure = UPDATES[plan.update.structure](plan.update, plan.algorithm.dim)
        # Key holders recompute encrypted sums; a plain sum may have one client for each user.
        plain = plan.protection.name == "none"
        most = plan.federation.maximum_users if plain else plan.rounds.recompute_limit
        return cls(
            n_items=n_items,
            width=structure.width,
            clip=plan.update.clip,
            fraction_bits=plan.update.fraction_bits,
            maximum_users=plan.federation.maximum_users,
            maximum_clients=most,
        )

    @property
    def step(self) -> float:
        """Size of one grid step."""
        return self.clip * 2.0**-self.fraction_bits

    @property
    def change_slice(self) -> slice:
        """The change of the item table, n_items x width, row by row."""
        return slice(0, self.n_items * self.width)

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
        return self.n_items * (self.width + 1) + len(METRIC_NAMES)

    @property
    def vector_spec(self) -> VectorSpec:
        """Return lengths and proven bounds for the protection's planner."""
        users = self.maximum_users
        return VectorSpec(
            segments=(
                SegmentSpec(
                    name="change",
                    length=self.n_items * self.width,
                    max_abs_sum=users << self.fraction_bits,
                ),
                SegmentSpec(name="counts", length=self.n_items, max_abs_sum=users, signed=False),
                SegmentSpec(
                    name="metrics",
                    length=len(METRIC_NAMES),
                    max_abs_sum=users * MAXIMUM_PER_USER,
                    signed=False,
                ),
            ),
            max_summands=self.maximum_clients,
        )

    def pack(
        self,
        change: NDArray[np.int64],
        counts: NDArray[np.int64],
        metrics: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the vector of `length` values from its three parts."""
        vector = np.empty(self.length, dtype=np.int64)
        vector[self.change_slice] = change.reshape(-1)
        vector[self.count_slice] = counts
        vector[self.metrics_slice] = metrics
        return vector

    def change_of(self, vector: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the change, n_items x width, in grid steps."""
        return vector[self.change_slice].reshape(self.n_items, self.width)


def vector_spec(plan: Plan, n_items: int) -> VectorSpec:
    """Return what a federation of this plan sums, for the coordinator, which trains nothing."""
    return Layout.of(plan, n_items).vector_spec


def protection_of(plan: Plan, n_items: int) -> Protection:
    """Return the protection that a plan asks for, with parameters chosen for its vectors.

    Raises:
        SettingsError: when no parameters of the protection can carry these vectors.
    """
    kind, spec = PROTECTIONS[plan.protection.name], vector_spec(plan, n_items)
    return kind(spec, kind.plan(spec, preset=plan.protection.preset))
