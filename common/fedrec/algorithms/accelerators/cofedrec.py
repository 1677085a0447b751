"""Compiled CoFedRec: PFedRec's two steps, with the contrast of a minibatch's items in the second.

The rule is that of `fedrec.algorithms.cofedrec`. With n items in the minibatch, of which m_i others
are in the cluster of i (the set P_i), the contrast's derivative in closed form is

    dL_sup / dz_i = 1 / (.5 n) sum over j of h_ij z_j

    h_ij = e_ij (b_i + b_j) - 2 [j in P_i] / (m_i + 1e-6),    h_ii = 0

    e_ij = exp((z_i z_j - 1) / tau),    b_i = m_i / (m_i + 1e-6) / sum over j != i of e_ij

No cosine exceeds 1, so the same number is taken from all exponents, and e is symmetric. e and h are
tables of n x `BLOCK` items, and both products FedNCF's. Compiled functions carry no annotations:
numba derives the types from the call.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedrec.algorithms.accelerators.compiled import (
    Sampled,
    begin_user,
    dots,
    fused,
    hand_over_table,
    open_space,
    row_at,
    shuffled,
    train_in_parts,
)
from fedrec.algorithms.accelerators.fedncf import BLOCK, add_product
from fedrec.algorithms.accelerators.pfedrec import move_head, move_rows
from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.cofedrec import LABELS, OWN
from fedrec.compiling import COMPILED

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cofedrec import CoFedRec
    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums

_ZERO, _ONE, _TWO, _FEW = map(np.float32, (0.0, 1.0, 2.0, 1e-6))
_SHORTEST = 1e-10
"""A shorter row counts as this long, as in `fedrec.algorithms.batch.lengths`."""
_0, _1, _2, _3, _4, _5, _6 = (np.float32(math.log(2) ** k / math.factorial(k)) for k in range(7))
"""The series of 2^x, which is exact to 2e-7 within +-1/2."""


class CoFedRecUsers(NamedTuple):
    """The users of a chunk with their private parameters.

    Attributes:
        heads: w, float32 (n_users, dim).
        biases: c, float32 (n_users,).
        tables: Q, a row for each item of the catalogue, float32 (n_users, n_all_items, dim).
    """

    sampled: Sampled
    heads: NDArray[np.float32]
    biases: NDArray[np.float32]
    tables: NDArray[np.float32]


class CoFedRecRound(NamedTuple):
    """Values that all users of a round share.

    Attributes:
        items: G, float32 (n_active, dim).
        labels: clusters of items, less than 0 for none, float32 (n_active,).
        active: rows of the active items in the catalogue, int64 (n_active,).
        weight: mu, or 0 if no item has a cluster.
        sharpness: 1 / (tau log 2), which makes powers of 2 of the exponentials.
        scale: grid steps per unit.
        bound: a user's largest absolute value, in grid steps.
    """

    items: NDArray[np.float32]
    labels: NDArray[np.float32]
    active: NDArray[np.int64]
    rate: np.float32
    item_rate: np.float32
    weight: np.float32
    sharpness: np.float32
    epochs: int
    batch_size: int
    negatives_per_positive: int
    scale: float
    bound: float


def fit(
    algorithm: CoFedRec,
    chunk: Chunk,
    start: RoundStart,
    private: dict[str, torch.Tensor],
    sums: RoundSums,
    *,
    threads: int,
) -> ChunkResult:
    """Train a chunk of users and add their changes. See `fedrec.training.trainer`."""
    import torch

    settings, total, labels = algorithm.settings, sums["item_embedding"], start.shared[LABELS]
    users = CoFedRecUsers(
        sampled=Sampled.of(
            chunk, seed=algorithm.shapes.seed, round_id=start.round, epochs=settings.local_epochs
        ),
        heads=private["user_embedding"].numpy(),
        biases=private["user_bias"].numpy(),
        tables=private[OWN].numpy(),
    )
    common = CoFedRecRound(
        items=start.shared["item_embedding"].numpy(),
        labels=labels.numpy(),
        active=start.active.numpy(),
        rate=np.float32(settings.learning_rate),
        item_rate=np.float32(algorithm.item_rate),
        weight=np.float32(settings.weight if (labels >= 0).any() else 0.0),
        sharpness=np.float32(1.0 / (settings.temperature * math.log(2))),
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
    """Work memory for the n distinct items of a minibatch, by their places.

    Places after the last item, up to a whole block, have directions of zeros and change nothing.

    Attributes:
        is_there: whether a row of the user has a place. False between minibatches.
        row: the row of each place, int64.
        length: |q|, float32.
        unit: z, float32 (n_places, dim).
        columns: z as columns, float32 (n_blocks, dim, BLOCK).
        label: clusters, each item without one in its own, float32 (n_blocks, BLOCK).
        alike: e, then h, float32 (n_blocks, n_places, BLOCK).
        total: the sum of e, then b, float32 (n_blocks, BLOCK).
        same: m, then 2 / (m + 1e-6), float32 (n_blocks, BLOCK).
        slope: the sum over j of h_ij z_j as columns, float32 (n_blocks, dim, BLOCK).
    """

    is_there: NDArray[np.bool_]
    row: NDArray[np.int64]
    length: NDArray[np.float32]
    unit: NDArray[np.float32]
    columns: NDArray[np.float32]
    label: NDArray[np.float32]
    alike: NDArray[np.float32]
    total: NDArray[np.float32]
    same: NDArray[np.float32]
    slope: NDArray[np.float32]


@njit(**COMPILED)
def _open_room(batch_size, space):
    """Return work memory for a minibatch."""
    n_rows, dim = space.rows.shape
    blocks = -(-min(batch_size, n_rows) // BLOCK)
    places = blocks * BLOCK
    return _Room(
        np.zeros(n_rows, dtype=np.bool_),
        np.empty(places, dtype=np.int64),
        np.empty(places, dtype=np.float32),
        np.empty((places, dim), dtype=np.float32),
        np.empty((blocks, dim, BLOCK), dtype=np.float32),
        np.empty((blocks, BLOCK), dtype=np.float32),
        np.empty((blocks, places, BLOCK), dtype=np.float32),
        np.empty((blocks, BLOCK), dtype=np.float32),
        np.empty((blocks, BLOCK), dtype=np.float32),
        np.empty((blocks, dim, BLOCK), dtype=np.float32),
    )


@intrinsic
def _two_to(typing_context, exponent):
    """Return 2^k for an int32 k from -126 to 127."""

    def generate(context, builder, signature, values):
        kind = ir.IntType(32)
        biased = builder.add(values[0], kind(127))
        return builder.bitcast(builder.shl(biased, kind(23)), ir.FloatType())

    return types.float32(types.int32), generate


@njit(**COMPILED)
def _find_items(batch, labels, space, room):
    """Give each distinct item of the minibatch a place with its direction. Return their number."""
    n = 0
    for sample in batch:
        item = space.drawn[sample]
        row = space.row_of[item]
        if room.is_there[row]:
            continue
        room.is_there[row], room.row[n] = True, row
        values, unit = row_at(space.rows, row), row_at(room.unit, n)
        room.length[n] = max(math.sqrt(dots((values,), (values,))[0]), _SHORTEST)
        block, place = n // BLOCK, n % BLOCK
        for c in range(len(unit)):
            unit[c] = values[c] / room.length[n]
            room.columns[block, c, place] = unit[c]
        room.label[block, place] = labels[item] if labels[item] >= _ZERO else -_ONE - n
        n += 1
    for place in range(n):
        room.is_there[room.row[place]] = False
    if n % BLOCK:
        room.columns[n // BLOCK, :, n % BLOCK :] = _ZERO
        room.label[n // BLOCK, n % BLOCK :] = -_ONE - n
    return n


# Under Python's rules, a check before each division would keep the loop from vector units.
@njit(error_model="numpy", **COMPILED)
def _exponentials(alike, sharpness):
    """Write e for a block's cosines."""
    for k in range(BLOCK):
        exponent = fused(alike[k], sharpness, -sharpness)
        whole = np.rint(exponent)
        x = exponent - whole
        power = fused(x, fused(x, fused(x, _6, _5), _4), _3)
        power = fused(x, fused(x, fused(x, power, _2), _1), _0)
        alike[k] = power * _two_to(np.int32(whole))


