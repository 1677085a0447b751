"""EASE written plainly: one ridge regression for each item on all the others, float64."""

import numpy as np


def interactions_of(histories, n_items):
    """Return X, users x items, with 1 where a user holds an item."""
    matrix = np.zeros((len(histories), n_items))
    for row, held in enumerate(histories):
        matrix[row, held] = 1.0
    return matrix


def plain_ease(matrix, regularisation):
    """Minimise |X - X B|^2 + lambda |B|^2 with a zero diagonal, column by column."""
    n_items = matrix.shape[1]
    weights = np.zeros((n_items, n_items))
    for item in range(n_items):
        others = np.delete(np.arange(n_items), item)
        known = matrix[:, others]
        system = known.T @ known + regularisation * np.eye(len(others))
        weights[others, item] = np.linalg.solve(system, known.T @ matrix[:, item])
    return weights
