"""The compiled half of `fedncf_cpu`: FedNCF on plain arrays, one user after the other.

Letters as in `fedncf_lockstep`. A minibatch goes through the network in blocks of 64 samples, which
stay in the processor's first cache with everything that belongs to them: a layer's units are a
table of units x samples, so that each innermost loop runs over the samples. Places of a block
beyond the minibatch have rows of zeros and no error. A network and its gradient are one flat
array each, layer after layer, weights before biases.

Samples are drawn, shuffled and handed over by what `fedmf_kernel` compiles. Compiled functions
carry no annotations: numba derives the types from the call.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from fedrec.algorithms.fedmf_kernel import (
    draw,
    error_of,
    hand_over,
    open_rows,
    shuffled,
)
from fedrec.compiling import COMPILED

__all__ = ["train_part"]

_BLOCK = 64
_FIRST, _SECOND, _THIRD = 32, 16, 8
"""Units of the layers, as in `fedncf.UNITS`; constants let the compiler unroll."""
_ZERO = np.float32(0.0)


@njit(**COMPILED)
def _layers(flat, dim):
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
def _product(one, other):
    """Return the sum over a block's samples of one value times another."""
    total = _ZERO
    for place in range(_BLOCK):
        total += one[place] * other[place]
    return total


@njit(**COMPILED)
def _add_product(total, weights, values):
    """Add weights @ values to a table of as many samples, four rows of values at a time."""
    inner = len(values)
    whole = inner - inner % 4
    for row in range(len(total)):
        into = total[row]
        for k in range(0, whole, 4):
            a, b = weights[row, k], weights[row, k + 1]
            c, d = weights[row, k + 2], weights[row, k + 3]
            v, w, x, y = values[k], values[k + 1], values[k + 2], values[k + 3]
            for place in range(_BLOCK):
                into[place] += a * v[place] + b * w[place] + c * x[place] + d * y[place]
        for k in range(whole, inner):
            a, v = weights[row, k], values[k]
            for place in range(_BLOCK):
                into[place] += a * v[place]


@njit(**COMPILED)
def _add_outer(gradient, slopes, values):
    """Add the sums over samples of slope times value to a layer's gradient, two units at a time."""
    inner = len(values)
    whole = inner - inner % 4
    for row in range(0, len(slopes), 2):
        one, two = slopes[row], slopes[row + 1]
        for k in range(0, whole, 4):
            v, w, x, y = values[k], values[k + 1], values[k + 2], values[k + 3]
            a, b, c, d = _ZERO, _ZERO, _ZERO, _ZERO
            e, f, g, h = _ZERO, _ZERO, _ZERO, _ZERO
            for place in range(_BLOCK):
                a += one[place] * v[place]
                b += one[place] * w[place]
                c += one[place] * x[place]
                d += one[place] * y[place]
                e += two[place] * v[place]
                f += two[place] * w[place]
                g += two[place] * x[place]
                h += two[place] * y[place]
            for column, first, second in ((k, a, e), (k + 1, b, f), (k + 2, c, g), (k + 3, d, h)):
                gradient[row, column] += first
                gradient[row + 1, column] += second
        for k in range(whole, inner):
            gradient[row, k] += _product(one, values[k])
            gradient[row + 1, k] += _product(two, values[k])


@njit(**COMPILED)
def _add_sums(gradient, slopes):
    """Add the sums over samples to a layer's gradient by its biases."""
    for row in range(len(slopes)):
        slope, a = slopes[row], _ZERO
        for place in range(_BLOCK):
            a += slope[place]
        gradient[row] += a


@njit(**COMPILED)
def _forward(units, weights, constant, values):
    """Write relu(weights @ values + constant); NaN stays NaN."""
    for row in range(len(units)):
        units[row] = constant[row]
    _add_product(units, weights, values)
    for row in range(len(units)):
        into = units[row]
        for place in range(_BLOCK):
            into[place] = _ZERO if into[place] <= _ZERO else into[place]


@njit(**COMPILED)
def _backward(slopes, weights, units, above):
    """Write the derivatives by a layer's inputs, from those of the layer above."""
    slopes[:] = _ZERO
    _add_product(slopes, weights.T, above)
    for row in range(len(slopes)):
        into, unit = slopes[row], units[row]
        for place in range(_BLOCK):
            into[place] = into[place] if unit[place] > _ZERO else _ZERO


