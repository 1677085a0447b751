"""Compiled FedRAP: one user at a time, with all data of that user in the cache.

The rule is that of `fedrec.algorithms.fedrap`, on the rows of both tables that a user touches.
Untouched rows shrink as `fedrec.algorithms.whole_decay` describes. A table that a variant does not
have is a table of zeros that stays the same. Compiled functions carry no annotations: numba derives
the types from the call.
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
    in_steps,
    open_space,
    row_at,
    shuffled,
    train_in_parts,
)
from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.batch import Values
from fedrec.algorithms.optimisers import Sgd
from fedrec.algorithms.whole_decay import shrinking
from fedrec.compiling import COMPILED

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.fedrap import FedRAP
    from fedrec.algorithms.grid import RoundSums


_ITEMS, _OWN = "item_embedding", "own_embedding"
_ZERO = np.float32(0.0)


class FedRAPUsers(NamedTuple):
    """The users of a chunk with their private parameters.

    Attributes:
        heads: w, float32 (n_users, dim).
        biases: c, float32 (n_users,).
        tables: D, a row for each item of the catalogue, float32 (n_users, n_all_items, dim). Its
            first axis is empty if users have no tables.
    """

    sampled: Sampled
    heads: NDArray[np.float32]
    biases: NDArray[np.float32]
    tables: NDArray[np.float32]


class FedRAPRound(NamedTuple):
    """Values that all users of a round share.

    Attributes:
        items: C, float32 (n_active, dim).
        active: rows of the active items in the catalogue, int64 (n_active,).
        rate: step size of w and c.
        shared_rate, own_rate: step sizes of C and D. 0 for a table that the variant does not have.
        factor: the factor of step sizes after every minibatch.
        decay: L2 coefficient of all parameters.
        absolute, square, apart: weights of |C_i|, C_i^2 and (D_i - C_i)^2, summed over a row.
        shared_shrunk, own_shrunk: the relative change of untouched rows, by the number of steps of
            their user, float32. Empty if they stay the same.
        scale: grid steps per unit.
        bound: a user's largest absolute value, in grid steps.
    """

    items: NDArray[np.float32]
    active: NDArray[np.int64]
    rate: float
    shared_rate: float
    own_rate: float
    factor: float
    decay: float
    absolute: float
    square: float
    apart: float
    shared_shrunk: NDArray[np.float32]
    own_shrunk: NDArray[np.float32]
    epochs: int
    tolerance: float
    batch_size: int
    negatives_per_positive: int
    scale: float
    bound: float


def fit(
    algorithm: FedRAP,
    chunk: Chunk,
    start: RoundStart,
    private: dict[str, torch.Tensor],
    sums: RoundSums,
    *,
    threads: int,
) -> ChunkResult:
    """Train a chunk of users and add their changes. See `fedrec.training.trainer`."""
    import torch

    common, n_users = _round_of(algorithm, start, sums), chunk.n_users
    n_all, dim = algorithm.shapes.n_items, common.items.shape[1]
    users = FedRAPUsers(
        sampled=Sampled.of(
            chunk, seed=algorithm.shapes.seed, round_id=start.round, epochs=common.epochs
        ),
        heads=private["user_embedding"].numpy(),
        biases=private["user_bias"].numpy(),
        tables=private[_OWN].numpy() if _OWN in private else np.empty((0, n_all, dim), np.float32),
    )
    steps = np.zeros(n_users, dtype=np.int64)
    shapes = (common.items.shape, (len(common.items),))
    found = train_in_parts(_train_part, (users, common, steps), n_users, threads, shapes)
    if _ITEMS in sums.tensors:
        sums[_ITEMS].add_sums(torch.from_numpy(found.sums[0]), finite=found.finite)
        sums["users"].add_whole(torch.ones((n_users, 1)))
    if len(common.shared_shrunk) or len(common.own_shrunk):
        sums.add_steps(torch.from_numpy(steps))
    return found.result(private)


def _round_of(algorithm: FedRAP, start: RoundStart, sums: RoundSums) -> FedRAPRound:
    """Return the values that all users of a round share."""
    import torch

    settings, items = algorithm.settings, start.shared[_ITEMS]
    has_items = settings.tables != "private"
    (phase,) = algorithm.phases(start.scalars)
    (optimiser,) = phase.optimisers
    assert isinstance(optimiser, Sgd)
    scalars = {name: torch.tensor([value]) for name, value in start.scalars.items()}
    weight = float(algorithm.scheduled(Values(scalars))[0]) / settings.dim
    sparse = settings.sparsity_weight * weight if has_items else 0.0
    shrunk = {name: values.numpy() for name, values in shrinking(algorithm, start).items()}
    nothing = np.empty(0, dtype=np.float32)
    return FedRAPRound(
        items=items.numpy() if has_items else np.zeros(items.shape, np.float32),
        active=start.active.numpy(),
        rate=optimiser.rates["user_embedding"],
        shared_rate=optimiser.rates.get(_ITEMS, 0.0),
        own_rate=optimiser.rates.get(_OWN, 0.0),
        factor=optimiser.factor,
        decay=optimiser.decay,
        absolute=sparse if settings.sparsity == "l1" else 0.0,
        square=sparse if settings.sparsity == "l2" else 0.0,
        apart=settings.difference_weight * weight if settings.tables == "both" else 0.0,
        shared_shrunk=shrunk.get(_ITEMS, nothing),
        own_shrunk=shrunk.get(_OWN, nothing),
        epochs=phase.epochs,
        tolerance=phase.tolerance,
        batch_size=settings.batch_size,
        negatives_per_positive=settings.negatives_per_positive,
        scale=sums[_ITEMS].scale if has_items else 1.0,
        bound=sums[_ITEMS].bound if has_items else 1.0,
    )


class _Rates(NamedTuple):
    """Step sizes of a minibatch, and the shares that decay removes in it, float32."""

    head: np.float32
    shared: np.float32
    own: np.float32
    head_lost: np.float32
    shared_lost: np.float32
    own_lost: np.float32


class _Room(NamedTuple):
    """Work memory for a user.

    Attributes:
        own_rows: D of the rows that the user touches, float32 (n_rows, dim).
        shares: each row's share of the minibatch's samples, float32 (n_rows,).
        gradient: derivative with respect to w, float32 (dim,).
        terms: derivatives of a row's regularisers, float32 (dim,).
        ones: float32 (dim,).
    """

    own_rows: NDArray[np.float32]
    shares: NDArray[np.float32]
    gradient: NDArray[np.float32]
    terms: NDArray[np.float32]
    ones: NDArray[np.float32]


@njit(**COMPILED)
def _rates_of(common, slower):
    """Return the step sizes of a minibatch."""
    head, shared = common.rate * slower, common.shared_rate * slower
    own, decay = common.own_rate * slower, common.decay
    return _Rates(
        np.float32(head),
        np.float32(shared),
        np.float32(own),
        np.float32(head * decay),
        np.float32(shared * decay),
        np.float32(own * decay),
    )


@njit(**COMPILED)
def _count(batch, n_rows, space, room):
    """Write each row's share of a minibatch's samples."""
    shares, drawn, row_of = room.shares, space.drawn, space.row_of
    shares[:n_rows] = _ZERO
    for place in batch:
        shares[row_of[drawn[place]]] += np.float32(1.0)
    for row in range(n_rows):
        shares[row] /= np.float32(len(batch))


@njit(**COMPILED)
def _take(n_rows, n_positives, head, bias, rates, common, space, room):
    """Take one minibatch's simultaneous step in place. Return (new bias, loss before it)."""
    rows, own_rows, shares = space.rows, room.own_rows, room.shares
    gradient, terms, ones = room.gradient, room.terms, room.ones
    absolute, square = np.float32(common.absolute), np.float32(common.square)
    apart, dim = np.float32(common.apart), len(head)
    gradient[:] = _ZERO
    slope, loss = _ZERO, 0.0
    for row in range(n_rows):
        shared, own, share = row_at(rows, row), row_at(own_rows, row), shares[row]
        if share == _ZERO:
            for c in range(dim):
                shared[c] -= rates.shared_lost * shared[c]
                own[c] -= rates.own_lost * own[c]
            continue
        by_shared, by_own = dots((head,), (shared, own))
        error, part = error_of(by_shared + by_own + bias, row < n_positives)
        error *= share
        slope += error
        thin, small, away = share * absolute, 2 * share * square, 2 * share * apart
        for c in range(dim):
            gradient[c] += error * (shared[c] + own[c])
        for c in range(dim):
            value, gap = shared[c], own[c] - shared[c]
            size = abs(value)
            terms[c] = absolute * size + square * size * size - apart * gap * gap
            sign = np.float32(value > _ZERO) - np.float32(value < _ZERO)
            pull = error * head[c]
            moved = rates.shared * (pull + thin * sign + small * value + away * gap)
            shared[c] = value - moved - rates.shared_lost * value
            own[c] -= rates.own * (pull - away * gap) + rates.own_lost * own[c]
        loss += share * (part + dots((terms,), (ones,))[0])
    for c in range(dim):
        head[c] -= rates.head * gradient[c] + rates.head_lost * head[c]
    return bias - (rates.head * slope + rates.head_lost * bias), loss


