"""Compiled GPFedRec: FedNCF's minibatches, on each user's own network and item table.

The rule is that of `fedrec.algorithms.gpfedrec`. A row that a user does not touch only goes its way
to the received one, which `fedrec.algorithms.whole_decay` computes from the number of steps.
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
    hand_over_table,
    open_space,
    row_at,
    shuffled,
    train_in_parts,
)
from fedrec.algorithms.accelerators.fedncf import (
    BLOCK,
    NetworkRates,
    open_layers,
    score_block,
    take,
    views_of,
    write_constant,
)
from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.gpfedrec import OWN, RECEIVED
from fedrec.algorithms.whole_decay import shrinking
from fedrec.compiling import COMPILED

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.gpfedrec import GPFedRec
    from fedrec.algorithms.grid import RoundSums


class GPFedRecUsers(NamedTuple):
    """The users of a chunk with their private parameters.

    Attributes:
        vectors: p, float32 (n_users, dim).
        networks: all layers end to end, weights before biases, float32 (n_users, n_values).
        tables: Q_u, a row for each item of the catalogue, float32 (n_users, n_all_items, dim).
        received: r_u, in the same shape.
        scores: scores of all items of the catalogue, float32 (n_users, n_all_items).
    """

    sampled: Sampled
    vectors: NDArray[np.float32]
    networks: NDArray[np.float32]
    tables: NDArray[np.float32]
    received: NDArray[np.float32]
    scores: NDArray[np.float32]


class GPFedRecRound(NamedTuple):
    """Values that all users of a round share.

    Attributes:
        items: Q_g, float32 (n_active, dim).
        active: rows of the active items in the catalogue, int64 (n_active,).
        rates: the step sizes, and the share of its way that a row goes in a minibatch.
        shrunk: the relative change of the rest of that way, by the number of steps, float32.
        scale: grid steps per unit.
        bound: a user's largest absolute value, in grid steps.
    """

    items: NDArray[np.float32]
    active: NDArray[np.int64]
    rates: NetworkRates
    shrunk: NDArray[np.float32]
    epochs: int
    batch_size: int
    negatives_per_positive: int
    scale: float
    bound: float


def fit(
    algorithm: GPFedRec,
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
    own = [entry.name for entry in algorithm.parameters if entry.scope == "own"]
    layers = {name: private[name] for name in own if name != "user_embedding"}
    rate = settings.learning_rate
    users = GPFedRecUsers(
        sampled=Sampled.of(
            chunk, seed=algorithm.shapes.seed, round_id=start.round, epochs=settings.local_epochs
        ),
        vectors=private["user_embedding"].numpy(),
        networks=torch.cat([values.flatten(1) for values in layers.values()], 1).numpy(),
        tables=private[OWN].numpy(),
        received=private[RECEIVED].numpy(),
        scores=private[algorithm.kept_scores].numpy(),
    )
    common = GPFedRecRound(
        items=start.shared["item_embedding"].numpy(),
        active=start.active.numpy(),
        rates=NetworkRates(
            *map(np.float32, (rate, rate * settings.user_rate_scale, algorithm.item_rate)),
            *map(np.float32, (0.0, 0.0, algorithm.item_rate * algorithm.decay)),
        ),
        shrunk=shrinking(algorithm, start)[OWN].numpy(),
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
    networks = torch.from_numpy(users.networks)
    sizes = [values[0].numel() for values in layers.values()]
    for values, part in zip(layers.values(), networks.split(sizes, 1), strict=True):
        values.copy_(part.view_as(values))
    return found.result(private)


@njit(**COMPILED)
def _score_all(scores, table, active, vector, network, layers):
    """Write the scores of all active items, a block at a time."""
    views, block, dim = views_of(network, len(vector)), layers.blocks[0], len(vector)
    write_constant(vector, views, layers.constant)
    for begin in range(0, len(active), BLOCK):
        part = active[begin : begin + BLOCK]
        for place in range(len(part)):
            row = row_at(table, part[place])
            for c in range(dim):
                block[c, place] = row[c]
        score_block(block, views, layers)
        for place in range(len(part)):
            scores[part[place]] = layers.errors[0, place]


@njit(**COMPILED)
def _finish_table(table, received, shrunk, n_rows, common, space):
    """Write Q_u: untouched rows on their way to the received ones, and the rows that trained."""
    items, active, kept = common.items, common.active, np.float32(1.0) + shrunk
    for item in range(len(active)):
        row_at(table, active[item])[:] = row_at(items, item)
    for item in range(len(table)):
        own, goal = row_at(table, item), row_at(received, item)
        for c in range(len(own)):
            own[c] = (own[c] - goal[c]) * kept + goal[c]
    for row in range(n_rows):
        item = space.row_item[row]
        space.row_of[item] = -1
        row_at(table, active[item])[:] = row_at(space.rows, row)


@njit(**COMPILED)
def _train_part(part, parts, users, common, change, losses, clipped):
    """Train every `parts`-th user from `part` on. Return whether all values were finite."""
    sampled, items, active = users.sampled, common.items, common.active
    per_positive, batch_size = common.negatives_per_positive, common.batch_size
    scale, bound = np.float32(common.scale), np.float32(common.bound)
    n_items, dim = items.shape
    space = open_space(sampled.pointers, per_positive, n_items, dim)
    network, ones = np.empty_like(users.networks[0]), np.ones(BLOCK, dtype=np.float32)
    layers, room = open_layers(batch_size, space, network), np.empty(dim, dtype=np.float32)
    goals, all_finite = np.empty_like(space.rows), True
    for user in range(part, len(users.vectors), parts):
        n_positives = sampled.pointers[user + 1] - sampled.pointers[user]
        n_samples, n_rows = begin_user(user, sampled, per_positive, items, False, space)
        vector, rows = users.vectors[user], space.rows[:n_rows]
        table, received = users.tables[user], users.received[user]
        network[:] = users.networks[user]
        for row in range(n_rows):
            row_at(goals, row)[:] = row_at(received, active[space.row_item[row]])
        loss, n_steps = 0.0, 0
        for epoch in range(common.epochs):
            places = shuffled(n_samples, sampled.shuffle_keys[epoch, user], space)
            for begin in range(0, n_samples, batch_size):
                loss += take(
                    places[begin : begin + batch_size], n_positives, rows, goals, vector, network,
                    common.rates, layers, ones, space,
                )  # fmt: skip
                n_steps += 1
        losses[user] = loss / (n_samples * common.epochs)
        users.networks[user, :] = network
        _finish_table(table, received, common.shrunk[n_steps], n_rows, common, space)
        _score_all(users.scores[user], table, active, vector, network, layers)
        clipped[user], finite = hand_over_table(table, active, items, 1, scale, bound, room, change)
        all_finite = all_finite and finite and math.isfinite(loss)
    return all_finite
