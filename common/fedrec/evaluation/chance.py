"""What a model that knows nothing gets under `sampled`, where many candidates are never trained.

Items that too few users hold are never recommended: they rank below all others. Of a user's 99
candidates, drawn from the N items outside the user's interactions of which A are trained, U are
trained ones, U ~ Hypergeometric(N, A, 99). A held-out item that is trained is found by random
scores with

    HR@K = E min(1, K / (U + 1));

one that is not is never found. Where all items are trained this is K / 100. No score and no seed
enter, only how many users hold which item.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.evaluation.metrics import N_CANDIDATES

__all__ = ["Chance", "chance_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """What candidates are worth before anything is learned.

    Attributes:
        never_trained: share of candidates that are never trained, a mean over users.
        hr: HR@K of random scores, on test.
    """

    never_trained: float
    hr: float


def chance_of(
    users: UserSplit, active: NDArray[np.int64], *, n_items: int, at: int
) -> Chance | None:
    """Return the means over users with a test item; None where nobody has one.

    Args:
        active: rows of the items that are trained, ascending.
        n_items: items in the whole catalogue.
    """
    present = np.nonzero(users.test_items >= 0)[0]
    if not len(present):
        return None
    is_active = np.zeros(n_items, dtype=np.bool_)
    is_active[active] = True
    owner = users.train_owner
    kept = np.bincount(owner[is_active[users.train_items]], minlength=len(users))
    held = np.diff(users.train_indptr).astype(np.int64)
    for items in (users.validation_items, users.test_items):
        kept += is_active[np.maximum(items, 0)] & (items >= 0)
        held += items >= 0
    pool = np.stack([n_items - held[present], len(active) - kept[present]], axis=1)
    pools, which = np.unique(pool, axis=0, return_inverse=True)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n_items + 1)))])
    found = np.array([_found(int(n), int(a), at, logs) for n, a in pools])[which.ravel()]
    found = np.where(is_active[users.test_items[present]], found, 0.0)
    share = 1.0 - pool[:, 1] / np.maximum(pool[:, 0], 1)
    return Chance(never_trained=float(share.mean()), hr=float(found.mean()))


def _found(n_pool: int, n_active: int, at: int, logs: NDArray[np.float64]) -> float:
    """Return E min(1, at / (U + 1)), with logs[k] = log k!."""
    drawn = min(N_CANDIDATES, n_pool)
    u = np.arange(max(0, drawn - (n_pool - n_active)), min(drawn, n_active) + 1)

    def log_ways(n: int, k: NDArray[np.int64] | int) -> NDArray[np.float64]:
        return np.asarray(logs[n] - logs[k] - logs[n - k])

    weights = np.exp(
        log_ways(n_active, u) + log_ways(n_pool - n_active, drawn - u) - log_ways(n_pool, drawn)
    )
    return float(weights @ np.minimum(1.0, at / (u + 1.0)))
