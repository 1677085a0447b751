"""FedNCF on processors: one user at a time, everything of that user in the cache.

The same rule as the tensors of `fedncf_lockstep` by plain gradient descent, compiled. A user's
result depends on that user alone, and sums are integers; see `fedrec.algorithms.fedmf_cpu`, whose
ways these are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.fedncf_kernel import train_part
from fedrec.algorithms.sampled import Sampled, all_finite

__all__ = ["CpuResult", "CpuRound", "CpuUsers", "train_users"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUsers:
    """Users of a chunk, and what they own.

    Attributes:
        vectors: p, float32 (n_users, dim).
        weights: what a user's network counts for in the sum, float32 (n_users,).
    """

    sampled: Sampled
    vectors: NDArray[np.float32]
    weights: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRound:
    """What all users of a round have in common.

    Attributes:
        items: Q, float32 (n_active, dim).
        network: all layers end to end, weights before biases, float32.
        decay: L2 coefficient of network, users and rows.
        scale: grid steps per unit of a row.
        bound: largest absolute value of a user's row, in grid steps.
        network_scale: grid steps per unit of the weighted network.
        network_bound: its largest absolute value, in grid steps.
    """

    items: NDArray[np.float32]
    network: NDArray[np.float32]
    rate: float
    user_rate: float
    item_rate: float
    decay: float
    epochs: int
    batch_size: int
    negatives_per_positive: int
    scale: float
    bound: float
    network_scale: float
    network_bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuResult:
    """What came of it: sums over the users, and each user's own.

    Attributes:
        change: of the rows, int64 (n_active, dim), in grid steps.
        counts: users who touched each item, int64 (n_active,).
        network: change of the weighted networks, int64, in grid steps.
        vectors: new p, float32 (n_users, dim).
        loss: mean loss, float32 (n_users,).
        clipped: values that had to be clipped, int64 (n_users,).
        finite: whether every value was.
    """

    change: NDArray[np.int64]
    counts: NDArray[np.int64]
    network: NDArray[np.int64]
    vectors: NDArray[np.float32]
    loss: NDArray[np.float32]
    clipped: NDArray[np.int64]
    finite: bool


def train_users(users: CpuUsers, common: CpuRound, *, threads: int) -> CpuResult:
    """Train all users of a chunk on `threads` threads; see `CpuResult`."""
    n_users = len(users.vectors)
    vectors = users.vectors.copy()
    loss = np.zeros(n_users, dtype=np.float32)
    clipped = np.zeros(n_users, dtype=np.int64)
    parts = max(1, min(threads, n_users))
    change = np.zeros((parts, *common.items.shape), dtype=np.int64)
    counts = np.zeros((parts, len(common.items)), dtype=np.int64)
    network = np.zeros((parts, len(common.network)), dtype=np.int64)
    rates = (common.rate, common.user_rate, common.item_rate)

    own = users.sampled

    def work(part: int) -> bool:
        return bool(
            train_part(
                part, parts,
                own.pointers, own.positives, own.excluded_pointers, own.excluded,
                own.negative_keys, own.shuffle_keys, vectors, users.weights,
                common.items, common.network,
                *(np.float32(rate) for rate in rates),
                *(np.float32(1.0 - rate * common.decay) for rate in rates),
                common.epochs, common.batch_size, common.negatives_per_positive,
                np.float32(common.scale), np.float32(common.bound),
                np.float32(common.network_scale), np.float32(common.network_bound),
                change[part], counts[part], network[part], loss, clipped,
            )
        )  # fmt: skip

    finite = all_finite(work, parts)
    return CpuResult(
        change=change.sum(axis=0),
        counts=counts.sum(axis=0),
        network=network.sum(axis=0),
        vectors=vectors,
        loss=loss,
        clipped=clipped,
        finite=finite,
    )
