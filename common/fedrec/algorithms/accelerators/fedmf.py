"""Compiled FedMF: one user at a time, with all data of that user in the cache.

The rule is that of `fedrec.algorithms.fedmf`. A user's samples are drawn, shuffled, trained,
rounded and added up in one pass, so no array of all samples is ever written. Compiled functions
carry no annotations: numba derives the types from the call.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedrec.algorithms.accelerators.compiled import (
    Sampled,
    begin_user,
    dots,
    error_of,
    hand_over,
    open_space,
    row_at,
    shuffled,
    train_in_parts,
)
from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.compiling import COMPILED
from fedrec.tensor_products import product_of_blocks

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.fedmf import FedMF
    from fedrec.algorithms.grid import GridSum, RoundSums


class FedMFUsers(NamedTuple):
    """The users of a chunk with their private parameters.

    Attributes:
        vectors: p, float32 (n_users, dim).
        members: 1 for every row of B that a user trains, else 0, float32 (n_users, width), or one
            row for all users.
    """

    sampled: Sampled
    vectors: NDArray[np.float32]
    members: NDArray[np.float32]


class FedMFRound(NamedTuple):
    """Values that all users of a round share.

    Attributes:
        items: Q, float32 (n_active, dim).
        low_items: Q B^T, float32 (n_active, width). Q itself if B is the identity.
        basis: B, float32 (width, dim). One row of zeros if B is the identity.
        has_basis: whether B is not the identity.
        scale: grid steps per unit.
        bound: a user's largest absolute value, in grid steps.
        counts_entries: whether to count the users that trained each value of A.
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


def round_of(algorithm: FedMF, start: RoundStart, total: GridSum) -> FedMFRound:
    """Return the values that all users of a round share.

    Args:
        total: the table to which their changes of rows are added.
    """
    settings, items, basis = algorithm.settings, start.shared["item_embedding"], start.basis
    low_items = items if basis is None else product_of_blocks(items, basis.T.contiguous())
    no_basis = np.zeros((1, items.shape[1]), dtype=np.float32)
    return FedMFRound(
        items=items.numpy(),
        low_items=low_items.numpy(),
        basis=no_basis if basis is None else basis.numpy(),
        has_basis=basis is not None,
        rate=settings.learning_rate,
        gamma=settings.regularisation,
        epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        negatives_per_positive=settings.negatives_per_positive,
        scale=total.scale,
        bound=total.bound,
        counts_entries=algorithm.sent.structure.counts_entries,
    )


def fit(
    algorithm: FedMF,
    chunk: Chunk,
    start: RoundStart,
    private: dict[str, torch.Tensor],
    sums: RoundSums,
    *,
    threads: int,
) -> ChunkResult:
    """Train a chunk of users and add their changes. See `fedrec.training.trainer`."""
    import torch

    settings, total = algorithm.settings, sums["item_embedding"]
    members = algorithm.sent.structure.members(
        algorithm.shapes.seed, start.round, chunk.user_keys, start.party_key
    )
    width, counts_entries = total.width, algorithm.sent.structure.counts_entries
    users = FedMFUsers(
        sampled=Sampled.of(
            chunk, seed=algorithm.shapes.seed, round_id=start.round, epochs=settings.local_epochs
        ),
        vectors=private["user_embedding"].numpy().copy(),
        members=np.ones((1, width), np.float32) if members is None else members.numpy(),
    )
    common = round_of(algorithm, start, total)
    n_items = len(common.items)
    shapes = ((n_items, width), (n_items,), (n_items, width if counts_entries else 0))
    found = train_in_parts(_train_part, (users, common), chunk.n_users, threads, shapes)
    change, counts, entries = map(torch.from_numpy, found.sums)
    total.add_sums(change, finite=found.finite)
    if counts_entries:
        sums["entries"].add_sums(entries, finite=True)
    sums.add_counts(counts)
    return found.result({"user_embedding": torch.from_numpy(users.vectors)})


