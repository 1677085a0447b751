"""FedNCF's rounds in float64: every user by autograd, and the sums of both aggregations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from reference.plain_fedncf import train_user, train_user_with

NEAR_A_KINK = 5e-6
"""A unit whose input is this close to 0 in float64 may be on either side of it in float32."""
LARGEST_WEIGHT = 4096


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of a round: `optimiser` is a class of torch.optim, or None for SGD written out.

    Attributes:
        rates: of network, p and table.
    """

    aggregation: str
    batch_size: int
    epochs: int
    rates: tuple[float, float, float]
    decay: float = 0.0
    optimiser: type[torch.optim.Optimizer] | None = None


@dataclass(frozen=True, kw_only=True)
class Round:
    """Sums over the users who take part, and what follows from them.

    Attributes:
        taking: all users but those who came too near a kink.
        weight: sum of the weights of the networks' moves.
    """

    taking: np.ndarray
    vectors: np.ndarray
    network: dict[str, np.ndarray]
    weight: int
    rows: np.ndarray
    counts: np.ndarray
    after: dict[str, np.ndarray]


def fedncf_round(tensors, vectors, keys, histories, settings: Settings, *, seed, round_id,
                 per_positive, near=0.0):  # fmt: skip
    """Return a `Round` from shared tensors and p of every user.

    Args:
        near: users with a unit this close to its kink are left out.
    """
    start = {name: torch.from_numpy(value) for name, value in tensors.items()}
    table = start.pop("item_embedding")
    weighs = settings.aggregation == "mf_secavg"
    network = {name: torch.zeros_like(value) for name, value in start.items()}
    rows, counts = torch.zeros_like(table), np.zeros(len(table), dtype=np.int64)
    after, taking, total = vectors.copy(), np.ones(len(keys), dtype=np.bool_), 0
    common = {
        "seed": seed, "round_id": round_id, "per_positive": per_positive,
        "epochs": settings.epochs, "batch_size": settings.batch_size,
    }  # fmt: skip
    for index, key in enumerate(keys):
        own, positives, margins = torch.from_numpy(vectors[index]), histories[index], [np.inf]
        if settings.optimiser is None:
            rate, user_rate, item_rate = settings.rates
            p, moved, net, touched = train_user(
                own, table, start, key, positives, positives, rate=rate, user_rate=user_rate,
                item_rate=item_rate, margins=margins, **common,
            )  # fmt: skip
        else:
            p, moved, net, touched = train_user_with(
                settings.optimiser, settings.rates, settings.decay, own, table, start, key,
                positives, positives, **common,
            )  # fmt: skip
        if min(margins) <= near:
            taking[index] = False
            continue
        after[index] = p.numpy()
        # Rows that no user touched are not handed over, whatever decay would do to them.
        rows[touched] += (moved - table)[touched]
        counts[touched] += 1
        weight = min(len(positives), LARGEST_WEIGHT) if weighs else 1
        total += weight
        for name, value in net.items():
            network[name] += weight * (value - start[name])
    divisor = np.maximum(counts, 1)[:, None] if weighs else taking.sum()
    following = {name: (start[name] + move / total).numpy() for name, move in network.items()} | {
        "item_embedding": table.numpy() + rows.numpy() / divisor
    }
    return Round(
        taking=taking,
        vectors=after,
        network={name: move.numpy() for name, move in network.items()},
        weight=total,
        rows=rows.numpy(),
        counts=counts,
        after=following,
    )
