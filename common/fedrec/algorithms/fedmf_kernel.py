"""The compiled half of `fedmf_cpu`: FedMF's rule on plain arrays, one user after the other.

Compiled functions carry no annotations: numba derives the types from the call. Arrays are named
as in `CpuUsers` and `CpuRound`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from fedrec.compiling import COMPILED

__all__ = [
    "draw",
    "error_of",
    "hand_over",
    "open_rows",
    "shuffled",
    "train_part",
]

_GOLDEN = -7046029254386353131
_FIRST = -4658895280553007687
_SECOND = -7723592293110705685


_ONE = np.float32(1.0)
_PLACE_BITS = 21
"""A user has fewer samples than 2^21; 42 bits of the word decide the order before the place."""


@njit(inline="always")
def _mix(word):
    """Return splitmix64's output function; see `fedrec.streams.mix`."""
    word = word + _GOLDEN
    word = (word ^ ((word >> 30) & 0x3FFFFFFFF)) * _FIRST
    word = (word ^ ((word >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return word ^ ((word >> 31) & 0x1FFFFFFFF)


@njit(**COMPILED)
def draw(drawn, positives, excluded, n_items, key, per_positive):
    """Fill `drawn` with the positives and then the negatives; see `samplers.draw_samples`."""
    n_positives = len(positives)
    drawn[:n_positives] = positives
    free = n_items - len(excluded)
    for counter in range(n_positives * per_positive):
        word = (_mix(key + counter) >> 32) & 0xFFFFFFFF
        chosen = (word * free) >> 32
        low, high = 0, len(excluded)
        while low < high:
            middle = (low + high) >> 1
            if excluded[middle] - middle <= chosen:
                low = middle + 1
            else:
                high = middle
        drawn[n_positives + counter] = chosen + low


@njit(**COMPILED)
def shuffled(order, n_samples, key):
    """Return the places of the samples in the order of their words; see `samplers.steps`."""
    for place in range(n_samples):
        word = (_mix(key + place) >> 22) & 0x3FFFFFFFFFF
        order[place] = (word << _PLACE_BITS) | place
    return np.sort(order[:n_samples]) & ((1 << _PLACE_BITS) - 1)


@njit(**COMPILED)
def open_rows(drawn, n_samples, items, has_basis, row_of, row_item, rows):
    """Give every distinct item a row: A = 0, or Q itself where B is the identity."""
    n_rows = 0
    for place in range(n_samples):
        item = drawn[place]
        if row_of[item] < 0:
            row_of[item] = n_rows
            row_item[n_rows] = item
            if has_basis:
                rows[n_rows] = 0.0
            else:
                rows[n_rows] = items[item]
            n_rows += 1
    return n_rows


@njit(**COMPILED)
def error_of(score, is_positive):
    """Return (sigmoid(score) - label, binary cross-entropy)."""
    small = np.float32(math.exp(-abs(score)))
    loss = np.float32(math.log1p(small))
    if score >= 0:
        error, loss_of_negative = _ONE / (_ONE + small), loss + score
    else:
        error, loss_of_negative = small / (_ONE + small), loss
    if is_positive:
        return error - _ONE, loss_of_negative - score
    return error, loss_of_negative


@njit(**COMPILED)
def _gradients(
    places, n_positives, drawn, row_of, rows, vector, low_vector, items, has_basis,
    gradient, low_gradient, errors, occurrences, touched,
):  # fmt: skip
    """Sum e q_i over a minibatch, and e over each item; return (touched rows, loss)."""
    loss, n_touched = 0.0, 0
    gradient[:] = 0.0
    low_gradient[:] = 0.0
    for place in places:
        item = drawn[place]
        row = row_of[item]
        score = np.float32(0.0)
        if has_basis:
            for c in range(len(vector)):
                score += vector[c] * items[item, c]
        for k in range(len(low_vector)):
            score += low_vector[k] * rows[row, k]
        error, part = error_of(score, place < n_positives)
        loss += part
        if has_basis:
            for c in range(len(vector)):
                gradient[c] += error * items[item, c]
        for k in range(len(low_vector)):
            low_gradient[k] += error * rows[row, k]
        if occurrences[row] == 0:
            touched[n_touched] = row
            n_touched += 1
        occurrences[row] += 1
        errors[row] += error
    return n_touched, loss


@njit(**COMPILED)
def _move_rows(
    touched, row_item, rows, low_items, low_vector, has_basis, ratio, steps, pull, errors,
    occurrences,
):  # fmt: skip
    """Do the item step of every touched row, and forget its errors; a step of 0 stays."""
    for row in touched:
        mean = errors[row] / np.float32(occurrences[row])
        item = row_item[row]
        for k in range(len(low_vector)):
            decay = rows[row, k]
            if has_basis:
                decay = low_items[item, k] + rows[row, k] / ratio
            rows[row, k] -= steps[k] * (mean * low_vector[k] + pull * decay)
        errors[row] = 0.0
        occurrences[row] = 0


@njit(**COMPILED)
def _project(basis, vector, low_vector):
    """Write p B^T."""
    for k in range(len(low_vector)):
        total = np.float32(0.0)
        for c in range(len(vector)):
            total += basis[k, c] * vector[c]
        low_vector[k] = total


@njit(**COMPILED)
def hand_over(
    n_rows, row_item, row_of, rows, items, has_basis, scale, bound, members, change, counts,
    entries,
):  # fmt: skip
    """Round a user's rows, add them up and close them; return (clipped values, finite)."""
    clipped, finite = 0, True
    for row in range(n_rows):
        item = row_item[row]
        row_of[item] = -1
        counts[item] += 1
        for k in range(entries.shape[1]):
            entries[item, k] += np.int64(members[k])
        for k in range(rows.shape[1]):
            value = rows[row, k]
            if not has_basis:
                value -= items[item, k]
            units = np.float32(np.rint(value * scale))
            if not abs(units) <= bound:
                clipped += 1
                finite = finite and math.isfinite(units)
                units = bound if units > 0 else -bound
            change[item, k] += np.int64(units)
    return clipped, finite


@njit(**COMPILED)
def _keep(n_rows, row_item, row_of, rows, items, counts, kept_items, kept_rows):
    """Write a user's changed rows down in ascending order of items, and close them."""
    order = np.argsort(row_item[:n_rows])
    for place in range(n_rows):
        row = order[place]
        item = row_item[row]
        row_of[item] = -1
        counts[item] += 1
        kept_items[place] = item
        for k in range(rows.shape[1]):
            kept_rows[place, k] = rows[row, k] - items[item, k]


@njit(**COMPILED)
def train_part(
    part, parts,
    pointers, positives, excluded_pointers, excluded, negative_keys, shuffle_keys, vectors,
    members, items, low_items, basis, has_basis, rate, gamma, epochs, batch_size, per_positive,
    scale, bound, change, counts, entries, losses, clipped, kept_from, kept_items, kept_rows,
):  # fmt: skip
    """Train every `parts`-th user from `part` on; return whether all values were finite.

    With room in `kept_rows` users' changes are written there, each from its place in `kept_from`
    on, and not added up.
    """
    n_items, dim = items.shape
    width = low_items.shape[1]
    ratio = np.float32(width / dim)
    step = rate * np.float32(math.sqrt(width / dim))
    pull = np.float32(2.0) * gamma
    longest = 0
    for user in range(part, len(vectors), parts):
        longest = max(longest, pointers[user + 1] - pointers[user])
    capacity = longest * (1 + per_positive)
    n_distinct = min(capacity, n_items)
    drawn = np.empty(capacity, dtype=np.int64)
    order = np.empty(capacity, dtype=np.int64)
    row_of = np.full(n_items, -1, dtype=np.int32)
    row_item = np.empty(n_distinct, dtype=np.int64)
    rows = np.empty((n_distinct, width), dtype=np.float32)
    errors = np.zeros(n_distinct, dtype=np.float32)
    occurrences = np.zeros(n_distinct, dtype=np.int64)
    touched = np.empty(n_distinct, dtype=np.int64)
    gradient = np.empty(dim, dtype=np.float32)
    low_gradient = np.empty(width, dtype=np.float32)
    low_vector = np.empty(width, dtype=np.float32)
    steps = np.empty(width, dtype=np.float32)
    all_finite = True
    for user in range(part, len(vectors), parts):
        own = positives[pointers[user] : pointers[user + 1]]
        others = excluded[excluded_pointers[user] : excluded_pointers[user + 1]]
        n_samples = len(own) * (1 + per_positive)
        draw(drawn, own, others, n_items, negative_keys[user], per_positive)
        n_rows = open_rows(drawn, n_samples, items, has_basis, row_of, row_item, rows)
        vector = vectors[user]
        own_members = members[min(user, len(members) - 1)]
        for k in range(width):
            steps[k] = step * own_members[k]
        loss = 0.0
        for epoch in range(epochs):
            places = shuffled(order, n_samples, shuffle_keys[epoch, user])
            for start in range(0, n_samples, batch_size):
                batch = places[start : start + batch_size]
                if has_basis:
                    _project(basis, vector, low_vector)
                else:
                    low_vector[:] = vector
                n_touched, part_loss = _gradients(
                    batch, len(own), drawn, row_of, rows, vector, low_vector, items, has_basis,
                    gradient, low_gradient, errors, occurrences, touched,
                )  # fmt: skip
                loss += part_loss
                _move_rows(
                    touched[:n_touched], row_item, rows, low_items, low_vector, has_basis, ratio,
                    steps, pull, errors, occurrences,
                )  # fmt: skip
                for k in range(width):
                    if has_basis:
                        for c in range(dim):
                            gradient[c] += low_gradient[k] * basis[k, c]
                    else:
                        gradient[k] = low_gradient[k]
                for c in range(dim):
                    mean = gradient[c] / np.float32(len(batch))
                    vector[c] -= rate * (mean + pull * vector[c])
        losses[user] = loss / (n_samples * epochs)
        if len(kept_rows):
            first = kept_from[user]
            _keep(
                n_rows, row_item, row_of, rows, items, counts, kept_items[first:],
                kept_rows[first:],
            )  # fmt: skip
        else:
            over, finite = hand_over(
                n_rows, row_item, row_of, rows, items, has_basis, scale, bound, own_members,
                change, counts, entries,
            )  # fmt: skip
            clipped[user] = over
            all_finite = all_finite and finite
        for c in range(dim):
            all_finite = all_finite and math.isfinite(vector[c])
    return all_finite