class MinibatchBuffers(NamedTuple):
    """Work memory for a minibatch.

    Attributes:
        errors: sum over the minibatch's samples of each row, float32 (n_rows,).
        occurrences: number of samples of each row, int64 (n_rows,).
        touched: rows with samples, int64 (n_rows,).
        gradient: the part of p's gradient from the items, float32 (dim,).
        low_gradient: the part from the rows of A, as the gradient of p B^T, float32 (width,).
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
def open_step(n_rows, dim, width):
    """Return work memory for minibatches with this number of rows."""
    return MinibatchBuffers(
        np.zeros(n_rows, dtype=np.float32),
        np.zeros(n_rows, dtype=np.int64),
        np.empty(n_rows, dtype=np.int64),
        np.empty(dim, dtype=np.float32),
        np.empty(width, dtype=np.float32),
        np.empty(width, dtype=np.float32),
        np.empty(width, dtype=np.float32),
    )


@njit(**COMPILED)
def gradients(places, n_positives, vector, items, has_basis, space, step):
    """Sum e q_i over a minibatch, and e over each item. Return (touched rows, loss)."""
    loss, n_touched = 0.0, 0
    gradient, low_gradient, low_vector = step.gradient, step.low_gradient, step.low_vector
    errors, occurrences, touched = step.errors, step.occurrences, step.touched
    drawn, row_of, rows = space.drawn, space.row_of, space.rows
    gradient[:] = 0.0
    low_gradient[:] = 0.0
    for place in places:
        item = drawn[place]
        number = row_of[item]
        values, whole = row_at(rows, number), row_at(items, item)
        score = dots((low_vector,), (values,))[0]
        if has_basis:
            score += dots((vector,), (whole,))[0]
        error, part = error_of(score, place < n_positives)
        loss += part
        if has_basis:
            for c in range(len(gradient)):
                gradient[c] += error * whole[c]
        for k in range(len(low_gradient)):
            low_gradient[k] += error * values[k]
        if occurrences[number] == 0:
            touched[n_touched] = number
            n_touched += 1
        occurrences[number] += 1
        errors[number] += error
    return n_touched, loss


@njit(**COMPILED)
def _move_rows(n_touched, low_items, has_basis, ratio, pull, space, step):
    """Take the item step for every touched row, and clear its errors.

    With step 0, rows stay the same.
    """
    low_vector, rates = step.low_vector, step.rates
    errors, occurrences, touched = step.errors, step.occurrences, step.touched
    rows, row_item = space.rows, space.row_item
    for place in range(n_touched):
        number = touched[place]
        mean = errors[number] / np.float32(occurrences[number])
        values = row_at(rows, number)
        if has_basis:
            low_item = row_at(low_items, row_item[number])
            for k in range(len(values)):
                decay = low_item[k] + values[k] / ratio
                values[k] -= rates[k] * (mean * low_vector[k] + pull * decay)
        else:
            for k in range(len(values)):
                values[k] -= rates[k] * (mean * low_vector[k] + pull * values[k])
        errors[number] = 0.0
        occurrences[number] = 0


@njit(**COMPILED)
def _move_vector(vector, n_samples, rate, pull, basis, has_basis, step):
    """Take the step of p."""
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
def take_minibatch(batch, n_positives, vector, rate, pull, common, space, step):
    """Take one minibatch's simultaneous step in place, rows by `step.rates`.

    Return the loss before it.

    Args:
        pull: 2 gamma.
    """
    basis, has_basis, low_vector = common.basis, common.has_basis, step.low_vector
    ratio = np.float32(common.low_items.shape[1] / len(vector))
    if has_basis:
        for k in range(len(low_vector)):
            low_vector[k] = dots((row_at(basis, k),), (vector,))[0]
    else:
        low_vector[:] = vector
    n_touched, loss = gradients(batch, n_positives, vector, common.items, has_basis, space, step)
    _move_rows(n_touched, common.low_items, has_basis, ratio, pull, space, step)
    _move_vector(vector, len(batch), rate, pull, basis, has_basis, step)
    return loss


@njit(**COMPILED)
def _train_part(part, parts, users, common, change, counts, entries, losses, clipped):
    """Train every `parts`-th user from `part` on. Return whether all values were finite."""
    sampled, items, has_basis = users.sampled, common.items, common.has_basis
    per_positive, batch_size = common.negatives_per_positive, common.batch_size
    scale, bound = np.float32(common.scale), np.float32(common.bound)
    (n_items, dim), width = items.shape, common.low_items.shape[1]
    rate, pull = np.float32(common.rate), np.float32(2.0) * np.float32(common.gamma)
    low_rate = rate * np.float32(math.sqrt(width / dim))
    space = open_space(sampled.pointers, per_positive, n_items, width)
    step = open_step(len(space.rows), dim, width)
    rates, all_finite = step.rates, True
    for user in range(part, len(users.vectors), parts):
        n_positives = sampled.pointers[user + 1] - sampled.pointers[user]
        n_samples, n_rows = begin_user(user, sampled, per_positive, items, has_basis, space)
        vector, members = users.vectors[user], users.members[min(user, len(users.members) - 1)]
        for k in range(width):
            rates[k] = low_rate * members[k]
        loss = 0.0
        for epoch in range(common.epochs):
            places = shuffled(n_samples, sampled.shuffle_keys[epoch, user], space)
            for start in range(0, n_samples, batch_size):
                batch = places[start : start + batch_size]
                loss += take_minibatch(batch, n_positives, vector, rate, pull, common, space, step)
        losses[user] = loss / (n_samples * common.epochs)
        if common.counts_entries:
            for item in space.row_item[:n_rows]:
                for k in range(width):
                    entries[item, k] += np.int64(members[k])
        clipped[user], finite = hand_over(
            n_rows, items, has_basis, 1, scale, bound, space, change, counts
        )
        all_finite = all_finite and finite
        for c in range(dim):
            all_finite = all_finite and math.isfinite(vector[c])
    return all_finite
