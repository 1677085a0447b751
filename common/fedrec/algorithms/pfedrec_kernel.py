"""The compiled half of `pfedrec_cpu`: PFedRec on plain arrays, one user after the other.

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


@njit(**COMPILED)
def _score(head, bias, row):
    """Return <w, E_i> + c."""
    score = np.float32(0.0)
    for c in range(len(head)):
        score += head[c] * row[c]
    return score + bias


@njit(**COMPILED)
def _move_head(places, n_positives, drawn, row_of, rows, head, bias, rate, gradient):
    """Do step (i) of a minibatch in place; return (new bias, loss before it)."""
    loss, slope = 0.0, np.float32(0.0)
    gradient[:] = 0.0
    for place in places:
        row = rows[row_of[drawn[place]]]
        error, part = error_of(_score(head, bias, row), place < n_positives)
        loss += part
        slope += error
        for c in range(len(head)):
            gradient[c] += error * row[c]
    size = np.float32(len(places))
    for c in range(len(head)):
        head[c] -= rate * (gradient[c] / size)
    return bias - rate * (slope / size), loss


@njit(**COMPILED)
def _move_rows(places, n_positives, drawn, row_of, rows, head, bias, item_rate, errors):
    """Do step (ii) of a minibatch: the errors of all rows first, then the rows."""
    for place in places:
        row = row_of[drawn[place]]
        error, _ = error_of(_score(head, bias, rows[row]), place < n_positives)
        errors[row] += error
    step = item_rate / np.float32(len(places))
    for place in places:
        row = row_of[drawn[place]]
        moved = step * errors[row]
        # Zero after the first occurrence, which moves the row for all of them.
        errors[row] = 0.0
        if moved != 0.0:
            for c in range(len(head)):
                rows[row, c] -= moved * head[c]


@njit(**COMPILED)
def _score_all(scores, items, n_rows, row_item, rows, head, bias):
    """Write the scores of all items, with the user's own rows where it has them."""
    for item in range(len(items)):
        scores[item] = _score(head, bias, items[item])
    for row in range(n_rows):
        scores[row_item[row]] = _score(head, bias, rows[row])


@njit(**COMPILED)
def train_part(
    part, parts,
    pointers, positives, excluded_pointers, excluded, negative_keys, shuffle_keys, heads, biases,
    items, rate, item_rate, epochs, batch_size, per_positive, scale, bound, personal,
    change, scores, losses, clipped,
):  # fmt: skip
    """Train every `parts`-th user from `part` on; return whether all values were finite."""
    n_items, dim = items.shape
    longest = 0
    for user in range(part, len(heads), parts):
        longest = max(longest, pointers[user + 1] - pointers[user])
    capacity = longest * (1 + per_positive)
    n_distinct = min(capacity, n_items)
    drawn = np.empty(capacity, dtype=np.int64)
    order = np.empty(capacity, dtype=np.int64)
    row_of = np.full(n_items, -1, dtype=np.int32)
    row_item = np.empty(n_distinct, dtype=np.int64)
    rows = np.empty((n_distinct, dim), dtype=np.float32)
    errors = np.zeros(n_distinct, dtype=np.float32)
    gradient = np.empty(dim, dtype=np.float32)
    uncounted = np.zeros(n_items, dtype=np.int64)
    no_members, no_entries = np.ones(1, dtype=np.float32), np.zeros((1, 0), dtype=np.int64)
    all_finite = True
    for user in range(part, len(heads), parts):
        own = positives[pointers[user] : pointers[user + 1]]
        others = excluded[excluded_pointers[user] : excluded_pointers[user + 1]]
        n_samples = len(own) * (1 + per_positive)
        draw(drawn, own, others, n_items, negative_keys[user], per_positive)
        n_rows = open_rows(drawn, n_samples, items, False, row_of, row_item, rows)
        head, bias = heads[user], biases[user]
        loss = 0.0
        for epoch in range(epochs):
            places = shuffled(order, n_samples, shuffle_keys[epoch, user])
            for start in range(0, n_samples, batch_size):
                batch = places[start : start + batch_size]
                bias, part_loss = _move_head(
                    batch, len(own), drawn, row_of, rows, head, bias, rate, gradient
                )
                loss += part_loss
                _move_rows(batch, len(own), drawn, row_of, rows, head, bias, item_rate, errors)
        biases[user] = bias
        losses[user] = loss / (n_samples * epochs)
        if personal:
            _score_all(scores[user], items, n_rows, row_item, rows, head, bias)
        clipped[user], finite = hand_over(
            n_rows, row_item, row_of, rows, items, False, scale, bound, no_members, change,
            uncounted, no_entries,
        )  # fmt: skip
        all_finite = all_finite and finite and math.isfinite(bias)
        for c in range(dim):
            all_finite = all_finite and math.isfinite(head[c])
    return all_finite
