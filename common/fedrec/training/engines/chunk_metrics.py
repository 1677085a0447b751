"""What a round reports of its training: integers, which add up in any order."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.evaluation.metrics import LOSS_BITS, MAXIMUM_LOSS

MAXIMUM_CLIPPED = 1 << 20
"""More clipped values of one user are not told apart."""


def training_sums(loss: torch.Tensor, clipped: torch.Tensor) -> NDArray[np.int64]:
    """Return (participants, loss, clipped values, clipped users) of a chunk, as integers."""
    bounded = torch.where(torch.isfinite(loss), loss.clamp(0.0, MAXIMUM_LOSS), MAXIMUM_LOSS)
    units = torch.round(bounded * (1 << LOSS_BITS)).to(torch.int64)
    parts = (
        torch.ones_like(units),
        units,
        clipped.clamp(max=MAXIMUM_CLIPPED),
        (clipped > 0).to(torch.int64),
    )
    return torch.stack([part.sum() for part in parts]).cpu().numpy().astype(np.int64)
