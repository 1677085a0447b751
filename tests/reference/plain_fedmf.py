"""FedMF and CoLR one user, one sample and one float64 at a time: the oracle of the trainer.

Shares no code with the product but the published B and the initial tables: random numbers are
Python integers, negatives are looked up in a list, and the update is the closed rule of the
specification, applied to a copy of every touched row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

MASK = (1 << 64) - 1


def splitmix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def key_of(*parts: int) -> int:
    key = 0
    for part in parts:
        key = splitmix(key ^ splitmix(part))
    return key


def user_key(key: int, user: int) -> int:
    return splitmix(splitmix(user & MASK) ^ key)


@dataclass
class Rule:
    rate: float
    gamma: float
    epochs: int = 1
    batch_size: int = 1 << 30


def minibatch(p, rows, base, batch, rule, basis):
    """One simultaneous step; `rows` maps item -> A_i, `base` item -> Q_i (all float64)."""
    d = len(p)
    b_matrix = np.eye(d) if basis is None else basis
    scale = math.sqrt(len(b_matrix) / d)
    user_gradient = np.zeros(d)
    item_gradients: dict[int, list[np.ndarray]] = {}
    for item, label in batch:
        q = base[item] + rows.get(item, np.zeros(len(b_matrix))) @ b_matrix
        error = 1.0 / (1.0 + math.exp(-float(p @ q))) - label
        user_gradient += error * q + 2 * rule.gamma * p
        item_gradients.setdefault(item, []).append(error * p + 2 * rule.gamma * q)
    new_rows = dict(rows)
    for item, gradients in item_gradients.items():
        mean = sum(gradients) / len(gradients)
        old = rows.get(item, np.zeros(len(b_matrix)))
        new_rows[item] = old - rule.rate * scale * (mean @ b_matrix.T)
    return p - rule.rate * user_gradient / len(batch), new_rows


def samples_of(seed, round_id, user, positives, excluded, n_items, per_positive):
    """The user's samples in the order of the specification: positives, then negatives."""
    free = [item for item in range(n_items) if item not in set(excluded)]
    stream = user_key(key_of(seed, 4, round_id, 0), user)
    drawn = []
    for counter in range(per_positive * len(positives)):
        word = splitmix((stream + counter) & MASK) >> 32
        drawn.append(free[(word * len(free)) >> 32])
    return [(item, 1.0) for item in sorted(positives)] + [(item, 0.0) for item in drawn]


def batches_of(seed, round_id, epoch, user, samples, batch_size):
    stream = user_key(key_of(seed, 5, round_id, epoch), user)
    words = [splitmix((stream + place) & MASK) >> 22 for place in range(len(samples))]
    order = sorted(range(len(samples)), key=lambda place: (words[place], place))
    shuffled = [samples[place] for place in order]
    return [shuffled[at : at + batch_size] for at in range(0, len(shuffled), batch_size)]


def train_user(p, table, user, positives, excluded, rule, basis, *, seed, round_id, per_positive):
    """Return (new p, {item: A_i}) of one user's visit."""
    rows: dict[int, np.ndarray] = {}
    samples = samples_of(seed, round_id, user, positives, excluded, len(table), per_positive)
    for epoch in range(rule.epochs):
        for batch in batches_of(seed, round_id, epoch, user, samples, rule.batch_size):
            p, rows = minibatch(p, rows, table, batch, rule, basis)
    return p, rows