@njit(**COMPILED)
def _take_back(n_rows, items, shrunk, scale, bound, space, change):
    """Subtract the change of a user's rows without steps: settling adds it to all rows."""
    for row in range(n_rows):
        item = space.row_item[row]
        before, total = row_at(items, item), row_at(change, item)
        for c in range(len(before)):
            total[c] -= np.int64(in_steps(before[c] * shrunk, scale, bound)[1])


@njit(**COMPILED)
def _train_user(user, n_positives, n_samples, n_rows, users, common, space, room):
    """Train a user's rows, head and bias in place. Return (mean loss, steps)."""
    head, bias = users.heads[user], users.biases[user]
    shuffle_keys, batch_size = users.sampled.shuffle_keys, common.batch_size
    total, mean, slower, n_steps = 0.0, 0.0, 1.0, 0
    _count(np.arange(n_samples), n_rows, space, room)
    for epoch in range(common.epochs):
        begin, loss = 0, 0.0
        if n_samples > batch_size:
            places = shuffled(n_samples, shuffle_keys[epoch, user], space)
        else:
            # One minibatch has all samples, in any order.
            places = space.order[:n_samples]
        while begin < n_samples:
            batch = places[begin : begin + batch_size]
            if n_samples > batch_size:
                _count(batch, n_rows, space, room)
            rates = _rates_of(common, slower)
            bias, part = _take(n_rows, n_positives, head, bias, rates, common, space, room)
            loss += part * len(batch) / n_samples
            slower *= common.factor
            n_steps += 1
            begin += batch_size
        total += loss
        last, mean = mean, total / (epoch + 1)
        stands = not abs(mean - last) >= common.tolerance * abs(last)
        if common.tolerance > 0.0 and epoch > 0 and stands:
            # Nothing moves from here on, and every further epoch has the same loss.
            _count(np.arange(n_samples), n_rows, space, room)
            still = _rates_of(common, 0.0)
            _, loss = _take(n_rows, n_positives, head, bias, still, common, space, room)
            total += loss * (common.epochs - epoch - 1)
            break
    users.biases[user] = bias
    return total / common.epochs, n_steps


