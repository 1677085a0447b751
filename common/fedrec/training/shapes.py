"""Whether a shared state that came from elsewhere has the shapes that its plan gives it."""

from __future__ import annotations

import math

from fedrec.algorithms import ALGORITHMS
from fedrec.config.schema import Plan
from fedrec.training.rows import ActiveRows
from fedrec.training.state import SharedState

__all__ = ["shape_problem"]


def shape_problem(plan: Plan, n_items: int, shared: SharedState) -> str:
    """Return what is wrong with a state of a catalogue of so many items, or nothing.

    Pairs of items grow with the rounds: any number up to all pairs of active items is right.
    """
    if shared.holders is not None and shared.holders.shape != (n_items,):
        return f"has item counts of the shape {shared.holders.shape}, expected ({n_items},)"
    declared = {
        entry.name: entry.shape
        for entry in ALGORITHMS[plan.algorithm.name].parameters
        if entry.scope == "shared"
    }
    if set(shared.tensors) != set(declared):
        return f"has the tensors {sorted(shared.tensors)}, expected {sorted(declared)}"
    n_active = len(ActiveRows.of(plan, n_items, shared.holders).index)
    sizes = {
        **plan.algorithm.model_dump(),
        "n_items": n_items,
        "n_pairs": n_active * (n_active - 1) // 2,
    }
    for name, axes in declared.items():
        expected = tuple(
            math.prod(int(sizes.get(factor, factor)) for factor in axis.split()) for axis in axes
        )
        found = shared.tensors[name].shape
        grows = axes == ("n_pairs",) and len(found) == 1 and found <= expected
        if found != expected and not grows:
            return f"has {name} of the shape {found}, expected {expected} of {n_items} items"
    return ""
