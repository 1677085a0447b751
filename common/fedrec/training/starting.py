"""Check whether a federation of these users can start, for simulations and `fedrec check`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.errors import DataError, SettingsError
from fedrec.evaluation.metrics import N_CANDIDATES, Protocol
from fedrec.plan.layout import Layout
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ActiveRows


def check_start(
    plan: Plan,
    users: UserSplit,
    n_items: int,
    also: Sequence[Protocol] = (),
    *,
    holders: NDArray[np.int64] | None = None,
) -> None:
    """Refuse a federation of exactly these users if it couldn't train.

    Args:
        users: all users of the federation.
        n_items: the size of the catalogue.
        also: further protocols to measure under.
        holders: the number of holders of each item in the count round, (n_items,). By default, all
            are counted.

    Raises:
        SettingsError: the plan has no room for this number of users, or the algorithm for this
            number of items.
        DataError: the data set is too small.
    """
    if len(users) > plan.federation.maximum_users:
        raise SettingsError(
            f"The data has {len(users)} users, but federation.maximum_users is "
            f"{plan.federation.maximum_users}.",
            remedy="Raise federation.maximum_users, for which the overflow bounds are proven.",
        )
    check_data(plan, users, n_items, also)
    if holders is None:
        # The federation's count round finds the same holders.
        holders = users.item_counts(n_items)
    rows = ActiveRows.of(plan, n_items, holders)
    rows.check(plan)
    Layout.of(plan, rows.n_rows, n_items)


def check_data(plan: Plan, users: UserSplit, n_items: int, also: Sequence[Protocol] = ()) -> None:
    """Refuse data on which nothing could be trained or measured, with every reason.

    Args:
        users: all users of the federation.
        n_items: the size of the catalogue.
        also: further protocols to measure under.

    Raises:
        DataError: the data set is too small.
    """
    problems, remedies = [], []
    # Under noise, holders aren't counted, and every row is trained.
    fewest = plan.federation.minimum_item_users if plan.privacy.mechanism == "none" else 1
    most = int(users.item_counts(n_items).max(initial=0))
    if most < fewest:
        problems.append(
            f"no item is held by {fewest} users (federation.minimum_item_users), and the most "
            f"common one by {most}, so no row would be trained"
        )
        remedies.append(f"lower federation.minimum_item_users to {max(1, most)} or less")
    if not (users.test_items >= 0).any():
        problems.append("no user has 3 interactions, so nothing is held out to measure with")
        remedies.append("give users with longer histories")
    drawing = [found for found in (plan.evaluation.protocol, *also) if found != "full"]
    if drawing and n_items <= N_CANDIDATES:
        problems.append(
            f'the catalogue has {n_items} items, but evaluation.protocol = "{drawing[0]}" ranks an '
            f"item among {N_CANDIDATES} others"
        )
        remedies.append('use evaluation.protocol = "full" alone')
    if problems:
        raise DataError(
            f"The data set is too small: {'; '.join(problems)}.",
            remedy=f"{', '.join(remedies).capitalize()}, or give more data.",
        )
