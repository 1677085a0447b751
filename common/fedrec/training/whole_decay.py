"""Decay of whole tables: rows that a user does not touch shrink without being stepped.

Such a row has no gradient but its decay, so that after k steps with the rates r_0, r_1, ... it is
prod_{j<k} (1 - r_j decay) times what it was. That product depends on the number of a user's steps
alone. So of a shared table everybody's change of an untouched row is one of few: they are rounded
once for each number of steps, and multiplied with the users who took so many. Those users' touched
rows are in that product as well, as if they had not been touched; it is taken off again where the
touched rows are added.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.optimisers import Sgd

if TYPE_CHECKING:
    from fedrec.algorithms.algorithm import RoundStart
    from fedrec.algorithms.trained import TrainedAlgorithm

__all__ = ["idle_change", "most_steps", "shrinking"]


def most_steps(algorithm: TrainedAlgorithm) -> int:
    """Return the most steps of a user in a round where tables decay as a whole, else 0.

    Nobody has more than the whole catalogue, and its negatives.
    """
    phases = algorithm.phases(algorithm.initial_scalars)
    if not any(
        isinstance(optimiser, Sgd) and optimiser.whole
        for phase in phases
        for optimiser in phase.optimisers
    ):
        return 0
    n_samples = algorithm.n_items * (1 + algorithm.negatives_per_positive)
    return -(-n_samples // algorithm.batch_size) * sum(phase.epochs for phase in phases)


def shrinking(algorithm: TrainedAlgorithm, start: RoundStart) -> dict[str, torch.Tensor]:
    """Return what an untouched row changes by, as a multiple of itself.

    Returns:
        By table: for each number of steps, prod (1 - r_j decay) - 1, (most_steps + 1,).

    Raises:
        ValueError: the algorithm has several phases, or several such optimisers for a table: then
            the number of steps does not say what a row has become.
    """
    found: dict[str, torch.Tensor] = {}
    phases = algorithm.phases(start.scalars)
    n_steps = most_steps(algorithm)
    rows = {entry.name for entry in algorithm.parameters if entry.scope.endswith("rows")}
    for optimiser in (optimiser for phase in phases for optimiser in phase.optimisers):
        if not isinstance(optimiser, Sgd) or not optimiser.whole:
            continue
        for name in rows & set(optimiser.rates):
            if len(phases) > 1 or name in found:
                raise ValueError(f"{name} decays as a whole, but not by one optimiser alone")
            shrinks = optimiser.rates[name] * optimiser.decay
            steps = (1.0 - shrinks * optimiser.factor**step for step in range(n_steps))
            left = accumulate(steps, mul, initial=1.0)
            change = torch.tensor([kept - 1.0 for kept in left], dtype=torch.float64)
            found[name] = change.to(start.active.device, start.dtype)
    return found


def idle_change(rows: torch.Tensor, shrunk: torch.Tensor) -> torch.Tensor:
    """Return how rows change that nobody steps.

    Whoever adds it and whoever takes it off again gets the same bits: one product an entry.

    Args:
        rows: what they are at the start of the round, (n_users or n_steps or 1, n_rows, ...).
        shrunk: entries of `shrinking`, (n_users or n_steps,).
    """
    return rows * shrunk.view(-1, *[1] * (rows.dim() - 1))
