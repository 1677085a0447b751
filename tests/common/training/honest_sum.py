"""A sum of a round within all its bounds, to be changed by a test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrec.errors import SumOutOfBounds
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.plan.layout import Layout
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ActiveRows
from fedrec.training.bounds import SumTerms, check_sum

N_ITEMS = 5
ACTIVE = np.array([0, 1, 3])
"""Of five items; two rows of zeros stand behind theirs."""
COUNTS = [3, 1, 2, 0, 0]
N_TRAINED, MOST_USERS, N_CLIENTS = 3, 8, 4
BITS = 4
STEPS = 1 << BITS
"""What a user adds to a value at most, in grid steps."""


def check(terms: SumTerms, vector: NDArray[np.int64]) -> None:
    """Check a sum that lies in one vector."""
    layout = terms.layout
    parts = layout.changes_of(vector), vector[layout.count_slice], vector[layout.metrics_slice]
    check_sum(terms, *parts)


def plan_of(**sections: Any) -> Plan:
    base: dict[str, dict[str, Any]] = {
        "federation": {"maximum_users": 64, "minimum_item_users": 1},
        "algorithm": {} if "algorithm" in sections else {"name": "fedmf", "dim": 2},
        "update": {"structure": "dense", "fraction_bits": BITS},
        "evaluation": {"at": 5},
    }
    return Plan.model_validate(
        {name: base.get(name, {}) | sections.get(name, {}) for name in base | sections}
    )


class Sum:
    """A training round's sum that is within its bounds, and at each of them where that is asked."""

    def __init__(self, layout: Layout, **terms: Any) -> None:
        self.layout = layout
        self.vector = np.zeros(layout.length, dtype=np.int64)
        rows = ActiveRows(n_items=N_ITEMS, index=ACTIVE, n_rows=layout.n_rows)
        holders = np.zeros(N_ITEMS, dtype=np.int64)
        holders[ACTIVE] = COUNTS[: len(ACTIVE)]
        self.terms = SumTerms(
            **{
                "kind": "train",
                "layout": layout,
                "rows": rows,
                "most_users": MOST_USERS,
                "n_clients": N_CLIENTS,
                "holders": None if layout.counts_rows else holders,
                **terms,
            }
        )
        if layout.counts_rows and layout.mechanism is None:
            self.counts[:] = COUNTS
        if layout.mechanism is None:
            self.metric("participants", N_TRAINED)

    @classmethod
    def of(cls, plan: Plan, **terms: Any) -> Sum:
        return cls(Layout.of(plan, N_ITEMS, N_ITEMS), **terms)

    @property
    def counts(self) -> NDArray[np.int64]:
        return self.vector[self.layout.count_slice]

    def part(self, name: str) -> NDArray[np.int64]:
        """Return a tensor of the vector, to be written into."""
        parts = zip(self.layout.tensors, self.layout._parts(), strict=True)
        found = next(part for tensor, (_, part) in parts if tensor.name == name)
        shape = next(tensor.shape for tensor in self.layout.tensors if tensor.name == name)
        return self.vector[found].reshape(shape)

    def metric(self, name: str, value: int) -> None:
        self.vector[self.layout.metrics_slice][METRIC_NAMES.index(name)] = value

    def check(self) -> None:
        check(self.terms, self.vector)

    def refused(self, *words: str) -> None:
        with pytest.raises(SumOutOfBounds) as caught:
            self.check()
        assert caught.value.code == "sum_out_of_bounds"
        for word in words:
            assert word in caught.value.message, caught.value.message
