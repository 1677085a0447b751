"""What training hands over: users' changes, each user's own, before anything is rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

__all__ = ["BlockChange", "ChangeSink", "idle_change"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChange:
    """The changes of some users.

    Attributes:
        item: active item positions of the users' rows, n_items where there is none, int64
            (n_users, n_rows).
        rows: by tensor, float (n_users, n_rows, width).
        whole: by tensor that belongs to no items, float (n_users, size).
        idle: by tensor that decays as a whole, what the users' rows would have changed by if they
            had not been touched, like `rows`.
        loss: the users' mean losses, (n_users,): one that is not finite is a divergence, even where
            every value still is; None where it is not known.
        steps: how many steps each user took, int64 (n_users,); None where nothing decays as a
            whole.
        weight: by tensor, how many times each user's rounded values count, int64 (n_users,);
            once where nothing is said.
    """

    item: torch.Tensor
    rows: Mapping[str, torch.Tensor]
    whole: Mapping[str, torch.Tensor]
    weight: Mapping[str, torch.Tensor]
    idle: Mapping[str, torch.Tensor] = field(default_factory=dict)
    loss: torch.Tensor | None = None
    steps: torch.Tensor | None = None


class ChangeSink(Protocol):
    """Takes changes block by block."""

    def add_block(self, change: BlockChange) -> torch.Tensor:
        """Add the users' changes up; return how many values of each were clipped, (n_users,)."""


def idle_change(rows: torch.Tensor, shrunk: torch.Tensor) -> torch.Tensor:
    """Return how rows change that nobody steps.

    Adding it and taking it off again give the same bits: one product an entry.

    Args:
        rows: what `whole_decay.decaying` says of them, (n_users or n_steps or 1, n_rows, ...).
        shrunk: entries of `whole_decay.shrinking`, (n_users or n_steps,).
    """
    return rows * shrunk.view(-1, *[1] * (rows.dim() - 1))
