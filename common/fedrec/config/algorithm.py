"""The algorithm of a plan: its class, and the one that is made for a catalogue."""

from __future__ import annotations

from fedrec.algorithms import ALGORITHMS, Algorithm, Shapes
from fedrec.config.schema import Plan

__all__ = ["algorithm_of", "algorithm_type"]


def algorithm_type(plan: Plan) -> type[Algorithm]:
    """Return the class that a plan names."""
    return ALGORITHMS[plan.algorithm.name]


def algorithm_of(plan: Plan, n_items: int) -> Algorithm:
    """Return a plan's algorithm for a catalogue of so many items.

    Raises:
        SettingsError: when it cannot be made for so many.
    """
    shapes = Shapes(
        n_items=n_items,
        seed=plan.federation.seed,
        update=plan.update,
        n_rounds=plan.rounds.total,
    )
    return algorithm_type(plan)(plan.algorithm, shapes)
