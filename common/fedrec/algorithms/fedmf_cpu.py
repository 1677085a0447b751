"""FedMF on processors: one user at a time, everything of that user in the cache.

The same rule as `fedmf`'s tensors, compiled. A user's samples are drawn, shuffled, trained,
rounded and added up in one pass, so nothing of the size of all samples is ever written. A user's
result depends on that user alone: the sums are integers, hence independent of threads, chunks
and order. It takes a fraction of the tensor form's time on a processor (docs, performance), and
is checked against the same plain loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.fedmf_kernel import train_part
from fedrec.algorithms.sampled import Sampled, all_finite

__all__ = ["CpuResult", "CpuRound", "CpuUsers", "train_users"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUsers:
    """Users of a chunk, and what they own.

    Attributes:
        vectors: p, float32 (n_users, dim).
        members: 1 for every row of B that a user trains, else 0, float32 (n_users, width), or
            one row that is everybody's.
    """

    sampled: Sampled
    vectors: NDArray[np.float32]
    members: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRound:
    """What all users of a round have in common.

    Attributes:
        items: Q, float32 (n_active, dim).
        low_items: Q B^T, float32 (n_active, width); Q itself where B is the identity.
        basis: B, float32 (width, dim); one row of zeros where B is the identity.
        has_basis: whether B is something else than the identity.
        scale: grid steps per unit.
        bound: largest absolute value of a user, in grid steps.
        counts_entries: count the users who trained each value of A.
    """

    items: NDArray[np.float32]
    low_items: NDArray[np.float32]
    basis: NDArray[np.float32]
    has_basis: bool
    rate: float
    gamma: float
    epochs: int
    batch_size: int
    negatives_per_positive: int
    scale: float
    bound: float
    counts_entries: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuResult:
    """What came of it: sums over the users, and each user's own.

    Attributes:
        change: int64 (n_active, width), in grid steps.
        counts: int64 (n_active,).
        entries: users who trained each value of A, int64 (n_active, width); (n_active, 0) where
            nobody asked.
        vectors: new p, float32 (n_users, dim).
        loss: mean loss, float32 (n_users,).
        clipped: values that had to be clipped, int64 (n_users,).
        finite: whether every value was.
    """

    change: NDArray[np.int64]
    counts: NDArray[np.int64]
    entries: NDArray[np.int64]
    vectors: NDArray[np.float32]
    loss: NDArray[np.float32]
    clipped: NDArray[np.int64]
    finite: bool


def train_users(users: CpuUsers, common: CpuRound, *, threads: int) -> CpuResult:
    """Train all users of a chunk on `threads` threads; see `CpuResult`."""
    n_users = len(users.vectors)
    n_active, width = common.low_items.shape
    vectors = users.vectors.copy()
    loss = np.zeros(n_users, dtype=np.float32)
    clipped = np.zeros(n_users, dtype=np.int64)
    parts = max(1, min(threads, n_users))
    change = np.zeros((parts, n_active, width), dtype=np.int64)
    counts = np.zeros((parts, n_active), dtype=np.int64)
    counted = width if common.counts_entries else 0
    entries = np.zeros((parts, n_active, counted), dtype=np.int64)

    own = users.sampled

    def work(part: int) -> bool:
        return bool(
            train_part(
                part, parts,
                own.pointers, own.positives, own.excluded_pointers, own.excluded,
                own.negative_keys, own.shuffle_keys, vectors, users.members,
                common.items, common.low_items, common.basis, common.has_basis,
                np.float32(common.rate), np.float32(common.gamma), common.epochs,
                common.batch_size, common.negatives_per_positive,
                np.float32(common.scale), np.float32(common.bound),
                change[part], counts[part], entries[part], loss, clipped,
            )
        )  # fmt: skip

    finite = all_finite(work, parts)
    return CpuResult(
        change=change.sum(axis=0),
        counts=counts.sum(axis=0),
        entries=entries.sum(axis=0),
        vectors=vectors,
        loss=loss,
        clipped=clipped,
        finite=finite,
    )
