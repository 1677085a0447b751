"""Compiled FedNCF with plain gradient descent: one user at a time, with all its data in the cache.

The rule is that of `fedrec.algorithms.fedncf`. A minibatch passes through the network in blocks of
64 samples, which stay in the processor's first cache with all their values. A layer's units are a
table of units x samples, so each innermost loop runs over the samples. Places of a block after the
minibatch's end have rows of zeros and no error. A network and its gradient are one flat array each,
layer after layer, weights before biases. Compiled functions carry no annotations: numba derives the
types from the call.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedrec.algorithms.accelerators.compiled import (
    Sampled,
    add_row,
    begin_user,
    dots,
    error_of,
    fused,
    hand_over,
    open_space,
    row_at,
    shuffled,
    train_in_parts,
)
from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.sent import MOST_SAMPLES
from fedrec.compiling import COMPILED

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.fedncf import FedNCF
    from fedrec.algorithms.grid import RoundSums


BLOCK = 64
_FIRST, _SECOND, _THIRD = 32, 16, 8
"""Units of the layers, as in `fedncf.UNITS`. Constants let the compiler unroll."""
_ZERO = np.float32(0.0)


class FedNCFUsers(NamedTuple):
    """The users of a chunk with their private parameters.

    Attributes:
        vectors: p, float32 (n_users, dim).
        weights: the multiplicity of a user's network in the sum, int64 (n_users,).
    """

    sampled: Sampled
    vectors: NDArray[np.float32]
    weights: NDArray[np.int64]


class FedNCFRound(NamedTuple):
    """Values that all users of a round share.

    Attributes:
        items: Q, float32 (n_active, dim).
        network: all layers end to end, weights before biases, float32.
        decay: L2 coefficient of network, users and rows.
        scale: grid steps per unit of a row.
        bound: a user's largest absolute value of a row, in grid steps.
        network_scale: grid steps per unit of the network.
        network_bound: a user's largest absolute value of the network before weighting, in grid
            steps.
    """

    items: NDArray[np.float32]
    network: NDArray[np.float32]
    rate: float
    user_rate: float
    item_rate: float
    decay: float
    epochs: int
    batch_size: int
    negatives_per_positive: int
    scale: float
    bound: float
    network_scale: float
    network_bound: float


def fit(
    algorithm: FedNCF,
    chunk: Chunk,
    start: RoundStart,
    private: dict[str, torch.Tensor],
    sums: RoundSums,
    *,
    threads: int,
) -> ChunkResult:
    """Train a chunk of users and add their changes. See `fedrec.training.trainer`."""
    import torch

    settings, rows = algorithm.settings, sums["item_embedding"]
    names = [entry.name for entry in algorithm.parameters if entry.scope == "net"]
    layers = [start.shared[name].reshape(-1) for name in names]
    # The network's tensors have one step and one bound.
    own_networks, rates = sums[names[0]], algorithm.rates
    weights = np.ones(chunk.n_users, dtype=np.int64)
    if "samples" in algorithm.sent.divisors:
        weights = np.minimum(np.diff(chunk.pointers.numpy()), MOST_SAMPLES)
    users = FedNCFUsers(
        sampled=Sampled.of(
            chunk, seed=algorithm.shapes.seed, round_id=start.round, epochs=settings.local_epochs
        ),
        vectors=private["user_embedding"].numpy().copy(),
        weights=weights,
    )
    common = FedNCFRound(
        items=start.shared["item_embedding"].numpy(),
        network=torch.cat(layers).numpy(),
        rate=settings.learning_rate,
        user_rate=rates["user_embedding"],
        item_rate=rates["item_embedding"],
        decay=settings.weight_decay,
        epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        negatives_per_positive=settings.negatives_per_positive,
        scale=rows.scale,
        bound=rows.bound,
        network_scale=own_networks.scale,
        network_bound=own_networks.bound,
    )
    shapes = (common.items.shape, (len(common.items),), common.network.shape)
    found = train_in_parts(_train_part, (users, common), chunk.n_users, threads, shapes)
    change, counts, network = map(torch.from_numpy, found.sums)
    rows.add_sums(change, finite=found.finite)
    for name, part in zip(names, network.split([len(layer) for layer in layers]), strict=True):
        sums[name].add_sums(part, finite=found.finite)
    if algorithm.derived.counts_rows:
        sums.add_counts(counts)
    if "samples" in algorithm.sent.divisors:
        sums["samples"].add_sums(torch.from_numpy(weights.sum(keepdims=True)), finite=True)
    if "users" in algorithm.sent.divisors:
        sums["users"].add_whole(torch.ones((chunk.n_users, 1)))
    return found.result({"user_embedding": torch.from_numpy(users.vectors)})


class NetworkRates(NamedTuple):
    """Step sizes, and the share that weight decay removes in a minibatch, float32."""

    network: np.float32
    vector: np.float32
    rows: np.float32
    network_lost: np.float32
    vector_lost: np.float32
    rows_lost: np.float32


class Layers(NamedTuple):
    """Work memory for a minibatch's blocks and for the layers of one of them, units x samples.

    Attributes:
        blocks: rows of items as columns, (n_blocks, dim, samples).
        constant: the user's part of the first layer, (units,).
        first, second, third: values of the layers' units.
        errors: derivatives of the loss with respect to the scores, (1, samples).
        by_first, by_second, by_third: derivatives with respect to the units before ReLU.
        by_items: derivatives with respect to the rows of items, (dim, samples).
        by_vector: derivatives with respect to p, (dim,).
        gradient: derivatives with respect to the network's parameters, flattened.
    """

    blocks: NDArray[np.float32]
    constant: NDArray[np.float32]
    first: NDArray[np.float32]
    second: NDArray[np.float32]
    third: NDArray[np.float32]
    errors: NDArray[np.float32]
    by_first: NDArray[np.float32]
    by_second: NDArray[np.float32]
    by_third: NDArray[np.float32]
    by_items: NDArray[np.float32]
    by_vector: NDArray[np.float32]
    gradient: NDArray[np.float32]


@njit(**COMPILED)
def open_layers(batch_size, space, network):
    """Return work memory for a minibatch."""
    dim = space.rows.shape[1]
    n_blocks = -(-min(batch_size, len(space.drawn)) // BLOCK)
    return Layers(
        np.empty((n_blocks, dim, BLOCK), dtype=np.float32),
        np.empty(_FIRST, dtype=np.float32),
        np.empty((_FIRST, BLOCK), dtype=np.float32),
        np.empty((_SECOND, BLOCK), dtype=np.float32),
        np.empty((_THIRD, BLOCK), dtype=np.float32),
        np.empty((1, BLOCK), dtype=np.float32),
        np.empty((_FIRST, BLOCK), dtype=np.float32),
        np.empty((_SECOND, BLOCK), dtype=np.float32),
        np.empty((_THIRD, BLOCK), dtype=np.float32),
        np.empty((dim, BLOCK), dtype=np.float32),
        np.empty(dim, dtype=np.float32),
        np.empty_like(network),
    )


@njit(**COMPILED)
def views_of(flat, dim):
    """Return views of the layers' weights and biases, and of the score's, in a flat network."""
    inputs = 2 * dim
    one = _FIRST * inputs
    two = one + _FIRST
    three = two + _SECOND * _FIRST
    four = three + _SECOND
    five = four + _THIRD * _SECOND
    six = five + _THIRD
    return (
        flat[:one].reshape(_FIRST, inputs),
        flat[one:two],
        flat[two:three].reshape(_SECOND, _FIRST),
        flat[three:four],
        flat[four:five].reshape(_THIRD, _SECOND),
        flat[five:six],
        flat[six : six + _THIRD].reshape(1, _THIRD),
        flat[six + _THIRD :],
    )


@njit(**COMPILED)
def add_product(total, weights, values):
    """Add weights @ values to a table of the same samples, four rows of values at a time."""
    inner = len(values)
    whole = inner - inner % 4
    for row in range(len(total)):
        into = row_at(total, row)
        for k in range(0, whole, 4):
            a, b = weights[row, k], weights[row, k + 1]
            c, d = weights[row, k + 2], weights[row, k + 3]
            v, w = row_at(values, k), row_at(values, k + 1)
            x, y = row_at(values, k + 2), row_at(values, k + 3)
            for place in range(BLOCK):
                part = fused(b, w[place], fused(a, v[place], into[place]))
                into[place] = fused(d, y[place], fused(c, x[place], part))
        for k in range(whole, inner):
            a, v = weights[row, k], row_at(values, k)
            for place in range(BLOCK):
                into[place] = fused(a, v[place], into[place])


@njit(**COMPILED)
def _add_outer(gradient, slopes, values):
    """Add the sums over samples of slope times value to a layer's gradient, two units at a time."""
    inner = len(values)
    whole = inner - inner % 4
    for row in range(0, len(slopes), 2):
        pair = (row_at(slopes, row), row_at(slopes, row + 1))
        for k in range(0, whole, 4):
            v, w = row_at(values, k), row_at(values, k + 1)
            x, y = row_at(values, k + 2), row_at(values, k + 3)
            found = dots(pair, (v, w, x, y))
            for column in range(4):
                gradient[row, k + column] += found[column]
                gradient[row + 1, k + column] += found[4 + column]
        for k in range(whole, inner):
            one, two = dots(pair, (row_at(values, k),))
            gradient[row, k] += one
            gradient[row + 1, k] += two