@njit(**COMPILED)
def _count(alike, labels, label, total, same):
    """Add the e of an item to the block's sums, and the item to those of its cluster."""
    for k in range(BLOCK):
        total[k] += alike[k]
        same[k] += _ONE if labels[k] == label else _ZERO


@njit(**COMPILED)
def _weigh(alike, labels, label, factor, factors, shares):
    """Write an item's h in place of its e."""
    for k in range(BLOCK):
        share = shares[k] if labels[k] == label else _ZERO
        alike[k] = alike[k] * (factor + factors[k]) - share


@njit(error_model="numpy", **COMPILED)
def _factors(total, same):
    """Write b and 2 / (m + 1e-6) of a block in place of its sums, which count the item itself."""
    for k in range(BLOCK):
        others = same[k] - _ONE
        total[k] = others / (others + _FEW) / total[k]
        same[k] = _TWO / (others + _FEW)


@njit(**COMPILED)
def _contrast(n, sharpness, room):
    """Write the slopes of all items."""
    blocks, unit = -(-n // BLOCK), room.unit[:n]
    for block in range(blocks):
        alike, labels = room.alike[block][:n], room.label[block]
        total, same = room.total[block], room.same[block]
        alike[:], total[:], same[:] = _ZERO, _ZERO, _ZERO
        add_product(alike, unit, room.columns[block])
        for place in range(n):
            found = row_at(alike, place)
            _exponentials(found, sharpness)
            if place // BLOCK == block:
                found[place % BLOCK] = _ZERO
            _count(found, labels, room.label[place // BLOCK, place % BLOCK], total, same)
    for block in range(blocks):
        _factors(room.total[block], room.same[block])
    for block in range(blocks):
        alike, labels, slope = room.alike[block][:n], room.label[block], room.slope[block]
        factors, shares = room.total[block], room.same[block]
        for place in range(n):
            other, at = place // BLOCK, place % BLOCK
            found = row_at(alike, place)
            _weigh(found, labels, room.label[other, at], room.total[other, at], factors, shares)
            if other == block:
                found[at] = _ZERO
        slope[:] = _ZERO
        add_product(slope, unit.T, alike)


@njit(**COMPILED)
def _move_by_slopes(n, step, space, room):
    """Move the rows by the contrast, of which only the part across a row counts."""
    for place in range(n):
        values, unit = row_at(space.rows, room.row[place]), row_at(room.unit, place)
        slope, at, along = room.slope[place // BLOCK], place % BLOCK, _ZERO
        if room.length[place] > _SHORTEST:
            for c in range(len(unit)):
                along += slope[c, at] * unit[c]
        size = step / room.length[place]
        for c in range(len(unit)):
            values[c] -= size * (slope[c, at] - along * unit[c])


@njit(**COMPILED)
def _train_user(user, n_positives, n_samples, users, common, gradient, errors, space, room):
    """Train a user's rows and head in place. Return the mean loss."""
    head, bias, loss = users.heads[user], users.biases[user], 0.0
    rate, item_rate = common.rate, common.item_rate
    for epoch in range(common.epochs):
        places = shuffled(n_samples, users.sampled.shuffle_keys[epoch, user], space)
        for begin in range(0, n_samples, common.batch_size):
            batch, n = places[begin : begin + common.batch_size], 0
            bias, part = move_head(batch, n_positives, head, bias, rate, gradient, space)
            loss += part
            if common.weight > _ZERO:
                n = _find_items(batch, common.labels, space, room)
            if n > 1:
                _contrast(n, common.sharpness, room)
            move_rows(batch, n_positives, head, bias, item_rate, errors, space)
            if n > 1:
                _move_by_slopes(n, _TWO * item_rate * common.weight / np.float32(n), space, room)
    users.biases[user] = bias
    return loss / (n_samples * common.epochs)


@njit(**COMPILED)
def _train_part(part, parts, users, common, change, losses, clipped):
    """Train every `parts`-th user from `part` on. Return whether all values were finite."""
    sampled, items, active = users.sampled, common.items, common.active
    per_positive, scale, bound = (
        common.negatives_per_positive, np.float32(common.scale), np.float32(common.bound),
    )  # fmt: skip
    n_items, dim = items.shape
    space = open_space(sampled.pointers, per_positive, n_items, dim)
    room, errors = _open_room(common.batch_size, space), np.zeros(len(space.rows), dtype=np.float32)
    gradient, of_row = np.empty(dim, dtype=np.float32), np.empty(dim, dtype=np.float32)
    all_finite = True
    for user in range(part, len(users.heads), parts):
        n_positives = sampled.pointers[user + 1] - sampled.pointers[user]
        n_samples, n_rows = begin_user(user, sampled, per_positive, items, True, space)
        table, head = users.tables[user], users.heads[user]
        for row in range(n_rows):
            row_at(space.rows, row)[:] = row_at(table, active[space.row_item[row]])
        losses[user] = _train_user(
            user, n_positives, n_samples, users, common, gradient, errors, space, room
        )
        for row in range(n_rows):
            item = space.row_item[row]
            space.row_of[item] = -1
            row_at(table, active[item])[:] = row_at(space.rows, row)
        clipped[user], finite = hand_over_table(
            table, active, items, 1, scale, bound, of_row, change
        )
        all_finite = all_finite and finite and math.isfinite(losses[user])
        for c in range(dim):
            all_finite = all_finite and math.isfinite(head[c])
    return all_finite
