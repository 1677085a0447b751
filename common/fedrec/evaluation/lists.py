"""Metrics of top-K lists at several K, for any number of test items per user.

They need every user's list, so no client sends them. Means are over users with a test item. With
binary relevance, R the number of a user's test items and p(i) the share of users that hold item i:

- precision is hits / K, recall is hits / R, and AP has min(R, K) as its divisor;
- NDCG divides by the gain of min(R, K) hits at the top, discounted by log2(rank + 1);
- AUC is the share of pairs of a test item and another candidate in the right order, ties counted
  half, averaged over users with the weight R;
- coverage is the share of the catalogue in any list, and novelty the mean of -log2 p over entries;
- Gini is the coefficient of the numbers of lists that the catalogue's items are in.

RecBole's metrics have the same values, with its GAUC for AUC. LensKit's have, too, except that its
recall divides by min(R, K) and its NDCG by default doesn't discount the second rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.data.splits import NO_ITEM, HeldOut


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRates:
    """The metrics of some users' lists at one K."""

    at: int
    users: int
    hr: float
    precision: float
    recall: float
    map: float
    mrr: float
    ndcg: float
    coverage: float
    novelty: float
    gini: float


def list_rates(
    lists: NDArray[np.int64],
    held: HeldOut,
    at: int,
    holders: NDArray[np.int64],
    n_users: int,
) -> ListRates | None:
    """Return the metrics of lists cut after K items, or None if no user has a test item.

    Args:
        lists: each user's best items, the best first, `NO_ITEM` after the last, (n_users, K or
            more).
        held: the same users' test items.
        at: the K.
        holders: the number of users that hold each item, int64 (n_items,). Items without any count
            as held by one.
        n_users: the number of all users, from which holders were counted.
    """
    has = np.diff(held.indptr) > 0
    n_items = len(holders)
    if not has.any():
        return None
    best = lists[has, :at]
    relevant = np.diff(held.indptr)[has, None]
    wanted = held.owner * n_items + held.items
    mine = np.nonzero(has)[0][:, None] * n_items + best
    hits = (best != NO_ITEM) & np.isin(mine, wanted)
    ranks = np.arange(1, best.shape[1] + 1)
    gains = 1.0 / np.log2(ranks + 1.0)
    most = np.minimum(relevant[:, 0], at)
    ideal = np.cumsum(1.0 / np.log2(np.arange(1, at + 1) + 1.0))[most - 1]
    listed = best[best != NO_ITEM]
    counts = np.sort(np.bincount(listed, minlength=n_items))
    places = 2 * np.arange(1, n_items + 1) - n_items - 1
    first = hits.argmax(axis=1)
    return ListRates(
        at=at,
        users=int(has.sum()),
        hr=float(hits.any(axis=1).mean()),
        precision=float((hits.sum(axis=1) / at).mean()),
        recall=float((hits.sum(axis=1) / relevant[:, 0]).mean()),
        map=float(((hits * hits.cumsum(axis=1) / ranks).sum(axis=1) / most).mean()),
        mrr=float((hits.any(axis=1) / (first + 1.0)).mean()),
        ndcg=float(((hits * gains).sum(axis=1) / ideal).mean()),
        coverage=float((counts > 0).mean()),
        novelty=float(-np.log2(np.maximum(holders[listed], 1) / n_users).mean())
        if len(listed)
        else 0.0,
        gini=float((places * counts).sum() / (n_items * max(1, len(listed)))),
    )


def auc(above: NDArray[np.float64], n_others: NDArray[np.int64], held: HeldOut) -> float | None:
    """Return the AUC, or None if no user has both a test item and another candidate.

    Args:
        above: for each test item, the number of other candidates with a higher score, ties counted
            half. Test items are no candidates here, float64 (n_test,).
        n_others: the number of each user's candidates that are no test items, int64 (n_users,).
    """
    counted = n_others[held.owner] > 0
    if not counted.any():
        return None
    return float((1.0 - above[counted] / n_others[held.owner][counted]).mean())


def activity_groups(
    activity: NDArray[np.int64], n_groups: int
) -> Sequence[tuple[str, NDArray[np.bool_]]]:
    """Return groups of about equally many users by activity, each with its span as a label.

    Users with the same activity are in one group.

    Args:
        activity: training interactions, int64 (n_users,).
    """
    shares = np.arange(1, n_groups) / n_groups
    edges = np.unique(np.quantile(activity, shares, method="lower"))
    # Users at an edge are below it.
    group = np.searchsorted(edges, activity, side="left")
    found = []
    for place in np.unique(group):
        inside = group == place
        least, most = int(activity[inside].min()), int(activity[inside].max())
        found.append((str(least) if least == most else f"{least} to {most}", inside))
    return found