@njit(**COMPILED)
def _add_sums(gradient, slopes, ones):
    """Add the sums over samples to a layer's gradient with respect to its biases."""
    for row in range(len(slopes)):
        gradient[row] += dots((row_at(slopes, row),), (ones,))[0]


@njit(**COMPILED)
def _forward(units, weights, constant, values):
    """Write relu(weights @ values + constant). NaN stays NaN."""
    for row in range(len(units)):
        units[row] = constant[row]
    add_product(units, weights, values)
    for row in range(len(units)):
        into = row_at(units, row)
        for place in range(BLOCK):
            into[place] = _ZERO if into[place] <= _ZERO else into[place]


@njit(**COMPILED)
def _backward(slopes, weights, units, above):
    """Write the derivatives with respect to a layer's inputs, from those of the layer above."""
    slopes[:] = _ZERO
    add_product(slopes, weights.T, above)
    for row in range(len(slopes)):
        into, unit = row_at(slopes, row), row_at(units, row)
        for place in range(BLOCK):
            into[place] = into[place] if unit[place] > _ZERO else _ZERO


@njit(**COMPILED)
def _score_errors(scores, batch, n_positives):
    """Write sigmoid(s) - y for a block's scores, 0 after its samples. Return the summed loss."""
    loss, size = 0.0, len(batch)
    for place in range(size):
        scores[place], part = error_of(scores[place], batch[place] < n_positives)
        loss += part
    scores[size:] = _ZERO
    return loss


