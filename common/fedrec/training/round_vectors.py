"""The shapes of rounds' vectors, which a coordinator knows without their contents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from fedrec.plan.layout import Layout
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ActiveRows
from fedrec.protection import VectorSpec
from fedrec.wire.messages import RoundKind

COUNTS = "counts"
"""The segment of a count round's vector with the number of holders of each item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundVectors:
    """The vectors of a run.

    Attributes:
        n_items: the number of items in the catalogue.
        largest: the largest vector of any round. Keys are made for it.
        counting: the vector of the count round.
        trained: returns the vector of all other rounds from the number of travelling rows. Raises
            SettingsError if training isn't possible with that number.
        least: the minimum number of holders of an item whose row travels, or 0 if all rows travel.
        layouts: returns a vector's layout from the kind of its round and the travelling rows. None
            if the layout is secret.
    """

    n_items: int
    largest: VectorSpec
    counting: VectorSpec
    trained: Callable[[int], VectorSpec]
    least: int = 0
    layouts: Callable[[RoundKind, int], Layout] | None = None

    @classmethod
    def of(cls, plan: Plan, n_items: int) -> RoundVectors:
        """Return the vectors of a federation with this plan."""
        exact = plan.privacy.mechanism == "none"
        layouts = lru_cache(maxsize=4)(partial(Layout.of_round, plan, n_items=n_items))
        return cls(
            n_items=n_items,
            largest=Layout.largest(plan, n_items).vector_spec,
            counting=Layout.counting(plan, n_items).vector_spec,
            trained=lru_cache(maxsize=4)(lambda n_rows: layouts("train", n_rows).vector_spec),
            least=plan.federation.minimum_item_users if exact else 0,
            layouts=layouts,
        )

    @classmethod
    def fixed(cls, spec: VectorSpec, n_items: int) -> RoundVectors:
        """Return vectors that are the same in every round."""
        return cls(n_items=n_items, largest=spec, counting=spec, trained=lambda n_rows: spec)

    def of_round(self, kind: RoundKind, n_rows: int) -> VectorSpec:
        """Return the vector of a round (see `trained`)."""
        return self.counting if kind == "count" else self.trained(n_rows)

    def rows_of(self, counts: NDArray[np.int64]) -> ActiveRows:
        """Return the rows that travel after a count round whose sum is readable.

        Args:
            counts: the number of holders of each item, (n_items,).
        """
        if not self.least:
            return ActiveRows.whole(self.n_items)
        return ActiveRows.counted(counts, self.least)
