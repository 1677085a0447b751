"""FedNCF's network: its layers, their first values and the scores that it gives; see `fedncf`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedrec.streams import Purpose, stream_key, uniform

if TYPE_CHECKING:
    import torch

__all__ = ["UNITS", "initial_network", "network_preferences", "network_scores", "network_shapes"]

UNITS = (32, 16, 8, 1)
"""Outputs of the layers."""
_SCORES_AT_ONCE = 1 << 17


def network_shapes(dim: int) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the network's tensors, first layer first."""
    inputs = (2 * dim, *UNITS[:-1])
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (fan_in, fan_out) in enumerate(zip(inputs, UNITS, strict=True), start=1):
        shapes[f"weight_{layer}"] = (fan_out, fan_in)
        shapes[f"bias_{layer}"] = (fan_out,)
    return shapes


def initial_network(seed: int, dim: int) -> dict[str, NDArray[np.float64]]:
    """Return layers uniform in +-1/sqrt(inputs), drawn from the run's public seed."""
    tensors = {}
    fan_in = 1
    for counter, (name, shape) in enumerate(network_shapes(dim).items(), start=1):
        fan_in = shape[1] if len(shape) == 2 else fan_in
        key = stream_key(seed, Purpose.ITEM_EMBEDDING, 0, counter)
        drawn = 2.0 * uniform(key, np.arange(math.prod(shape))) - 1.0
        tensors[name] = drawn.reshape(shape) / math.sqrt(fan_in)
    return tensors


def network_scores(shared: Mapping[str, torch.Tensor], users: torch.Tensor) -> torch.Tensor:
    """Return the scores of all items, float32 (n_users, n_items), on the tensors' device.

    Args:
        shared: "item_embedding" (n_items, dim) and the network's tensors, float32.
        users: user vectors, float32 (n_users, dim).
    """
    import torch

    from fedrec.tensor_products import product_of_blocks

    first, dim = shared["weight_1"], users.shape[1]
    of_users = product_of_blocks(users, first[:, :dim].T.contiguous())
    of_items = product_of_blocks(shared["item_embedding"], first[:, dim:].T.contiguous())
    of_items = of_items + shared["bias_1"]
    scores = of_users.new_empty((len(of_users), len(of_items)))
    at_once = max(1, _SCORES_AT_ONCE // max(1, len(of_items)))
    for begin in range(0, len(of_users), at_once):
        units = torch.relu(of_users[begin : begin + at_once, None] + of_items).flatten(0, 1)
        for layer in (2, 3):
            weight, bias = shared[f"weight_{layer}"], shared[f"bias_{layer}"]
            units = torch.relu(product_of_blocks(units, weight.T.contiguous()) + bias)
        last = (units * shared["weight_4"]).sum(-1) + shared["bias_4"]
        scores[begin : begin + at_once] = last.view(-1, len(of_items))
    return scores


def network_preferences(
    serving: Mapping[str, NDArray[np.float32]], vector: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the scores of all items for one user vector, float32 (n_items,), in numpy."""
    first, dim = serving["weight_1"], len(vector)
    constant = first[:, :dim] @ vector + serving["bias_1"]
    units = np.maximum(serving["item_embedding"] @ first[:, dim:].T + constant, 0.0)
    for layer in (2, 3):
        weight, bias = serving[f"weight_{layer}"], serving[f"bias_{layer}"]
        units = np.maximum(units @ weight.T + bias, 0.0)
    return np.asarray(units @ serving["weight_4"][0] + serving["bias_4"], dtype=np.float32)
