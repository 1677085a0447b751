"""Steps of optimisers, for many users at once, each as if it had one of its own.

B users; `live` is 1 for those who still train, (B,).
"""

from __future__ import annotations

import math

import torch

from fedrec.algorithms.optimisers import MEAN_KEPT, SMALL, SQUARE_KEPT

Tensors = dict[str, torch.Tensor]


def length(tensors: Tensors, names: list[str], live: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of each user's tensors together, (B,)."""
    squares = [tensors[name].square().reshape(len(live), -1).sum(1) for name in names]
    return torch.stack(squares).sum(0).sqrt()


def wide(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return values with axes of one behind theirs, ready to meet tensors of `like`'s shape."""
    return values.view(*values.shape, *[1] * (like.dim() - values.dim()))


def step_adam(
    values: torch.Tensor,
    gradient: torch.Tensor,
    moments: tuple[torch.Tensor, torch.Tensor],
    rate: float,
    age: int,
    live: torch.Tensor,
) -> None:
    """Take one step in place; `age` counts it."""
    mean, square = moments
    mean.lerp_(gradient, 1.0 - MEAN_KEPT)
    square.mul_(SQUARE_KEPT).addcmul_(gradient, gradient, value=1.0 - SQUARE_KEPT)
    below = square.sqrt().div_(math.sqrt(1.0 - SQUARE_KEPT**age)).add_(SMALL)
    values.addcdiv_(mean * wide(live, mean), below, value=-rate / (1.0 - MEAN_KEPT**age))


def step_kept_adam(
    values: torch.Tensor,
    gradient: torch.Tensor,
    moments: list[torch.Tensor],
    rate: float,
    live: torch.Tensor,
) -> None:
    """Take one step in place, by moments that go on from each user's last round.

    Args:
        moments: as `own_moments` names them; those of users who stopped stay as they are.
    """
    mean, square, mean_weight, square_weight = moments
    one = torch.ones_like(live)
    for moment, weight, value, kept in (
        (mean, mean_weight, gradient, MEAN_KEPT),
        (square, square_weight, gradient.square(), SQUARE_KEPT),
    ):
        moment.lerp_(value, wide((1.0 - kept) * live, moment))
        weight.lerp_(one, (1.0 - kept) * live)
    below = (square / wide(square_weight, square)).sqrt_().add_(SMALL)
    step = mean / wide(mean_weight, mean) * wide(live, mean)
    values.addcdiv_(step, below, value=-rate)
