"""PFedRec one user, one sample and one float64 at a time, with a copy of the whole table."""

import math

import numpy as np
from reference.plain_fedmf import batches_of, samples_of


def sigmoid(value):
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else 1.0 - sigmoid(-value)


def errors_of(w, c, table, batch):
    return [sigmoid(float(w @ table[item]) + c) - label for item, label in batch]


def minibatch(w, c, table, batch, rate, item_rate, basis=None):
    """Both steps of the specification, each from the whole batch's gradient.

    With a basis B the table is Q + A B, of which A moves by the gradient's A (times B^T).
    """
    errors = errors_of(w, c, table, batch)
    w_gradient = sum(e * table[item] for e, (item, _) in zip(errors, batch, strict=True))
    w, c = w - rate * w_gradient / len(batch), c - rate * sum(errors) / len(batch)
    errors = errors_of(w, c, table, batch)
    table_gradient = np.zeros_like(table)
    for e, (item, _) in zip(errors, batch, strict=True):
        table_gradient[item] += e * w / len(batch)
    if basis is not None:
        table_gradient = math.sqrt(len(basis) / len(w)) * (table_gradient @ basis.T) @ basis
    return w, c, table - item_rate * table_gradient


def train_user(
    w, c, table, user, positives, excluded, *, seed, round_id, per_positive, epochs, batch_size,
    rate, item_rate, basis=None,
):  # fmt: skip
    """Return the user's (w, c, table) after a visit."""
    samples = samples_of(seed, round_id, user, positives, excluded, len(table), per_positive)
    for epoch in range(epochs):
        for batch in batches_of(seed, round_id, epoch, user, samples, batch_size):
            w, c, table = minibatch(w, c, table, batch, rate, item_rate, basis)
    return w, c, table
