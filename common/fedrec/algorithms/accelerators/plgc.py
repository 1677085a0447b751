"""Compiled mixing of PLGC over FedMF: FedMF's own minibatches, on each user's mixture of tables.

With l and G constant in an epoch, Q = l C + (1 - l) G moves by l times the move of C, and dL/dC is
l dL/dQ. So an epoch of C is an epoch of FedMF whose rows begin as Q and move l^2 times as fast.
After it, C has moved by 1 / l times the move of Q, including its rounding. This file adds the rest:
mixtures, norms of whole tables, and scores.
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
    hand_over,
    hand_over_table,
    open_space,
    row_at,
    shuffled,
    train_in_parts,
)
from fedrec.algorithms.accelerators.fedmf import open_step, round_of, take_minibatch
from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.fedmf import FedMF
from fedrec.algorithms.optimisers import Sgd
from fedrec.algorithms.sent import MOST_SAMPLES
from fedrec.compiling import COMPILED

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums
    from fedrec.algorithms.plgc import PLGC


_ITEMS = "item_embedding"


class PLGCUsers(NamedTuple):
    """The users of a chunk with their private parameters.

    Attributes:
        vectors: p, float32 (n_users, dim).
        tables: C, a row for each item of the catalogue, float32 (n_users, n_all_items, dim).
        begun: 0 for users whose C begins as G in this round, float32 (n_users,).
        scores: scores of all items of the catalogue, float32 (n_users, n_all_items).
        weights: the multiplicity of a user's change in the sum, int64 (n_users,).
    """

    sampled: Sampled
    vectors: NDArray[np.float32]
    tables: NDArray[np.float32]
    begun: NDArray[np.float32]
    scores: NDArray[np.float32]
    weights: NDArray[np.int64]


class Mixing(NamedTuple):
    """Values that users share in addition to FedMF's round.

    Attributes:
        active: rows of the active items in the catalogue, int64 (n_active,).
        factor: the factor of step sizes after every minibatch.
        whole: whether users contribute all of C - G, and not the move of C.
    """

    active: NDArray[np.int64]
    factor: float
    whole: bool


def fit(
    algorithm: PLGC,
    chunk: Chunk,
    start: RoundStart,
    private: dict[str, torch.Tensor],
    sums: RoundSums,
    *,
    threads: int,
) -> ChunkResult:
    """Train a chunk of users and add their changes. See `fedrec.training.trainer`."""
    import torch

    base, total, own = algorithm.base, sums[_ITEMS], algorithm.own_tables[_ITEMS]
    assert isinstance(base, FedMF)
    common = round_of(base, start, total)
    (phase,) = algorithm.phases(start.scalars)
    (optimiser,) = phase.optimisers
    assert isinstance(optimiser, Sgd)
    mixing = Mixing(
        active=start.active.numpy(),
        factor=optimiser.factor,
        whole=algorithm.settings.upload == "table",
    )
    users = PLGCUsers(
        sampled=Sampled.of(
            chunk, seed=algorithm.shapes.seed, round_id=start.round, epochs=common.epochs
        ),
        vectors=private["user_embedding"].numpy(),
        tables=private[own].numpy(),
        begun=private["begun"].numpy(),
        scores=private[algorithm.kept_scores].numpy(),
        weights=np.minimum(np.diff(chunk.pointers.numpy()), MOST_SAMPLES),
    )
    shapes = (common.items.shape, (len(common.items),))
    found = train_in_parts(_train_part, (users, common, mixing), chunk.n_users, threads, shapes)
    total.add_sums(torch.from_numpy(found.sums[0]), finite=found.finite)
    sums["samples"].add_sums(torch.from_numpy(users.weights.sum(keepdims=True)), finite=True)
    users.begun[:] = 1.0
    return found.result(private)


@njit(**COMPILED)
def _square(table, rows):
    """Return the squared norm of some of a table's rows."""
    total = 0.0
    for row in rows:
        values = row_at(table, row)
        total += dots((values,), (values,))[0]
    return total


@njit(**COMPILED)
def _untouched(table, active, row_of):
    """Return the squared norm of the active rows that a user does not touch."""
    total = 0.0
    for item in range(len(active)):
        if row_of[item] < 0:
            values = row_at(table, active[item])
            total += dots((values,), (values,))[0]
    return total


