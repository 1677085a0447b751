"""Fold in: compute the vector of a user that was not present when the model was trained.

The items stay as they are. Only p is trained, with FedMF's own loss. Its sampled negatives are
replaced by their expectation over all items outside the history, so the result is a function of the
history alone:

    L(p) = 1/(1+k) mean over positives of softplus(-<p, q>)
         + k/(1+k) mean over all others of softplus(<p, q>) + gamma |p|^2

with k negatives per positive and the plan's gamma. L is convex, and Newton's method finds its
minimum from p = 0 in a few steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FOLDING_PULL = 1e-3
"""For algorithms without an L2 coefficient: a few passes from a small start keep vectors short."""
_SMALLEST_PULL = 1e-6
"""Keeps the minimum finite if gamma = 0 and a history can be separated perfectly."""
_HALVINGS = 30


def fold_in_vector(
    items: NDArray[np.float64],
    positives: NDArray[np.int64],
    *,
    negatives_per_positive: int,
    regularisation: float,
    n_steps: int = 25,
) -> NDArray[np.float32]:
    """Return the user vector of a history, float32 (dim,).

    Args:
        items: rows of the items that can be recommended, (n_active, dim).
        positives: positions of the history among them, distinct, at least one.
        n_steps: largest number of steps of Newton's method. It stops earlier at the minimum.
    """
    sign = np.ones(len(items))
    sign[positives] = -1.0
    n_others = len(items) - len(positives)
    share = 1.0 / (1.0 + negatives_per_positive)
    weight = np.full(len(items), (1.0 - share) / max(n_others, 1))
    weight[positives] = share / len(positives)
    pull = max(regularisation, _SMALLEST_PULL)

    def loss(vector: NDArray[np.float64]) -> float:
        losses = np.logaddexp(0.0, sign * (items @ vector))
        return float(weight @ losses + pull * vector @ vector)

    vector = np.zeros(items.shape[1])
    reached = loss(vector)
    for _ in range(n_steps):
        chance = 0.5 * (1.0 + np.tanh(0.5 * sign * (items @ vector)))
        gradient = items.T @ (weight * sign * chance) + 2.0 * pull * vector
        curvature = items.T @ (items * (weight * chance * (1.0 - chance))[:, None])
        curvature[np.diag_indices_from(curvature)] += 2.0 * pull
        step = np.linalg.solve(curvature, gradient)
        for _ in range(_HALVINGS):
            trial = loss(vector - step)
            if trial <= reached:
                break
            step *= 0.5
        else:
            break
        vector = vector - step
        gained, reached = reached - trial, trial
        if gained <= 1e-12 * abs(reached):
            break
    return vector.astype(np.float32)
