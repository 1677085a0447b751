"""Compiled pFedGraph: Adam on one user's whole table, which stays in the cache with its moments.

The rule is that of `fedrec.algorithms.pfedgraph`, with FedMF's samples and gradients. Compiled
functions carry no annotations: numba derives the types from the call.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedrec.algorithms.accelerators.compiled import (
    Sampled,
    Space,
    begin_user,
    dots,
    hand_over_table,
    open_space,
    row_at,
    shuffled,
    train_in_parts,
)
from fedrec.algorithms.accelerators.fedmf import MinibatchBuffers, gradients, open_step
from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.optimisers import MEAN_KEPT, SMALL, SQUARE_KEPT
from fedrec.algorithms.pfedgraph import ANCHOR, OWN
from fedrec.compiling import COMPILED

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums
    from fedrec.algorithms.pfedgraph import PFedGraph

_ZERO, _SMALL = np.float32(0.0), np.float32(SMALL)
_MEAN_NEW, _SQUARE_NEW = np.float32(1.0 - MEAN_KEPT), np.float32(1.0 - SQUARE_KEPT)
_SQUARE_KEPT = np.float32(SQUARE_KEPT)
_PIECE = 2048
"""Values of an inner product that are added in float32. The sums of pieces are float64."""


class PFedGraphUsers(NamedTuple):
    """The users of a chunk with their private parameters.

    Attributes:
        vectors: p, float32 (n_users, dim).
        tables: theta, a row for each item of the catalogue, float32 (n_users, n_all_items, dim).
        anchors: a, in the same shape.
        scores: scores of all items of the catalogue, float32 (n_users, n_all_items).
    """

    sampled: Sampled
    vectors: NDArray[np.float32]
    tables: NDArray[np.float32]
    anchors: NDArray[np.float32]
    scores: NDArray[np.float32]


class PFedGraphRound(NamedTuple):
    """Values that all users of a round share.

    Attributes:
        items: the version's table, float32 (n_active, dim).
        active: rows of the active items in the catalogue, int64 (n_active,).
        pull: the factor of the cosine in the loss, which is negative if tables are pulled.
        scale: grid steps per unit.
        bound: a user's largest absolute value, in grid steps.
    """

    items: NDArray[np.float32]
    active: NDArray[np.int64]
    rate: float
    pull: float
    epochs: int
    batch_size: int
    negatives_per_positive: int
    scale: float
    bound: float


def fit(
    algorithm: PFedGraph,
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
    users = PFedGraphUsers(
        sampled=Sampled.of(
            chunk, seed=algorithm.shapes.seed, round_id=start.round, epochs=settings.local_epochs
        ),
        vectors=private["user_embedding"].numpy(),
        tables=private[OWN].numpy(),
        anchors=private[ANCHOR].numpy(),
        scores=private[algorithm.kept_scores].numpy(),
    )
    common = PFedGraphRound(
        items=start.shared["item_embedding"].numpy(),
        active=start.active.numpy(),
        rate=settings.learning_rate,
        pull=settings.weight if settings.sign == "released" else -settings.weight,
        epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        negatives_per_positive=settings.negatives_per_positive,
        scale=total.scale,
        bound=total.bound,
    )
    shapes = (common.items.shape,)
    found = train_in_parts(_train_part, (users, common), chunk.n_users, threads, shapes)
    total.add_sums(torch.from_numpy(found.sums[0]), finite=found.finite)
    sums["users"].add_whole(torch.ones((chunk.n_users, 1)))
    return found.result(private)


class _Room(NamedTuple):
    """Work memory for a user.

    Attributes:
        anchor: a of the active items, float32 (n_active, dim).
        table, vector: the gradient of theta or p and Adam's mean and square, float32 (3, n_values).
            Between minibatches, theta's gradient is 0.
        step: work memory for FedMF's gradients.
    """

    anchor: NDArray[np.float32]
    table: NDArray[np.float32]
    vector: NDArray[np.float32]
    step: MinibatchBuffers


@njit(**COMPILED)
def _pulls(table, anchor, pull):
    """Return (x, y) such that x a + y theta is the derivative of pull <a, theta> / |theta|."""
    inner, square = 0.0, 0.0
    for begin in range(0, len(table), _PIECE):
        values = table[begin : begin + _PIECE]
        found = dots((values,), (anchor[begin : begin + _PIECE], values))
        inner += found[0]
        square += found[1]
    length = math.sqrt(max(square, 1e-20))
    return np.float32(pull / length), np.float32(-pull * inner / (length * length * length))


# Under Python's rules, a check before each division would keep the loop from vector units.
@njit(error_model="numpy", **COMPILED)
def _move(values, anchor, to_anchor, to_itself, state, size, scale):
    """Take Adam's step by a gradient and shares of the anchor and of the values themselves."""
    gradient, mean, square = state[0], state[1], state[2]
    for k in range(len(values)):
        slope = gradient[k] + to_anchor * anchor[k] + to_itself * values[k]
        mean[k] += _MEAN_NEW * (slope - mean[k])
        square[k] = _SQUARE_KEPT * square[k] + _SQUARE_NEW * (slope * slope)
        values[k] -= size * (mean[k] / (np.sqrt(square[k]) * scale + _SMALL))


