"""Rates without learning: of random scores under sampled candidates, and of the leak of paper."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.evaluation.metrics import N_CANDIDATES, Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """The value of candidates before anything is learned.

    Attributes:
        never_trained: share of candidates that are never trained, a mean over users.
        hr: HR@K of random scores, on test.
    """

    never_trained: float
    hr: float


def chance_of(
    users: UserSplit, active: NDArray[np.int64], *, n_items: int, at: int
) -> Chance | None:
    """Return the means over users with a test item, or None if no user has one.

    Args:
        active: rows of the items that are trained, ascending.
        n_items: items in the whole catalogue.
    """
    present = np.nonzero(users.test_items >= 0)[0]
    if not len(present):
        return None
    is_active = np.zeros(n_items, dtype=np.bool_)
    is_active[active] = True
    kept = users.counts_among(is_active)
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


def no_learning_rates(
    users: UserSplit,
    active: NDArray[np.int64],
    *,
    n_items: int,
    rounds: int,
    user_fraction: float,
    negatives_per_positive: int,
    at: int,
) -> Rates | None:
    """Return the means of the formula over users with a test item, or None if no user has one.

    Args:
        active: rows of the items that can be drawn and recommended, ascending.
        n_items: items in the whole catalogue.
    """
    present = np.nonzero(users.test_items >= 0)[0]
    if not len(present):
        return None
    is_active = np.zeros(n_items, dtype=np.bool_)
    is_active[active] = True
    trained = users.counts_among(is_active)[present]
    kept = trained.copy()
    for held in (users.validation_items[present], users.test_items[present]):
        kept += is_active[np.maximum(held, 0)] & (held >= 0)
    pool = np.maximum(len(active) - kept, 1)
    held_out = np.diff(users.train_indptr)[present] + 1 + (users.validation_items[present] >= 0)
    found = is_active[users.test_items[present]]
    # Users with equal numbers of items of each kind have the same chances.
    alike = np.stack([trained, pool, held_out])[:, found]
    (trained, pool, held_out), n_alike = np.unique(alike, axis=1, return_counts=True)
    recommendable = pool / np.maximum(n_items - held_out, 1)
    never = np.clip(1.0 - negatives_per_positive / pool, 0.0, 1.0)
    values = np.array(_values_by_tied(at))
    total = np.zeros(3)
    for taken, weight in _binomial(rounds, user_fraction):
        tied = np.minimum(recommendable, 1.0) * never ** (trained * taken)
        total += weight * (n_alike @ (_binomial_rows(tied) @ values))
    hr, ndcg, mrr = (total / len(present)).tolist()
    return Rates(users=len(present), hr=hr, recall=hr, ndcg=ndcg, mrr=mrr)


def _values_by_tied(at: int) -> list[tuple[float, float, float]]:
    """Return (HR, NDCG, MRR) of a held-out item that ties with 0, 1, ... 99 others for the top."""
    rows = []
    for size in range(1, N_CANDIDATES + 2):
        places = range(1, min(at, size) + 1)
        gain = math.fsum(1.0 / math.log2(place + 1) for place in places)
        reciprocal = math.fsum(1.0 / place for place in places)
        rows.append((len(places) / size, gain / size, reciprocal / size))
    return rows


def _binomial(n: int, p: float) -> list[tuple[int, float]]:
    """Return the outcomes of Binomial(n, p) with relevant probabilities."""
    if p >= 1.0:
        return [(n, 1.0)]
    logs = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        + k * math.log(p) + (n - k) * math.log1p(-p)
        for k in range(n + 1)
    ]  # fmt: skip
    return [(k, math.exp(value)) for k, value in enumerate(logs) if value > -40.0]


def _binomial_rows(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of 0 .. 99 of Binomial(99, p), (n_kinds, 100)."""
    k = np.arange(N_CANDIDATES + 1)
    ways = np.array([float(math.comb(N_CANDIDATES, int(value))) for value in k])
    return np.asarray(ways * p[:, None] ** k * (1.0 - p[:, None]) ** (N_CANDIDATES - k))
