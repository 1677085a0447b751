"""FedMF compiled: one user at a time, everything of that user in the cache.

The same rule as `fedrec.algorithms.fedmf`'s. A user's samples are drawn, shuffled, trained, rounded
and added up in one pass, so nothing of the size of all samples is ever written. Compiled functions
carry no annotations: numba derives the types from the call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedrec.algorithms.accelerators.compiled import (
    COMPILED,
    Sampled,
    begin_user,
    dots,
    error_of,
    hand_over,
    open_space,
    shuffled,
    train_in_parts,
)

__all__ = ["CpuResult", "CpuRound", "CpuUsers", "padded_users", "train_users"]

_PAIRS_AT_ONCE = 16_384


class CpuUsers(NamedTuple):
    """Users of a chunk, and what they own.

    Attributes:
        vectors: p, float32 (n_users, dim).
        members: 1 for every row of B that a user trains, else 0, float32 (n_users, width), or
            one row that is everybody's.
    """

    sampled: Sampled
    vectors: NDArray[np.float32]
    members: NDArray[np.float32]


class CpuRound(NamedTuple):
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
    trained = users._replace(vectors=users.vectors.copy())
    loss = np.zeros(n_users, dtype=np.float32)
    clipped = np.zeros(n_users, dtype=np.int64)
    kept_from = np.zeros(n_users + 1, dtype=np.int64)
    if common.keeps_rows:
        # A user's samples are distinct items at best.
        samples = np.diff(users.sampled.pointers) * (1 + common.negatives_per_positive)
        np.cumsum(np.minimum(samples, n_active), out=kept_from[1:])
    kept_items = np.full(kept_from[-1], n_active, dtype=np.int64)
    kept_rows = np.zeros((kept_from[-1], width), dtype=np.float32)

    def work(part: int, parts: int, *sums: NDArray[np.int64]) -> bool:
        own = (loss, clipped, kept_from, kept_items, kept_rows)
        return bool(_train_part(part, parts, trained, common, *sums, *own))

    counted = width if common.counts_entries else 0
    shapes = ((n_active, width), (n_active,), (n_active, counted))
    finite, (change, counts, entries) = train_in_parts(work, n_users, threads, shapes)
    return CpuResult(
        change=change,
        counts=counts,
        entries=entries,
        vectors=trained.vectors,
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


class _Step(NamedTuple):
    """Room for a minibatch.

    Attributes:
        errors: summed over the minibatch's samples of each row, float32 (n_rows,).
        occurrences: samples of each row, int64 (n_rows,).
        touched: rows with samples, int64 (n_rows,).
        gradient: of p by the items, float32 (dim,).
        low_gradient: of p B^T by the rows of A, float32 (width,).
        low_vector: p B^T, float32 (width,).
        rates: the step of each column of A, float32 (width,).
    """

    errors: NDArray[np.float32]
    occurrences: NDArray[np.int64]
    touched: NDArray[np.int64]
    gradient: NDArray[np.float32]
    low_gradient: NDArray[np.float32]
    low_vector: NDArray[np.float32]
    rates: NDArray[np.float32]


@njit(**COMPILED)
def _gradients(places, n_positives, vector, items, has_basis, space, step):
    """Sum e q_i over a minibatch, and e over each item; return (touched rows, loss)."""
    loss, n_touched = 0.0, 0
    gradient, low_gradient, low_vector = step.gradient, step.low_gradient, step.low_vector
    gradient[:] = 0.0
    low_gradient[:] = 0.0
    for place in places:
        item = space.drawn[place]
        row = space.row_of[item]
        values = space.rows[row]
        score = dots((low_vector,), (values,))[0]
        if has_basis:
            score += dots((vector,), (items[item],))[0]
        error, part = error_of(score, place < n_positives)
        loss += part
        if has_basis:
            whole = items[item]
            for c in range(len(gradient)):
                gradient[c] += error * whole[c]
        for k in range(len(low_gradient)):
            low_gradient[k] += error * values[k]
        if step.occurrences[row] == 0:
            step.touched[n_touched] = row
            n_touched += 1
        step.occurrences[row] += 1
        step.errors[row] += error
    return n_touched, loss


@njit(**COMPILED)
def _move_rows(n_touched, low_items, has_basis, ratio, pull, space, step):
    """Do the item step of every touched row, and forget its errors; a step of 0 stays."""
    low_vector, rates = step.low_vector, step.rates
    for row in step.touched[:n_touched]:
        mean = step.errors[row] / np.float32(step.occurrences[row])
        values = space.rows[row]
        if has_basis:
            low_item = low_items[space.row_item[row]]
            for k in range(len(values)):
                decay = low_item[k] + values[k] / ratio
                values[k] -= rates[k] * (mean * low_vector[k] + pull * decay)
        else:
            for k in range(len(values)):
                values[k] -= rates[k] * (mean * low_vector[k] + pull * values[k])
        step.errors[row] = 0.0
        step.occurrences[row] = 0


@njit(**COMPILED)
def _move_vector(vector, n_samples, rate, pull, basis, has_basis, step):
    """Do the step of p."""
    gradient, low_gradient = step.gradient, step.low_gradient
    if has_basis:
        for k in range(len(low_gradient)):
            for c in range(len(vector)):
                gradient[c] += low_gradient[k] * basis[k, c]
    else:
        gradient[:] = low_gradient
    size = np.float32(n_samples)
    for c in range(len(vector)):
        vector[c] -= rate * (gradient[c] / size + pull * vector[c])


@njit(**COMPILED)
def _keep(n_rows, items, space, counts, kept_items, kept_rows):
    """Write a user's changed rows down in ascending order of items, and close them."""
    order = np.argsort(space.row_item[:n_rows])
    for place in range(n_rows):
        row = order[place]
        item = space.row_item[row]
        space.row_of[item] = -1
        counts[item] += 1
        kept_items[place] = item
        for k in range(kept_rows.shape[1]):
            kept_rows[place, k] = space.rows[row, k] - items[item, k]


