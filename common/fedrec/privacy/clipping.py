"""Clip a user's whole contribution in integers, so that its length is certainly bounded.

The values are on the grid already. A contribution that is too long is scaled down and rounded
towards zero, which makes no value larger, so the bound is the clip itself. Rounding to nearest
could add up to half a step to each of d values, for a bound of sqrt(C^2 / g^2 + d / 4 + ...)
(Kairouz et al. 2021). Our bound is smaller and needs no second try.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


_MARGIN = 1e-9
"""More than float64 loses in a pairwise sum of 2^31 squares."""


def shrunk_to(
    values: Mapping[str, torch.Tensor], bound: int, times: torch.Tensor | None = None
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Scale contributions down to an L2 norm of at most `bound`, and tell which were longer.

    Args:
        values: whole numbers of grid steps, each below 2^53 in size, (n_users, ...) by tensor. All
            tensors of a user are one contribution.
        bound: the clip in grid steps.
        times: how often each user contributes these values, to different items, (n_users,). Once by
            default.

    Returns:
        float64 tensors of the same shapes, and bool (n_users,).
    """
    import torch

    real = {name: own.to(torch.float64) for name, own in values.items()}
    squares = [own.square().flatten(1).sum(1) for own in real.values()]
    total = torch.stack(squares).sum(0)
    norm = (total if times is None else total * times).sqrt()
    safe = bound * (1.0 - _MARGIN)
    longer = norm > safe
    factor = safe / norm.clamp(min=safe) * (1.0 - _MARGIN)
    for name, own in real.items():
        wide = (slice(None), *[None] * (own.dim() - 1))
        real[name] = torch.where(longer[wide], torch.trunc(own * factor[wide]), own)
    return real, longer


def clipped_to(values: NDArray[np.int64], bound: int) -> tuple[NDArray[np.int64], bool]:
    """Clip one contribution, int64 (length,), as `shrunk_to` does."""
    import torch

    found, longer = shrunk_to({"": torch.from_numpy(values)[None]}, bound)
    return found[""][0].to(torch.int64).numpy(), bool(longer[0])