@njit(**COMPILED)
def _read_rows(block, batch, space):
    """Write the rows of a block's samples as columns."""
    drawn, row_of, rows = space.drawn, space.row_of, space.rows
    for place in range(len(batch)):
        row = row_at(rows, row_of[drawn[batch[place]]])
        for c in range(len(row)):
            block[c, place] = row[c]
    block[:, len(batch) :] = _ZERO


@njit(**COMPILED)
def _move_rows(by_items, batch, rate, space):
    """Take the step of a block's rows. A row that occurs twice moves by both."""
    drawn, row_of, rows = space.drawn, space.row_of, space.rows
    for place in range(len(batch)):
        row = row_at(rows, row_of[drawn[batch[place]]])
        for c in range(len(row)):
            row[c] -= rate * by_items[c, place]


@njit(**COMPILED)
def _shrink(values, goals, lost):
    """Apply weight decay's part of a step. Computing 1 - lost would be less exact than lost.

    Args:
        goals: the rows to which rows decay, or an empty table for 0.
    """
    if lost == _ZERO:
        return
    for row in range(len(values)):
        for c in range(values.shape[1]):
            goal = goals[row, c] if len(goals) else _ZERO
            values[row, c] -= lost * (values[row, c] - goal)


@njit(**COMPILED)
def write_constant(vector, views, constant):
    """Write the user's part of the first layer, which all its samples share."""
    weight_1, bias_1 = views[0], views[1]
    for row in range(_FIRST):
        constant[row] = bias_1[row] + dots((weight_1[row, : len(vector)],), (vector,))[0]


@njit(**COMPILED)
def score_block(items, views, layers):
    """Write a block's units and its scores, these in place of the errors."""
    weight_1, _, weight_2, bias_2, weight_3, bias_3, weight_4, bias_4 = views
    _forward(layers.first, weight_1[:, len(items) :], layers.constant, items)
    _forward(layers.second, weight_2, bias_2, layers.first)
    _forward(layers.third, weight_3, bias_3, layers.second)
    layers.errors[0] = bias_4[0]
    add_product(layers.errors, weight_4, layers.third)


