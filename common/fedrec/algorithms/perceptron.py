"""Layers that score a user with an item: what FedNCF and FedRecGEL have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedrec.algorithms.batch import Values

if TYPE_CHECKING:
    import torch

__all__ = ["layer_shapes", "units"]


def layer_shapes(inputs: int, outputs: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (outputs, inputs) of each layer; `weight_1` and `bias_1` are the first one's."""
    return tuple(zip(outputs, (inputs, *outputs), strict=False))


def units(v: Values, users: torch.Tensor, items: torch.Tensor, n_layers: int) -> torch.Tensor:
    """Return the last hidden units of [user; item], after ReLU, (n_users, n_rows, outputs).

    The first layer takes users and items apart: a user's half is the same for all its rows.

    Args:
        users: (n_users, dim).
        items: (n_users, n_rows, dim), or (1, n_rows, dim) where all users have one table.
        n_layers: hidden ones.
    """
    import torch

    from fedrec.tensor_products import user_product

    dim = users.shape[-1]
    # Autograd joins the parts of a split in one pass; of slices it would add up whole tables.
    of_users, of_items = torch.split(v.weight_1, [dim, v.weight_1.shape[-1] - dim], -1)
    found = user_product(items, of_items.mT)
    offset = user_product(users[:, None], of_users.mT) + v.bias_1[:, None]
    # Each layer writes one table, not three: taking their memory costs as much as filling them.
    found = found.add_(offset) if len(found) == len(offset) else found + offset
    for layer in range(2, n_layers + 1):
        weight, bias = getattr(v, f"weight_{layer}"), getattr(v, f"bias_{layer}")
        found = user_product(torch.relu_(found), weight.mT).add_(bias[:, None])
    return torch.relu_(found)
