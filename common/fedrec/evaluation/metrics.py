"""Metric sums: each user's contribution, and the rates computed from the sums.

The metrics segment of an update is a list of non-negative int64 sums over users, in the order of
`METRIC_NAMES`. Outside the clients only sums over all users of a round exist. Under encryption not
even one client's sums are visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "METRIC_NAMES",
    "N_CANDIDATES",
    "PROTOCOLS",
    "RANK_FIELDS",
    "RANK_METRICS",
    "RATES",
    "SCORERS",
    "MetricSums",
    "Protocol",
    "Rates",
    "Scorer",
    "Split",
    "largest_sums",
    "rank_values",
    "rate_of_users",
    "rates_of",
    "rates_of_ranks",
]

Scorer = Literal["model", "popularity", "know_nothing", "untrained", "local"]
Split = Literal["validation", "test"]
Protocol = Literal["full", "sampled", "paper"]
"""The sets of items to rank against, as `fedrec.evaluation.protocols` defines them."""

SCORERS: tuple[Scorer, ...] = ("model", "popularity", "know_nothing", "untrained", "local")
"""The model and its references. References are measured only in the measuring round."""
SPLITS: tuple[Split, ...] = ("validation", "test")
PROTOCOLS: tuple[Protocol, ...] = ("full", "sampled", "paper")
N_CANDIDATES = 99
"""The number of negatives to rank against under `sampled` and `paper`."""
_TRAINING_FIELDS = ("participants", "loss", "clipped_values", "clipped_users", "abstained")
"""The last one counts parties that contributed nothing, because training diverged."""

FRACTION_BITS = 20
"""Gains and reciprocal ranks are multiples of 2^-20."""
LOSS_BITS = 15
MAXIMUM_LOSS = 32.0
MAXIMUM_PER_USER = 1 << FRACTION_BITS
"""A bound on one user's contribution to any slot of the segment."""


@dataclass(frozen=True, slots=True)
class RankMetric:
    """A sum over users of the value of a held-out item's rank, and the rates computed from it.

    Attributes:
        name: the name of the sum.
        rates: the fields of `Rates` that are its mean.
        unit: the value of the first rank.
        discount: the divisor of the unit for float64 ranks from 0 below K. It is 1 at rank 0.
    """

    name: str
    rates: tuple[str, ...]
    unit: int
    discount: Callable[[NDArray[np.float64]], NDArray[np.float64]]