@njit(**COMPILED)
def take(batch, n_positives, rows, goals, vector, network, rates, layers, ones, space):
    """Take one minibatch's simultaneous step in place. Return the summed loss before it.

    Args:
        goals: the rows to which `rows` decay, or an empty table for 0.
    """
    dim, views = len(vector), views_of(network, len(vector))
    weight_1, _, weight_2, _, weight_3, _, weight_4, _ = views
    by_1, by_b1, by_2, by_b2, by_3, by_b3, by_4, by_b4 = views_of(layers.gradient, dim)
    first, second, third, errors = layers.first, layers.second, layers.third, layers.errors
    first_d, second_d, third_d = layers.by_first, layers.by_second, layers.by_third
    by_items, by_vector = layers.by_items, layers.by_vector
    of_item = weight_1[:, dim:]
    layers.gradient[:] = _ZERO
    write_constant(vector, views, layers.constant)
    n_blocks = -(-len(batch) // BLOCK)
    for number in range(n_blocks):
        part = batch[number * BLOCK : (number + 1) * BLOCK]
        _read_rows(layers.blocks[number], part, space)
    # Decay applies to every row of the round, as in a dense optimiser, before this minibatch's
    # step.
    _shrink(rows, goals, rates.rows_lost)
    loss, size = 0.0, np.float32(len(batch))
    for number in range(n_blocks):
        part, items = batch[number * BLOCK : (number + 1) * BLOCK], layers.blocks[number]
        score_block(items, views, layers)
        loss += _score_errors(errors[0], part, n_positives)
        for place in range(BLOCK):
            errors[0, place] /= size
        _add_sums(by_b4, errors, ones)
        for row in range(_THIRD):
            by_4[0, row] += dots((errors[0],), (third[row],))[0]
        _backward(third_d, weight_4, third, errors)
        _backward(second_d, weight_3, second, third_d)
        _backward(first_d, weight_2, first, second_d)
        _add_outer(by_3, third_d, second)
        _add_sums(by_b3, third_d, ones)
        _add_outer(by_2, second_d, first)
        _add_sums(by_b2, second_d, ones)
        _add_outer(by_1[:, dim:], first_d, items)
        _add_sums(by_b1, first_d, ones)
        by_items[:] = _ZERO
        add_product(by_items, of_item.T, first_d)
        _move_rows(by_items, part, rates.rows, space)
    by_vector[:] = _ZERO
    for row in range(_FIRST):
        for c in range(dim):
            by_1[row, c] = by_b1[row] * vector[c]
            by_vector[c] += by_b1[row] * weight_1[row, c]
    for c in range(dim):
        moved = rates.vector * by_vector[c] + rates.vector_lost * vector[c]
        vector[c] -= moved
    for place in range(len(network)):
        moved = rates.network * layers.gradient[place] + rates.network_lost * network[place]
        network[place] -= moved
    return loss


@njit(**COMPILED)
def _train_part(part, parts, users, common, change, counts, network_change, losses, clipped):
    """Train every `parts`-th user from `part` on. Return whether all values were finite."""
    sampled, items, network = users.sampled, common.items, common.network
    per_positive, batch_size = common.negatives_per_positive, common.batch_size
    scale, bound = np.float32(common.scale), np.float32(common.bound)
    network_scale = np.float32(common.network_scale)
    network_bound = np.float32(common.network_bound)
    rates = NetworkRates(
        np.float32(common.rate),
        np.float32(common.user_rate),
        np.float32(common.item_rate),
        np.float32(common.rate * common.decay),
        np.float32(common.user_rate * common.decay),
        np.float32(common.item_rate * common.decay),
    )
    n_items, dim = items.shape
    space = open_space(sampled.pointers, per_positive, n_items, dim)
    layers, no_goals = open_layers(batch_size, space, network), np.empty((0, dim), np.float32)
    own_network, ones = np.empty_like(network), np.ones(BLOCK, dtype=np.float32)
    all_finite = True
    for user in range(part, len(users.vectors), parts):
        n_positives = sampled.pointers[user + 1] - sampled.pointers[user]
        n_samples, n_rows = begin_user(user, sampled, per_positive, items, False, space)
        vector, rows = users.vectors[user], space.rows[:n_rows]
        own_network[:] = network
        loss = 0.0
        for epoch in range(common.epochs):
            places = shuffled(n_samples, sampled.shuffle_keys[epoch, user], space)
            for begin in range(0, n_samples, batch_size):
                loss += take(
                    places[begin : begin + batch_size], n_positives, rows, no_goals, vector,
                    own_network, rates, layers, ones, space,
                )  # fmt: skip
        losses[user] = loss / (n_samples * common.epochs)
        over, rows_finite = hand_over(n_rows, items, False, 1, scale, bound, space, change, counts)
        own_network -= network
        beyond, not_finite = add_row(
            own_network, users.weights[user], network_scale, network_bound, network_change
        )
        clipped[user] = over + beyond
        all_finite = all_finite and rows_finite and not_finite == 0
        for c in range(dim):
            all_finite = all_finite and math.isfinite(vector[c])
    return all_finite
