"""Decay of whole tables: untouched rows shrink without taking steps.

The only gradient of such a row is its decay. After k steps with the rates r_0, r_1, ... it is
prod_{j<k} (1 - r_j decay) times its first value. That product depends only on the number of a
user's steps. So the change of an untouched row of a shared table is one of a few values. These are
rounded once for each number of steps and multiplied by the number of users with that number. The
product includes those users' touched rows as if they had not been touched, which is subtracted
again when the touched rows are added.

An update structure may train A in row = Q + A B with B B^T = c I, c = dim / width. With s the
structure's `gradient_scale`, a step of A along the gradient of (decay / 2) |Q + A B|^2 is

    A <- A - r_j s decay (Q + A B) B^T = A - r_j s c decay (A + M),   M = Q B^T / c

(M B is the part of Q that A B reaches). So A + M shrinks by 1 - r_j s c decay per step. After k
steps an untouched row's A is (prod_{j<k} (1 - r_j s c decay) - 1) M: the same form, with M in place
of the rows. s c is 1 / s, and 1 at width = dim.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

from fedrec.algorithms.optimisers import Sgd

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.algorithm import RoundStart
    from fedrec.algorithms.trained import TrainedAlgorithm


def coordinates(rows: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """Return M = Q B^T / c, (n_items, width). M B is the part of Q that A B can reach.

    The sums run in a fixed order, entry by entry, so no bit depends on the number of rows.

    Args:
        rows: Q, (n_items, dim).
        basis: B, (width, dim), B B^T = (dim / width) I.
    """
    width, dim = basis.shape
    found = rows.new_zeros((len(rows), width))
    for index in range(dim):
        found = found + rows[:, index, None] * basis[:, index]
    return found * (width / dim)


def decaying(algorithm: TrainedAlgorithm, start: RoundStart) -> dict[str, torch.Tensor]:
    """Return the part of each shared table that shrinks: its rows, or M if A replaces rows.

    Returns:
        By table that an optimiser decays: (n_items, ...), or (n_items, width).
    """
    rows = {entry.name: entry for entry in algorithm.parameters if entry.scope == "rows"}
    names = {
        name
        for phase in algorithm.phases(start.scalars)
        for optimiser in phase.optimisers
        if optimiser.decay or (isinstance(optimiser, Sgd) and optimiser.whole)
        for name in rows.keys() & optimiser.rates.keys()
    }
    return {
        name: start.shared[name]
        if start.basis is None or not rows[name].structured
        else coordinates(start.shared[name], start.basis)
        for name in names
    }


def decays_whole(algorithm: TrainedAlgorithm) -> bool:
    """Return whether rows change that a user does not touch."""
    return any(isinstance(each, Sgd) and each.whole for each in algorithm.sent.optimisers)


def most_steps(algorithm: TrainedAlgorithm) -> int:
    """Return the largest number of a user's steps in a round if tables decay as a whole, else 0.

    The upper bound is a user that holds the whole catalogue, with its negatives.
    """
    if not decays_whole(algorithm):
        return 0
    phases = algorithm.phases(algorithm.derived.initial_scalars)
    n_samples = algorithm.shapes.n_items * (1 + algorithm.settings.negatives_per_positive)
    return -(-n_samples // algorithm.settings.batch_size) * sum(phase.epochs for phase in phases)


def shrinking(algorithm: TrainedAlgorithm, start: RoundStart) -> dict[str, torch.Tensor]:
    """Return the relative change of an untouched row, as a factor of the result of `decaying`.

    Returns:
        By table: for each number of steps, prod (1 - r_j decay) - 1, (most_steps + 1,).

    Raises:
        ValueError: the algorithm has several phases, or several such optimisers for a table. Then
            the number of steps does not determine a row's value.
    """
    import torch

    found: dict[str, torch.Tensor] = {}
    phases = algorithm.phases(start.scalars)
    n_steps = most_steps(algorithm)
    rows = {entry.name for entry in algorithm.parameters if entry.scope.endswith("rows")}
    low = {
        entry.name for entry in algorithm.parameters if entry.structured and start.basis is not None
    }
    for optimiser in (optimiser for phase in phases for optimiser in phase.optimisers):
        if not isinstance(optimiser, Sgd) or not optimiser.whole:
            continue
        for name in rows & set(optimiser.rates):
            if len(phases) > 1 or name in found:
                raise ValueError(f"{name} decays as a whole, but not by one optimiser alone")
            shrinks = optimiser.rates[name] * optimiser.decay
            if name in low:
                shrinks /= algorithm.sent.structure.gradient_scale
            steps = (1.0 - shrinks * optimiser.factor**step for step in range(n_steps))
            left = accumulate(steps, mul, initial=1.0)
            change = torch.tensor([kept - 1.0 for kept in left], dtype=torch.float64)
            found[name] = change.to(start.active.device, start.dtype)
    return found
