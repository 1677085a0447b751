"""Whether a shared state that came from elsewhere has the shapes that its plan gives it."""

from __future__ import annotations

import numpy as np

from fedrec.config.algorithm import algorithm_of
from fedrec.config.schema import Plan
from fedrec.model.state import SharedState
from fedrec.training.rows import ActiveRows

__all__ = ["shape_problem"]


def shape_problem(plan: Plan, n_items: int, shared: SharedState) -> str:
    """Return what is wrong with a state of a catalogue of so many items, or nothing.

    Pairs of items grow with the rounds: any number up to all pairs of active items is right.
    """
    if shared.holders is not None and shared.holders.shape != (n_items,):
        return f"has item counts of the shape {shared.holders.shape}, expected ({n_items},)"
    declared = {
        entry.name: entry.whole_shape(n_items=n_items, n_users=0)
        for entry in algorithm_of(plan, n_items).parameters
        if not entry.private
    }
    if set(shared.tensors) != set(declared):
        return f"has the tensors {sorted(shared.tensors)}, expected {sorted(declared)}"
    active = ActiveRows.of(plan, n_items, shared.holders).index
    if shared.rest is not None and not np.array_equal(shared.rest.index, active):
        return "has other rows apart than those of the items that enough users hold"
    most = {entry.name: entry.most for entry in algorithm_of(plan, len(active)).parameters}
    for name, expected in declared.items():
        found = shared.tensors[name].shape
        grows = bool(most[name]) and len(found) == 1 and found <= most[name]
        if found != expected and not grows:
            return f"has {name} of the shape {found}, expected {expected} of {n_items} items"
    return ""