@njit(**COMPILED)
def _train_part(part, parts, users, common, steps, change, counts, losses, clipped):
    """Train every `parts`-th user from `part` on. Return whether all values were finite."""
    sampled, items, active = users.sampled, common.items, common.active
    per_positive, has_own = common.negatives_per_positive, len(users.tables) > 0
    scale, bound = np.float32(common.scale), np.float32(common.bound)
    n_items, dim = items.shape
    space = open_space(sampled.pointers, per_positive, n_items, dim)
    room = _Room(
        np.zeros_like(space.rows),
        np.empty(len(space.rows), dtype=np.float32),
        np.empty(dim, dtype=np.float32),
        np.empty(dim, dtype=np.float32),
        np.ones(dim, dtype=np.float32),
    )
    all_finite = True
    for user in range(part, len(users.heads), parts):
        n_positives = sampled.pointers[user + 1] - sampled.pointers[user]
        n_samples, n_rows = begin_user(user, sampled, per_positive, items, False, space)
        row_item, own_rows = space.row_item, room.own_rows
        if has_own:
            table = users.tables[user]
            for row in range(n_rows):
                row_at(own_rows, row)[:] = row_at(table, active[row_item[row]])
        losses[user], steps[user] = _train_user(
            user, n_positives, n_samples, n_rows, users, common, space, room
        )
        if has_own:
            if len(common.own_shrunk):
                left = np.float32(1.0) + common.own_shrunk[steps[user]]
                for item in range(len(table)):
                    values = row_at(table, item)
                    for c in range(dim):
                        values[c] *= left
            for row in range(n_rows):
                row_at(table, active[row_item[row]])[:] = row_at(own_rows, row)
        clipped[user], finite = hand_over(
            n_rows, items, False, 1, scale, bound, space, change, counts
        )
        if len(common.shared_shrunk):
            shrunk = common.shared_shrunk[steps[user]]
            _take_back(n_rows, items, shrunk, scale, bound, space, change)
        all_finite = all_finite and finite and math.isfinite(losses[user])
    return all_finite
