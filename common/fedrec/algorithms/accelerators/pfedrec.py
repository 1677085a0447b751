"""Compiled PFedRec: one user at a time, with all data of that user in the cache.

The rule is that of `fedrec.algorithms.pfedrec`, with a copy of the rows that a user touches.
Compiled functions carry no annotations: numba derives the types from the call.
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

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums
    from fedrec.algorithms.pfedrec import PFedRec


class PFedRecUsers(NamedTuple):
    """The users of a chunk with their private parameters."""

    sampled: Sampled
    heads: NDArray[np.float32]
    biases: NDArray[np.float32]


class PFedRecRound(NamedTuple):
    """Values that all users of a round share.

    Attributes:
        items: E, float32 (n_active, dim).
        scale: grid steps per unit.
        bound: a user's largest absolute value, in grid steps.
        personal: whether to compute users' scores of all items.
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


def fit(
    algorithm: PFedRec,
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
    items, n_users = start.shared["item_embedding"].numpy(), chunk.n_users
    personal = settings.personal_items
    users = PFedRecUsers(
        sampled=Sampled.of(
            chunk, seed=algorithm.shapes.seed, round_id=start.round, epochs=settings.local_epochs
        ),
        heads=private["user_embedding"].numpy().copy(),
        biases=private["user_bias"].numpy().copy(),
    )
    common = PFedRecRound(
        items=items,
        rate=settings.learning_rate,
        item_rate=algorithm.item_rate,
        epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        negatives_per_positive=settings.negatives_per_positive,
        scale=total.scale,
        bound=total.bound,
        personal=personal,
    )
    scores = np.zeros((n_users, len(items) if personal else 0), dtype=np.float32)
    shapes = (items.shape, (len(items),))
    found = train_in_parts(_train_part, (users, common, scores), n_users, threads, shapes)
    total.add_sums(torch.from_numpy(found.sums[0]), finite=found.finite)
    sums["users"].add_whole(torch.ones((n_users, 1)))
    trained = {
        "user_embedding": torch.from_numpy(users.heads),
        "user_bias": torch.from_numpy(users.biases),
    }
    if personal:
        trained[algorithm.kept_scores] = private[algorithm.kept_scores].index_copy(
            1, start.active, torch.from_numpy(scores)
        )
    return found.result(trained)


@njit(**COMPILED)
def move_head(places, n_positives, head, bias, rate, gradient, space):
    """Take step (i) of a minibatch in place. Return (new bias, loss before it)."""
    loss, slope = 0.0, np.float32(0.0)
    gradient[:] = 0.0
    drawn, row_of, rows = space.drawn, space.row_of, space.rows
    for place in places:
        row = row_at(rows, row_of[drawn[place]])
        score = dots((head,), (row,))[0] + bias
        error, part = error_of(score, place < n_positives)
        loss += part
        slope += error
        for c in range(len(head)):
            gradient[c] += error * row[c]
    size = np.float32(len(places))
    for c in range(len(head)):
        head[c] -= rate * (gradient[c] / size)
    return bias - rate * (slope / size), loss


@njit(**COMPILED)
def move_rows(places, n_positives, head, bias, item_rate, errors, space):
    """Take step (ii) of a minibatch: the errors of all rows first, then the rows."""
    drawn, row_of, rows = space.drawn, space.row_of, space.rows
    for place in places:
        row = row_of[drawn[place]]
        score = dots((head,), (row_at(rows, row),))[0] + bias
        errors[row] += error_of(score, place < n_positives)[0]
    step = item_rate / np.float32(len(places))
    for place in places:
        row = row_of[drawn[place]]
        moved = step * errors[row]
        # Zero after the first occurrence, which moves the row for all occurrences.
        errors[row] = 0.0
        if moved != 0.0:
            values = row_at(rows, row)
            for c in range(len(head)):
                values[c] -= moved * head[c]


@njit(**COMPILED)
def _score_all(scores, items, n_rows, head, bias, space):
    """Write the scores of all items, with the user's own rows if it has them."""
    for item in range(len(items)):
        scores[item] = dots((head,), (row_at(items, item),))[0] + bias
    rows, row_item = space.rows, space.row_item
    for row in range(n_rows):
        scores[row_item[row]] = dots((head,), (row_at(rows, row),))[0] + bias


@njit(**COMPILED)
def _train_part(part, parts, users, common, scores, change, counts, losses, clipped):
    """Train every `parts`-th user from `part` on. Return whether all values were finite."""
    sampled, items, per_positive = users.sampled, common.items, common.negatives_per_positive
    rate, item_rate = np.float32(common.rate), np.float32(common.item_rate)
    scale, bound = np.float32(common.scale), np.float32(common.bound)
    dim = items.shape[1]
    space = open_space(sampled.pointers, per_positive, len(items), dim)
    errors = np.zeros(len(space.rows), dtype=np.float32)
    gradient = np.empty(dim, dtype=np.float32)
    all_finite = True
    for user in range(part, len(users.heads), parts):
        n_positives = sampled.pointers[user + 1] - sampled.pointers[user]
        n_samples, n_rows = begin_user(user, sampled, per_positive, items, False, space)
        head, bias = users.heads[user], users.biases[user]
        loss = 0.0
        for epoch in range(common.epochs):
            places = shuffled(n_samples, sampled.shuffle_keys[epoch, user], space)
            for start in range(0, n_samples, common.batch_size):
                batch = places[start : start + common.batch_size]
                bias, part_loss = move_head(batch, n_positives, head, bias, rate, gradient, space)
                loss += part_loss
                move_rows(batch, n_positives, head, bias, item_rate, errors, space)
        users.biases[user] = bias
        losses[user] = loss / (n_samples * common.epochs)
        if common.personal:
            _score_all(scores[user], items, n_rows, head, bias, space)
        clipped[user], finite = hand_over(
            n_rows, items, False, 1, scale, bound, space, change, counts
        )
        all_finite = all_finite and finite and math.isfinite(bias)
        for c in range(dim):
            all_finite = all_finite and math.isfinite(head[c])
    return all_finite
