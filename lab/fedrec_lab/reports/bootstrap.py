"""How sure a difference between two scorers is: a paired bootstrap over users."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import DataError
from fedrec.evaluation.metrics import ndcg_of_users

_WEIGHTS_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with the percentile interval around it."""

    estimate: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Tell whether a value lies outside the interval."""
        return not self.low <= value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedBootstrap:
    """NDCG@K of a model against that of a reference, on the same users.

    Attributes:
        difference: mean NDCG of the model minus that of the reference.
        ratio: the first divided by the second; infinite where the reference has none.
        users: users who have a held-out item.
        confidence: the share of resamples inside each interval.
    """

    difference: Interval
    ratio: Interval
    users: int
    confidence: float


def paired_bootstrap(
    model_ranks: NDArray[np.float64],
    reference_ranks: NDArray[np.float64],
    *,
    at: int = 10,
    n_resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> PairedBootstrap:
    """Resample users with replacement and return percentile intervals.

    Args:
        model_ranks: 0-based ranks of the held-out items, float64 (n_users,), negative where a
            user has none (`held_out_ranks`).
        reference_ranks: the same users' ranks under the reference.
        at: the K of NDCG@K.

    Raises:
        DataError: the users are not the same, or none has a held-out item.
    """
    if model_ranks.shape != reference_ranks.shape or bool(
        ((model_ranks < 0) != (reference_ranks < 0)).any()
    ):
        raise DataError("The two lists of ranks are not about the same users.")
    present = model_ranks >= 0
    n_users = int(present.sum())
    if n_users == 0:
        raise DataError("No user has a held-out item, so there is nothing to compare.")
    both = np.stack(
        [ndcg_of_users(ranks[present], at) for ranks in (model_ranks, reference_ranks)], axis=1
    )
    means = _resampled_means(both, n_resamples, seed)
    whole = both.mean(axis=0)
    tail = 50.0 * (1.0 - confidence)

    def interval(estimate: float, samples: NDArray[np.float64]) -> Interval:
        # A quantile between two infinite ratios would be no number; an order statistic is one.
        low, high = np.percentile(samples, [tail, 100.0 - tail], method="nearest")
        return Interval(estimate=estimate, low=float(low), high=float(high))

    return PairedBootstrap(
        difference=interval(float(whole[0] - whole[1]), means[:, 0] - means[:, 1]),
        ratio=interval(float(_ratios(whole[None])[0]), _ratios(means)),
        users=n_users,
        confidence=confidence,
    )


def _resampled_means(
    gains: NDArray[np.float64], n_resamples: int, seed: int
) -> NDArray[np.float64]:
    """Return both means in every resample, (n_resamples, 2)."""
    n_users = len(gains)
    random = np.random.Generator(np.random.Philox(seed))
    means = np.empty((n_resamples, 2))
    at_once = max(1, _WEIGHTS_AT_ONCE // n_users)
    for start in range(0, n_resamples, at_once):
        rows = min(at_once, n_resamples - start)
        chosen = random.integers(n_users, size=(rows, n_users))
        means[start : start + rows] = gains[chosen].mean(axis=1)
    return means


def _ratios(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return first / second of every row; infinite for a positive first over zero."""
    first, second = means[:, 0], means[:, 1]
    ratio = np.where(first > 0, np.inf, 1.0)
    return np.divide(first, second, out=ratio, where=second > 0)