@njit(**COMPILED)
def _score_errors(scores, batch, n_positives):
    """Write sigmoid(s) - y over a block's scores, 0 beyond its samples; return the summed loss."""
    loss, size = 0.0, len(batch)
    for place in range(size):
        scores[place], part = error_of(scores[place], batch[place] < n_positives)
        loss += part
    scores[size:] = _ZERO
    return loss


@njit(**COMPILED)
def _read_rows(block, batch, drawn, row_of, rows):
    """Write the rows of a block's samples as columns."""
    for place in range(len(batch)):
        row = rows[row_of[drawn[batch[place]]]]
        for c in range(len(row)):
            block[c, place] = row[c]
    block[:, len(batch) :] = _ZERO


@njit(**COMPILED)
def _move_rows(by_items, batch, drawn, row_of, rows, rate):
    """Do the step of a block's rows; one that is named twice moves by both."""
    for place in range(len(batch)):
        row = rows[row_of[drawn[batch[place]]]]
        for c in range(len(row)):
            row[c] -= rate * by_items[c, place]


@njit(**COMPILED)
def _shrink(values, kept):
    """Do the part of a step that weight decay adds."""
    if kept != np.float32(1.0):
        values *= kept


@njit(**COMPILED)
def _take(
    batch, n_positives, drawn, row_of, rows, vector, network, rate, user_rate, item_rate, kept,
    user_kept, item_kept, gradient, blocks, space,
):  # fmt: skip
    """Do one minibatch's simultaneous step in place; return the summed loss before it."""
    dim = len(vector)
    weight_1, bias_1, weight_2, bias_2, weight_3, bias_3, weight_4, bias_4 = _layers(network, dim)
    by_1, by_b1, by_2, by_b2, by_3, by_b3, by_4, by_b4 = _layers(gradient, dim)
    constant, first, second, third, errors, first_d, second_d, third_d, by_items, by_user = space
    of_item = weight_1[:, dim:]
    gradient[:] = _ZERO
    for row in range(_FIRST):
        a = bias_1[row]
        for c in range(dim):
            a += weight_1[row, c] * vector[c]
        constant[row] = a
    n_blocks = -(-len(batch) // _BLOCK)
    for number in range(n_blocks):
        part = batch[number * _BLOCK : (number + 1) * _BLOCK]
        _read_rows(blocks[number], part, drawn, row_of, rows)
    # Every row of the round, as a dense optimiser would, before this minibatch moves its own.
    _shrink(rows, item_kept)
    loss, size = 0.0, np.float32(len(batch))
    for number in range(n_blocks):
        part, items = batch[number * _BLOCK : (number + 1) * _BLOCK], blocks[number]
        _forward(first, of_item, constant, items)
        _forward(second, weight_2, bias_2, first)
        _forward(third, weight_3, bias_3, second)
        errors[0] = bias_4[0]
        _add_product(errors, weight_4, third)
        loss += _score_errors(errors[0], part, n_positives)
        for place in range(_BLOCK):
            errors[0, place] /= size
        _add_sums(by_b4, errors)
        for row in range(_THIRD):
            by_4[0, row] += _product(errors[0], third[row])
        _backward(third_d, weight_4, third, errors)
        _backward(second_d, weight_3, second, third_d)
        _backward(first_d, weight_2, first, second_d)
        _add_outer(by_3, third_d, second)
        _add_sums(by_b3, third_d)
        _add_outer(by_2, second_d, first)
        _add_sums(by_b2, second_d)
        _add_outer(by_1[:, dim:], first_d, items)
        _add_sums(by_b1, first_d)
        by_items[:] = _ZERO
        _add_product(by_items, of_item.T, first_d)
        _move_rows(by_items, part, drawn, row_of, rows, item_rate)
    by_user[:] = _ZERO
    for row in range(_FIRST):
        for c in range(dim):
            by_1[row, c] = by_b1[row] * vector[c]
            by_user[c] += by_b1[row] * weight_1[row, c]
    for c in range(dim):
        vector[c] = user_kept * vector[c] - user_rate * by_user[c]
    for place in range(len(network)):
        network[place] = kept * network[place] - rate * gradient[place]
    return loss


@njit(**COMPILED)
def _hand_over_network(network, start, weight, scale, bound, change):
    """Weight, round and add up a user's network; return (clipped values, finite)."""
    clipped, finite = 0, True
    for place in range(len(network)):
        units = np.float32(np.rint((network[place] - start[place]) * weight * scale))
        if not abs(units) <= bound:
            clipped += 1
            finite = finite and math.isfinite(units)
            units = bound if units > 0 else -bound
        change[place] += np.int64(units)
    return clipped, finite


@njit(**COMPILED)
def train_part(
    part, parts,
    pointers, positives, excluded_pointers, excluded, negative_keys, shuffle_keys, vectors,
    weights, items, network, rate, user_rate, item_rate, kept, user_kept, item_kept, epochs,
    batch_size, per_positive, scale, bound, network_scale, network_bound,
    change, counts, network_change, losses, clipped,
):  # fmt: skip
    """Train every `parts`-th user from `part` on; return whether all values were finite."""
    n_items, dim = items.shape
    longest = 0
    for user in range(part, len(vectors), parts):
        longest = max(longest, pointers[user + 1] - pointers[user])
    capacity = longest * (1 + per_positive)
    n_distinct = min(capacity, n_items)
    drawn = np.empty(capacity, dtype=np.int64)
    order = np.empty(capacity, dtype=np.int64)
    row_of = np.full(n_items, -1, dtype=np.int32)
    row_item = np.empty(n_distinct, dtype=np.int64)
    rows = np.empty((n_distinct, dim), dtype=np.float32)
    own_network, gradient = np.empty_like(network), np.empty_like(network)
    n_blocks = -(-min(batch_size, capacity) // _BLOCK)
    blocks = np.empty((n_blocks, dim, _BLOCK), dtype=np.float32)
    space = (
        np.empty(_FIRST, dtype=np.float32),
        np.empty((_FIRST, _BLOCK), dtype=np.float32),
        np.empty((_SECOND, _BLOCK), dtype=np.float32),
        np.empty((_THIRD, _BLOCK), dtype=np.float32),
        np.empty((1, _BLOCK), dtype=np.float32),
        np.empty((_FIRST, _BLOCK), dtype=np.float32),
        np.empty((_SECOND, _BLOCK), dtype=np.float32),
        np.empty((_THIRD, _BLOCK), dtype=np.float32),
        np.empty((dim, _BLOCK), dtype=np.float32),
        np.empty(dim, dtype=np.float32),
    )
    no_members, no_entries = np.ones(1, dtype=np.float32), np.zeros((1, 0), dtype=np.int64)
    all_finite = True
    for user in range(part, len(vectors), parts):
        own = positives[pointers[user] : pointers[user + 1]]
        others = excluded[excluded_pointers[user] : excluded_pointers[user + 1]]
        n_samples = len(own) * (1 + per_positive)
        draw(drawn, own, others, n_items, negative_keys[user], per_positive)
        n_rows = open_rows(drawn, n_samples, items, False, row_of, row_item, rows)
        vector = vectors[user]
        own_network[:] = network
        loss = 0.0
        for epoch in range(epochs):
            places = shuffled(order, n_samples, shuffle_keys[epoch, user])
            for begin in range(0, n_samples, batch_size):
                loss += _take(
                    places[begin : begin + batch_size], len(own), drawn, row_of, rows[:n_rows],
                    vector, own_network, rate, user_rate, item_rate, kept, user_kept, item_kept,
                    gradient, blocks, space,
                )  # fmt: skip
        losses[user] = loss / (n_samples * epochs)
        over, rows_finite = hand_over(
            n_rows, row_item, row_of, rows, items, False, scale, bound, no_members, change,
            counts, no_entries,
        )  # fmt: skip
        beyond, network_finite = _hand_over_network(
            own_network, network, weights[user], network_scale, network_bound, network_change
        )
        clipped[user] = over + beyond
        all_finite = all_finite and rows_finite and network_finite
        for c in range(dim):
            all_finite = all_finite and math.isfinite(vector[c])
    return all_finite
