"""A minibatch of many users as a loss sees it, and what losses are made of.

Every tensor's first axis is the user. A user's samples of one item are one row, whose weight is
its share of the minibatch's samples, so that means over samples are sums over rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Batch", "Values", "added", "cross_entropy", "dot", "sum_name"]


class Values:
    """A minibatch's parameters by name, and `phase`, the name of the one that runs."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], phase: str = "") -> None:
        self.phase = phase
        self.__dict__.update(tensors)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Labels and weights of a minibatch's rows.

    Attributes:
        label: 1 for an interaction, 0 for a sampled negative, float (n_users, n_rows).
        weight: share of the user's samples, 0 where there is no row, float (n_users, n_rows);
            the sum of its shares where a step is over all of a user's minibatches.
    """

    label: torch.Tensor
    weight: torch.Tensor

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Return each user's mean over its samples, (n_users,), of values (n_users, n_rows)."""
        return (values * self.weight).sum(1)


def cross_entropy(score: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return the binary cross-entropy of sigmoid(score), elementwise."""
    import torch

    return torch.nn.functional.softplus(score) - score * label


def added(v: Values, shared: str, own: str) -> torch.Tensor:
    """Return the sum of a user's own rows and shared ones, or what a wrapper puts in its place."""
    given: torch.Tensor | None = vars(v).get(sum_name(shared, own))
    return getattr(v, own) + getattr(v, shared) if given is None else given


def sum_name(shared: str, own: str) -> str:
    """Return the name under which a wrapper says what stands for the sum of two tables' rows."""
    return f"{own} + {shared}"


def dot(rows: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return the inner products of users' vectors with their rows, (n_users, n_rows).

    Args:
        rows: (n_users, n_rows, dim), or (1, n_rows, dim) where all users have one table.
        vectors: (n_users, dim).
    """
    if rows.shape[0] == 1 != vectors.shape[0]:
        # Scoring all items is done for always the same number of users, on one thread.
        return vectors @ rows[0].T
    # A matrix product would choose its order of summation by the shape.
    return (rows * vectors[:, None]).sum(-1)
