"""fedals written plainly: one user at a time, every item, float64, LAPACK."""

import numpy as np


def weights(held, n_items, alpha):
    """Return (c, y) of a user over all items."""
    y = np.zeros(n_items)
    y[held] = 1.0
    return 1.0 + alpha * y, y


def solve_user(items, held, alpha, pull):
    """Minimise sum_i c_i (y_i - <p, q_i>)^2 + pull |p|^2 over p."""
    c, y = weights(held, len(items), alpha)
    system = items.T @ (c[:, None] * items) + pull * np.eye(items.shape[1])
    return np.linalg.solve(system, items.T @ (c * y))


def objective(items, users, histories, alpha, user_pulls, item_pulls):
    """Return the whole loss L."""
    total = float((item_pulls[:, None] * items**2).sum())
    for p, held, pull in zip(users, histories, user_pulls, strict=True):
        c, y = weights(held, len(items), alpha)
        total += float((c * (y - items @ p) ** 2).sum() + pull * p @ p)
    return total


def half_gradient(items, users, histories, alpha, item_pulls):
    """Return half the derivative of L by the items, from its definition."""
    gradient = item_pulls[:, None] * items
    for p, held in zip(users, histories, strict=True):
        c, y = weights(held, len(items), alpha)
        gradient = gradient + (c * (items @ p - y))[:, None] * p
    return gradient


def item_step(items, users, counts, gradient, alpha, item_pulls):
    """Return H_i^-1 g_i of every row, each H_i written out."""
    gram = users.T @ users
    step = np.empty_like(items)
    for row in range(len(items)):
        stand_in = gram * (1.0 + alpha * counts[row] / len(users))
        stand_in = stand_in + item_pulls[row] * np.eye(len(gram))
        step[row] = np.linalg.solve(stand_in, gradient[row])
    return step
