"""FedMF on processors: one user at a time, everything of that user in the cache.

The same rule as `fedmf`'s tensors, compiled. A user's samples are drawn, shuffled, trained,
rounded and added up in one pass, so nothing of the size of all samples is ever written. A user's
result depends on that user alone: the sums are integers, hence independent of threads, chunks
and order. It takes a fraction of the tensor form's time on a processor (docs, performance), and
is checked against the same plain loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.fedmf_kernel import train_part
from fedrec.algorithms.sampled import Sampled, all_finite

__all__ = ["CpuResult", "CpuRound", "CpuUsers", "padded_users", "train_users"]

_PAIRS_AT_ONCE = 16_384


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
        keeps_rows: give back every user's rows, unrounded, and do not add them up.
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
    keeps_rows: bool = False


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
        kept_from: where each user's kept rows begin, int64 (n_users + 1,).
        kept_items: their items, in ascending order for each user and `n_active` behind them,
            int64 (n_kept,).
        kept_rows: the changes of these items, zero behind them, float32 (n_kept, width); nothing
            is kept and none of this has rows unless it was asked for.
    """

    change: NDArray[np.int64]
    counts: NDArray[np.int64]
    entries: NDArray[np.int64]
    vectors: NDArray[np.float32]
    loss: NDArray[np.float32]
    clipped: NDArray[np.int64]
    finite: bool
    kept_from: NDArray[np.int64]
    kept_items: NDArray[np.int64]
    kept_rows: NDArray[np.float32]


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
    kept_from = np.zeros(n_users + 1, dtype=np.int64)
    if common.keeps_rows:
        # A user's samples are distinct items at best.
        samples = np.diff(own.pointers) * (1 + common.negatives_per_positive)
        np.cumsum(np.minimum(samples, n_active), out=kept_from[1:])
    kept_items = np.full(kept_from[-1], n_active, dtype=np.int64)
    kept_rows = np.zeros((kept_from[-1], width), dtype=np.float32)

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
                kept_from, kept_items, kept_rows,
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
        kept_from=kept_from,
        kept_items=kept_items,
        kept_rows=kept_rows,
    )


def padded_users(
    found: CpuResult,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield the kept rows of a few users after the other, as tables of one height.

    Yields:
        Items int64 (n_users, n_rows), each user's own in ascending order and the number of active
        items behind them, and changes float32 (n_users, n_rows, width), zero behind them.
    """
    sizes = np.diff(found.kept_from)
    begin = 0
    for end in range(1, len(sizes) + 1):
        # One more user as long as the tables stay small, and always one.
        height = int(sizes[begin : end + 1].max())
        if end < len(sizes) and height * (end + 1 - begin) <= _PAIRS_AT_ONCE:
            continue
        height = int(sizes[begin:end].max())
        items = np.full((end - begin, height), len(found.counts), dtype=np.int64)
        rows = np.zeros((end - begin, height, found.kept_rows.shape[1]), dtype=np.float32)
        for place, user in enumerate(range(begin, end)):
            own = slice(found.kept_from[user], found.kept_from[user + 1])
            items[place, : sizes[user]] = found.kept_items[own]
            rows[place, : sizes[user]] = found.kept_rows[own]
        yield items, rows
        begin = end