@njit(**COMPILED)
def _train_part(
    part, parts, users, common, change, counts, entries, losses, clipped, kept_from, kept_items,
    kept_rows,
):  # fmt: skip
    """Train every `parts`-th user from `part` on; return whether all values were finite.

    With room in `kept_rows` users' changes are written there, each from its place in `kept_from`
    on, and not added up.
    """
    sampled, items, low_items = users.sampled, common.items, common.low_items
    basis, has_basis, per_positive = common.basis, common.has_basis, common.negatives_per_positive
    scale, bound = np.float32(common.scale), np.float32(common.bound)
    (n_items, dim), width = items.shape, low_items.shape[1]
    ratio = np.float32(width / dim)
    rate, pull = np.float32(common.rate), np.float32(2.0) * np.float32(common.gamma)
    low_rate = rate * np.float32(math.sqrt(width / dim))
    space = open_space(sampled.pointers, per_positive, n_items, width)
    step = _Step(
        np.zeros(len(space.rows), dtype=np.float32),
        np.zeros(len(space.rows), dtype=np.int64),
        np.empty(len(space.rows), dtype=np.int64),
        np.empty(dim, dtype=np.float32),
        np.empty(width, dtype=np.float32),
        np.empty(width, dtype=np.float32),
        np.empty(width, dtype=np.float32),
    )
    all_finite = True
    for user in range(part, len(users.vectors), parts):
        n_positives = sampled.pointers[user + 1] - sampled.pointers[user]
        n_samples, n_rows = begin_user(user, sampled, per_positive, items, has_basis, space)
        vector, members = users.vectors[user], users.members[min(user, len(users.members) - 1)]
        for k in range(width):
            step.rates[k] = low_rate * members[k]
        loss = 0.0
        for epoch in range(common.epochs):
            places = shuffled(n_samples, sampled.shuffle_keys[epoch, user], space)
            for start in range(0, n_samples, common.batch_size):
                batch = places[start : start + common.batch_size]
                if has_basis:
                    for k in range(width):
                        step.low_vector[k] = dots((basis[k],), (vector,))[0]
                else:
                    step.low_vector[:] = vector
                n_touched, part_loss = _gradients(
                    batch, n_positives, vector, items, has_basis, space, step
                )
                loss += part_loss
                _move_rows(n_touched, low_items, has_basis, ratio, pull, space, step)
                _move_vector(vector, len(batch), rate, pull, basis, has_basis, step)
        losses[user] = loss / (n_samples * common.epochs)
        if common.counts_entries:
            for item in space.row_item[:n_rows]:
                for k in range(width):
                    entries[item, k] += np.int64(members[k])
        if common.keeps_rows:
            first = kept_from[user]
            _keep(n_rows, items, space, counts, kept_items[first:], kept_rows[first:])
        else:
            clipped[user], finite = hand_over(
                n_rows, items, has_basis, scale, bound, space, change, counts
            )
            all_finite = all_finite and finite
        for c in range(dim):
            all_finite = all_finite and math.isfinite(vector[c])
    return all_finite
