"""Whether a shared state that came from elsewhere has the shapes that its plan gives it."""

from __future__ import annotations

import numpy as np

from fedrec.config.algorithm import algorithm_of
from fedrec.config.rows import ActiveRows
from fedrec.config.schema import Plan
from fedrec.model.state import SharedState

__all__ = ["shape_problem"]


def shape_problem(plan: Plan, n_items: int, shared: SharedState) -> str:
    """Return what is wrong with a state of a catalogue of so many items, or nothing.

    Pairs of items grow with the rounds: any number up to all pairs of active items is right.
    """
    if shared.holders is not None and shared.holders.shape != (n_items,):
        return f"has item counts of the shape {shared.holders.shape}, expected ({n_items},)"
    algorithm = algorithm_of(plan, n_items)
    if shared.recounted is not None and algorithm.counts_rows:
        return "has two item counts, expected one"
    rows = ActiveRows.of(plan, n_items, shared.holders)
    if shared.rest is not None and (
        rows.is_whole or not np.array_equal(shared.rest.index, rows.index)
    ):
        return "has other rows apart than those of the items that enough users hold"
    tables = set() if shared.rest is None else set(shared.rest.tables or ())
    if shared.rest is not None and tables != set(algorithm.row_tables):
        return f"has rows of {sorted(tables)} apart, expected {sorted(algorithm.row_tables)}"
    declared = {
        entry.name: entry.whole_shape(n_items=n_items, n_users=0)
        for entry in algorithm.parameters
        if not entry.private and not entry.published
    }
    if set(shared.tensors) != set(declared):
        return f"has the tensors {sorted(shared.tensors)}, expected {sorted(declared)}"
    most = {entry.name: entry.most for entry in algorithm_of(plan, len(rows.index)).parameters}
    for name, expected in declared.items():
        found = shared.tensors[name].shape
        grows = bool(most[name]) and len(found) == 1 and found <= most[name]
        if found != expected and not grows:
            return f"has {name} of the shape {found}, expected {expected} of {n_items} items"
    return ""
