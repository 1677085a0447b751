"""PFedRec on processors: one user at a time, everything of that user in the cache.

The same rule as the tensors of `pfedrec_lockstep`, compiled, with a copy of the rows that a user
touches. A user's result depends on that user alone, and sums are integers; see
`fedrec.algorithms.fedmf_cpu`, whose ways these are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.pfedrec_kernel import train_part
from fedrec.algorithms.sampled import Sampled, all_finite

__all__ = ["CpuResult", "CpuRound", "CpuUsers", "train_users"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUsers:
    """Users of a chunk, and what they own."""

    sampled: Sampled
    heads: NDArray[np.float32]
    biases: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRound:
    """What all users of a round have in common.

    Attributes:
        items: E, float32 (n_active, dim).
        scale: grid steps per unit.
        bound: largest absolute value of a user, in grid steps.
        personal: whether users' scores of all items are wanted.
    """

    items: NDArray[np.float32]
    rate: float
    item_rate: float
    epochs: int
    batch_size: int
    negatives_per_positive: int
    scale: float
    bound: float
    personal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuResult:
    """What came of it: sums over the users, and each user's own.

    Attributes:
        change: int64 (n_active, dim), in grid steps.
        heads: new w, float32 (n_users, dim).
        biases: new c, float32 (n_users,).
        scores: of all items with users' own rows, float32 (n_users, n_active); without columns
            where they are not wanted.
        loss: mean loss, float32 (n_users,).
        clipped: values that had to be clipped, int64 (n_users,).
        finite: whether every value was.
    """

    change: NDArray[np.int64]
    heads: NDArray[np.float32]
    biases: NDArray[np.float32]
    scores: NDArray[np.float32]
    loss: NDArray[np.float32]
    clipped: NDArray[np.int64]
    finite: bool


def train_users(users: CpuUsers, common: CpuRound, *, threads: int) -> CpuResult:
    """Train all users of a chunk on `threads` threads; see `CpuResult`."""
    n_users, n_active = len(users.heads), len(common.items)
    heads, biases = users.heads.copy(), users.biases.copy()
    scores = np.zeros((n_users, n_active if common.personal else 0), dtype=np.float32)
    loss = np.zeros(n_users, dtype=np.float32)
    clipped = np.zeros(n_users, dtype=np.int64)
    parts = max(1, min(threads, n_users))
    change = np.zeros((parts, *common.items.shape), dtype=np.int64)

    own = users.sampled

    def work(part: int) -> bool:
        return bool(
            train_part(
                part, parts,
                own.pointers, own.positives, own.excluded_pointers, own.excluded,
                own.negative_keys, own.shuffle_keys, heads, biases,
                common.items, np.float32(common.rate), np.float32(common.item_rate),
                common.epochs, common.batch_size, common.negatives_per_positive,
                np.float32(common.scale), np.float32(common.bound), common.personal,
                change[part], scores, loss, clipped,
            )
        )  # fmt: skip

    finite = all_finite(work, parts)
    return CpuResult(
        change=change.sum(axis=0),
        heads=heads,
        biases=biases,
        scores=scores,
        loss=loss,
        clipped=clipped,
        finite=finite,
    )