@njit(**COMPILED)
def _take(batch, n_positives, vector, pull, size, scale, space, room):
    """Take one minibatch's simultaneous step in place. Return the summed loss before it."""
    rows, step, share = space.rows, room.step, np.float32(1.0) / np.float32(len(batch))
    errors, occurrences, touched = step.errors, step.occurrences, step.touched
    table, anchor = rows.reshape(rows.size), room.anchor.reshape(rows.size)
    to_anchor, to_itself = _pulls(table, anchor, pull) if pull != 0.0 else (_ZERO, _ZERO)
    step.low_vector[:] = vector
    n_touched, loss = gradients(batch, n_positives, vector, rows, False, space, step)
    by_rows = room.table[0].reshape(rows.shape)
    for number in touched[:n_touched]:
        by_row, error = row_at(by_rows, number), errors[number] * share
        for c in range(len(vector)):
            by_row[c] = error * vector[c]
        errors[number] = _ZERO
        occurrences[number] = 0
    for c in range(len(vector)):
        room.vector[0, c] = step.low_gradient[c] * share
    _move(table, anchor, to_anchor, to_itself, room.table, size, scale)
    _move(vector, room.vector[0], _ZERO, _ZERO, room.vector, size, scale)
    for number in touched[:n_touched]:
        row_at(by_rows, number)[:] = _ZERO
    return loss


@njit(**COMPILED)
def _train_user(user, n_positives, n_samples, users, common, space, room):
    """Train a user's rows and vector in place. Return the mean loss."""
    batch_size, vector, loss = common.batch_size, users.vectors[user], 0.0
    mean_left, square_left = 1.0, 1.0
    for epoch in range(common.epochs):
        places = shuffled(n_samples, users.sampled.shuffle_keys[epoch, user], space)
        for begin in range(0, n_samples, batch_size):
            mean_left *= MEAN_KEPT
            square_left *= SQUARE_KEPT
            size = np.float32(common.rate / (1.0 - mean_left))
            scale = np.float32(1.0 / math.sqrt(1.0 - square_left))
            batch = places[begin : begin + batch_size]
            loss += _take(batch, n_positives, vector, common.pull, size, scale, space, room)
    return loss / (n_samples * common.epochs)


@njit(**COMPILED)
def _train_part(part, parts, users, common, change, losses, clipped):
    """Train every `parts`-th user from `part` on. Return whether all values were finite."""
    sampled, items, active = users.sampled, common.items, common.active
    per_positive, scale, bound = (
        common.negatives_per_positive, np.float32(common.scale), np.float32(common.bound),
    )  # fmt: skip
    (n_items, dim), rows = items.shape, np.empty_like(items)
    opened = open_space(sampled.pointers, per_positive, n_items, dim)
    # Every item has its row already, as Adam moves all of them.
    opened.row_of[:] = np.arange(n_items)
    space = Space(
        opened.drawn, opened.words, opened.order, opened.heads, opened.row_of, opened.row_item, rows
    )
    room = _Room(
        np.empty_like(items),
        np.zeros((3, items.size), dtype=np.float32),
        np.zeros((3, dim), dtype=np.float32),
        open_step(n_items, dim, dim),
    )
    of_row, all_finite = np.empty(dim, dtype=np.float32), True
    for user in range(part, len(users.vectors), parts):
        n_positives = sampled.pointers[user + 1] - sampled.pointers[user]
        n_samples, _ = begin_user(user, sampled, per_positive, items, False, space)
        vector, table, anchor = users.vectors[user], users.tables[user], users.anchors[user]
        for item in range(n_items):
            row_at(rows, item)[:] = row_at(table, active[item])
            row_at(room.anchor, item)[:] = row_at(anchor, active[item])
        room.table[1:] = _ZERO
        room.vector[1:] = _ZERO
        losses[user] = _train_user(user, n_positives, n_samples, users, common, space, room)
        for item in range(n_items):
            row = row_at(rows, item)
            row_at(table, active[item])[:] = row
            users.scores[user, active[item]] = dots((vector,), (row,))[0]
        clipped[user], finite = hand_over_table(
            table, active, items, 1, scale, bound, of_row, change
        )
        all_finite = all_finite and finite and math.isfinite(losses[user])
        for c in range(dim):
            all_finite = all_finite and math.isfinite(vector[c])
    return all_finite
