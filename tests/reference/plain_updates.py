"""Update structures written down as they stand: one user, one matrix, float64, LAPACK."""

import numpy as np
from reference.plain_fedmf import MASK, key_of, splitmix, user_key

SUBSET = 8


def subset_of(seed, round_id, user, rank):
    """Return the rows of B that a user trains, by Python integers."""
    stream = user_key(key_of(seed, SUBSET, round_id, 0), user)
    words = [splitmix((stream + counter) & MASK) >> 32 for counter in range(rank + 1)]
    size = 1 + ((words[0] * rank) >> 32)
    by_word = sorted(range(rank), key=lambda row: (words[1 + row], row))
    return sorted(by_word[:size])


def nearest_of_rank(change, rank):
    left, values, right = np.linalg.svd(change, full_matrices=False)
    return (left[:, :rank] * values[:rank]) @ right[:rank]


def largest_values(change, n_kept):
    flat = change.reshape(-1)
    order = sorted(range(len(flat)), key=lambda at: (-abs(flat[at]), at))
    kept = np.zeros_like(flat)
    kept[order[:n_kept]] = flat[order[:n_kept]]
    return kept.reshape(change.shape)
