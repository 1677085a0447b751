"""A dataset in a dozen numbers, those that matter for privacy and evaluation among them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrec.data.interactions import MISSING_TIMESTAMP, Interactions
from fedrec.data.ordering import encode_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """What `describe` counts; an interaction is a distinct pair of user and item.

    Attributes:
        n_users: distinct users.
        n_items: distinct items with at least one holder.
        n_interactions: distinct pairs.
        n_duplicates: rows beyond the distinct pairs.
        density: share of all possible pairs, from 0 to 1.
        minimum_per_user: fewest interactions of a user.
        median_per_user: median over users.
        maximum_per_user: most interactions of a user.
        interactions_without_time: pairs whose time is missing; where all are, held-out items are
            random ones.
        users_with_tied_last_timestamp: users whose latest time belongs to two or more of their
            items, so that the tie rule chooses the test item.
        items_with_one_holder: items whose row in a released sum is one user's alone.
        items_below_minimum_holders: items with fewer holders than asked about.
    """

    n_users: int
    n_items: int
    n_interactions: int
    n_duplicates: int
    density: float
    minimum_per_user: int
    median_per_user: float
    maximum_per_user: int
    interactions_without_time: int
    users_with_tied_last_timestamp: int
    items_with_one_holder: int
    items_below_minimum_holders: int


def describe(interactions: Interactions, *, minimum_item_users: int = 10) -> DatasetSummary:
    """Count users, items, interactions, ties and rarely held items; all 0 for no data."""
    unique = interactions.deduplicated()
    users, user_index = encode_ids(unique.user_ids)
    items, item_index = encode_ids(unique.item_ids)
    per_user = np.bincount(user_index, minlength=len(users))
    holders = np.bincount(item_index, minlength=len(items))
    times = unique.times()
    latest = np.full(len(users), np.iinfo(np.int64).min)
    np.maximum.at(latest, user_index, times)
    at_latest = np.bincount(user_index[times == latest[user_index]], minlength=len(users))
    return DatasetSummary(
        n_users=len(users),
        n_items=len(items),
        n_interactions=len(unique),
        n_duplicates=len(interactions) - len(unique),
        density=len(unique) / max(len(users) * len(items), 1),
        minimum_per_user=int(per_user.min(initial=len(unique))),
        median_per_user=float(np.median(per_user)) if len(users) else 0.0,
        maximum_per_user=int(per_user.max(initial=0)),
        interactions_without_time=int(np.count_nonzero(times == MISSING_TIMESTAMP)),
        users_with_tied_last_timestamp=int(np.count_nonzero(at_latest > 1)),
        items_with_one_holder=int(np.count_nonzero(holders == 1)),
        items_below_minimum_holders=int(np.count_nonzero(holders < minimum_item_users)),
    )