RANK_METRICS: tuple[RankMetric, ...] = (
    # With one held-out item for each user, Recall@K equals HR@K.
    RankMetric("hits", ("hr", "recall"), 1, np.ones_like),
    RankMetric("gain", ("ndcg",), MAXIMUM_PER_USER, lambda ranks: np.log2(ranks + 2.0)),
    RankMetric("reciprocal", ("mrr",), MAXIMUM_PER_USER, lambda ranks: ranks + 1.0),
)
RATES: tuple[str, ...] = tuple(rate for metric in RANK_METRICS for rate in metric.rates)
RANK_FIELDS: tuple[str, ...] = ("users", *(metric.name for metric in RANK_METRICS))
METRIC_NAMES: tuple[str, ...] = _TRAINING_FIELDS + tuple(
    f"{scorer}.{split}.{field}" for scorer in SCORERS for split in SPLITS for field in RANK_FIELDS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Means over the users that have a held-out item."""

    users: int
    hr: float
    recall: float
    ndcg: float
    mrr: float


@dataclass(frozen=True, slots=True)
class MetricSums:
    """The metrics segment of one aggregate."""

    values: NDArray[np.int64]

    @classmethod
    def of_event(cls, values: Iterable[int]) -> MetricSums | None:
        """Return the sums that an event lists, or None if it lists none or other ones."""
        found = np.array(list(values), dtype=np.int64)
        return cls(found) if len(found) == len(METRIC_NAMES) else None

    def sum_of(self, name: str) -> int:
        """Return the integer sum called `name` (one of `METRIC_NAMES`)."""
        return int(self.values[METRIC_NAMES.index(name)])

    def rates(self, scorer: Scorer, split: Split) -> Rates | None:
        """Return the rates of a scorer, or None when it was not measured in this round."""
        return rates_of(self.sum_of(f"{scorer}.{split}.{field}") for field in RANK_FIELDS)

    @property
    def participants(self) -> int:
        """The number of users that trained in the round."""
        return self.sum_of("participants")

    @property
    def abstained(self) -> int:
        """The number of parties that contributed nothing, because training diverged."""
        return self.sum_of("abstained")

    @property
    def loss(self) -> float | None:
        """Mean training loss per participating user, or None if no user trained."""
        if self.participants == 0:
            return None
        return self.sum_of("loss") / (self.participants * float(1 << LOSS_BITS))


def largest_sums(
    found: NDArray[np.int64], *, most_users: int, n_parties: int, trains: bool
) -> NDArray[np.int64]:
    """Return a bound on each sum, given the numbers of users in the same segment.

    Within it rates are at most 1, and no party's share exceeds that of its users.

    Args:
        found: the segment, int64 (len(METRIC_NAMES),).
        most_users: largest number of users of all its parties.
        trains: whether any user trained.
    """
    largest = np.empty(len(METRIC_NAMES), dtype=np.int64)
    trained = min(max(int(found[0]), 0), most_users)
    for place, of_one in enumerate((1, int(MAXIMUM_LOSS * (1 << LOSS_BITS)), MAXIMUM_PER_USER, 1)):
        largest[place] = trained * of_one
    largest[0], largest[len(_TRAINING_FIELDS) - 1] = most_users, n_parties
    largest[: len(_TRAINING_FIELDS)] *= trains
    of_ranks = np.clip(found[len(_TRAINING_FIELDS) :: len(RANK_FIELDS)], 0, most_users)
    by_scorer = largest[len(_TRAINING_FIELDS) :].reshape(-1, len(RANK_FIELDS))
    by_scorer[:, 0] = most_users
    by_scorer[:, 1:] = of_ranks[:, None] * np.array([metric.unit for metric in RANK_METRICS])
    return largest


def rates_of(sums: Iterable[int]) -> Rates | None:
    """Return the rates for sums in the order of `RANK_FIELDS`.

    Return None if no user was measured.
    """
    users, *others = sums
    if users == 0:
        return None
    means = {
        rate: found / (users * float(metric.unit))
        for metric, found in zip(RANK_METRICS, others, strict=True)
        for rate in metric.rates
    }
    return Rates(users=users, **means)


def rank_values(ranks: NDArray[np.float64], at: int) -> NDArray[np.int64]:
    """Return every user's contribution to the sums of `RANK_FIELDS`.

    Args:
        ranks: expected 0-based ranks of the held-out items, float64 (n_users,). Negative if a user
            has none. A tie with m other items counts m / 2 places.
        at: the K of HR@K.

    Returns:
        int64 (n_users, len(RANK_FIELDS)): 1, hit, 2^20 / log2(rank + 2), 2^20 / (rank + 1), the
        last two rounded and zero at ranks from K on.
    """
    present = ranks >= 0
    hit = present & (ranks < at)
    place = np.where(hit, ranks, 0.0)
    worth = [
        np.where(hit, np.rint(metric.unit / metric.discount(place)), 0.0) for metric in RANK_METRICS
    ]
    return np.stack([present, *worth], axis=1).astype(np.int64)


def rates_of_ranks(ranks: NDArray[np.float64], at: int) -> Rates | None:
    """Return the means over users with a held-out item, or None if no user has one."""
    return rates_of(rank_values(ranks, at).sum(0).tolist())


def rate_of_users(ranks: NDArray[np.float64], at: int, rate: str = "ndcg") -> NDArray[np.float64]:
    """Return every user's value of a rate (one of `RATES`), float64 (n_users,), as in the sums."""
    place = next(place for place, metric in enumerate(RANK_METRICS) if rate in metric.rates)
    return rank_values(ranks, at)[:, place + 1] / float(RANK_METRICS[place].unit)
