"""The sketch written plainly: dense matrices, one user at a time, by its own description."""

import numpy as np


def plain_sum(histories, directions):
    """Return the sum of x_u (x_u^T Q), user by user."""
    total = np.zeros_like(directions)
    for held in histories:
        own = directions[held].sum(0)
        for item in held:
            total[item] += own
    return total


def plain_orth(total):
    """Return Q by Gram-Schmidt, columns that say nothing zero, the diagonal of R positive."""
    basis = np.zeros_like(total)
    largest = max((np.linalg.norm(column) for column in total.T), default=0.0)
    for place, column in enumerate(total.T):
        left = column.copy()
        for _ in range(3):
            left -= basis @ (basis.T @ left)
        length = np.linalg.norm(left)
        if length > 1e-9 * largest:
            basis[:, place] = left / length
    return basis


def plain_joined(drawn, first, along, second):
    """Return the directions of both sums and their products with G, by Gram-Schmidt."""
    basis = plain_orth(np.hstack([along, drawn]))
    parts = np.linalg.pinv(np.hstack([along, drawn])) @ basis
    return basis, np.hstack([second, first]) @ parts


def plain_weights(directions, total, holders, regularisation, form):
    """Return B, dense, from Y = G Q: Nystrom, then EASE's formula with P by inversion."""
    shift = 1e-9 * np.linalg.norm(total)
    core = directions.T @ (total + shift * directions)
    values, vectors = np.linalg.eigh((core + core.T) / 2)
    kept = values > shift
    half = (total + shift * directions) @ vectors[:, kept] / np.sqrt(values[kept])
    left, singular, _ = np.linalg.svd(half, full_matrices=False)
    spectrum = np.maximum(singular**2 - shift, 0.0)
    gram = (left * spectrum) @ left.T
    ridge = np.full(len(total), float(regularisation))
    if form != "plain":
        ridge += np.maximum(holders - np.diag(gram), 0.0)
    if form == "edlae":
        ridge += holders
    inverse = np.linalg.inv(np.diag(ridge) + gram)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return weights