@njit(**COMPILED)
def _mix(mixed, table, where, row_item, items, share):
    """Write Q for the rows that a user touches."""
    for row in range(len(where)):
        values, own = row_at(mixed, row), row_at(table, where[row])
        version = row_at(items, row_item[row])
        for c in range(len(values)):
            values[c] = version[c] + share * (own[c] - version[c])


@njit(**COMPILED)
def _unmix(mixed, table, where, row_item, items, share):
    """Move C by the move of Q since it was mixed."""
    for row in range(len(where)):
        values, own = row_at(mixed, row), row_at(table, where[row])
        version = row_at(items, row_item[row])
        for c in range(len(values)):
            begun = version[c] + share * (own[c] - version[c])
            own[c] += (values[c] - begun) / share


@njit(**COMPILED)
def _score_all(scores, vector, table, active, items, share):
    """Write the scores of all active items with Q."""
    for item in range(len(active)):
        by_version, by_own = dots((vector,), (row_at(items, item), row_at(table, active[item])))
        scores[active[item]] = by_version + share * (by_own - by_version)


@njit(**COMPILED)
def _train_part(part, parts, users, common, mixing, change, counts, losses, clipped):
    """Train every `parts`-th user from `part` on. Return whether all values were finite."""
    sampled, items, active = users.sampled, common.items, mixing.active
    per_positive, batch_size = common.negatives_per_positive, common.batch_size
    scale, bound = np.float32(common.scale), np.float32(common.bound)
    n_items, dim = items.shape
    pull = np.float32(2.0) * np.float32(common.gamma)
    space = open_space(sampled.pointers, per_positive, n_items, dim)
    step = open_step(len(space.rows), dim, dim)
    before, room = np.empty_like(space.rows), np.empty(dim, dtype=np.float32)
    version_square, all_finite = _square(items, np.arange(n_items)), True
    for user in range(part, len(users.vectors), parts):
        n_positives = sampled.pointers[user + 1] - sampled.pointers[user]
        # Rows are mixed before each epoch, so their first values do not matter.
        n_samples, n_rows = begin_user(user, sampled, per_positive, items, True, space)
        vector, table, weight = users.vectors[user], users.tables[user], users.weights[user]
        row_item, mixed = space.row_item[:n_rows], space.rows[:n_rows]
        where = active[row_item]
        if users.begun[user] == 0.0:
            for item in range(n_items):
                row_at(table, active[item])[:] = row_at(items, item)
        for row in range(n_rows):
            row_at(before, row)[:] = row_at(table, where[row])
        untouched = _untouched(table, active, space.row_of)
        loss, slower = 0.0, 1.0
        for epoch in range(common.epochs + 1):
            square = untouched + _square(table, where)
            share = np.float32(square / (square + version_square))
            if epoch == common.epochs:
                break
            places = shuffled(n_samples, sampled.shuffle_keys[epoch, user], space)
            _mix(mixed, table, where, row_item, items, share)
            for start in range(0, n_samples, batch_size):
                batch, rate = places[start : start + batch_size], common.rate * slower
                step.rates[:] = np.float32(rate) * share * share
                loss += take_minibatch(
                    batch, n_positives, vector, np.float32(rate), pull, common, space, step
                )
                slower *= mixing.factor
            if share > 0.0:
                _unmix(mixed, table, where, row_item, items, share)
        losses[user] = loss / (n_samples * common.epochs)
        _score_all(users.scores[user], vector, table, active, items, share)
        for row in range(n_rows):
            values, own, begun = row_at(mixed, row), row_at(table, where[row]), row_at(before, row)
            for c in range(dim):
                values[c] = 0.0 if mixing.whole else own[c] - begun[c]
        clipped[user], finite = hand_over(
            n_rows, items, True, weight, scale, bound, space, change, counts
        )
        if mixing.whole:
            clipped[user], finite = hand_over_table(
                table, active, items, weight, scale, bound, room, change
            )
        all_finite = all_finite and finite and math.isfinite(loss)
    return all_finite
