"""Whether a federation of these users can start: what a simulation refuses, and `fedrec check`."""

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
    """Refuse a federation that has all of these users and no others, where it could not train.

    Args:
        users: everybody in the federation.
        n_items: size of the catalogue.
        also: protocols to measure under besides the plan's.
        holders: users of each item as its count round finds them, (n_items,); by default all.

    Raises:
        SettingsError: the plan has no room for so many users, or the algorithm for so many items.
        DataError: the data set is too small.
    """
    if len(users) > plan.federation.maximum_users:
        raise SettingsError(
            f"The data has {len(users)} users, but federation.maximum_users is "
            f"{plan.federation.maximum_users}.",
            remedy="Raise federation.maximum_users; overflow bounds are proven for it.",
        )
    check_data(plan, users, n_items, also)
    if holders is None:
        # The count round of a federation comes to the same holders.
        holders = np.bincount(users.train_items, minlength=n_items).astype(np.int64)
    rows = ActiveRows.of(plan, n_items, holders)
    rows.check(plan)
    Layout.of(plan, rows.n_rows, n_items)


def check_data(plan: Plan, users: UserSplit, n_items: int, also: Sequence[Protocol] = ()) -> None:
    """Refuse data with which nothing could be trained or measured; name every reason.

    Args:
        users: everybody in the federation.
        n_items: size of the catalogue.
        also: protocols to measure under besides the plan's.

    Raises:
        DataError: the data set is too small.
    """
    problems, remedies = [], []
    # Under noise nobody counts holders, and every row is trained.
    fewest = plan.federation.minimum_item_users if plan.privacy.mechanism == "none" else 1
    most = int(np.bincount(users.train_items, minlength=1).max())
    if most < fewest:
        problems.append(
            f"no item is held by {fewest} users (federation.minimum_item_users), the most common "
            f"one by {most}, so that no row would be trained"
        )
        remedies.append(f"lower federation.minimum_item_users to {max(1, most)} or less")
    if not (users.test_items >= 0).any():
        problems.append("no user has 3 interactions, so that nothing is held out to measure with")
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
            remedy=f"{'; '.join(remedies).capitalize()}; or give more data.",
        )
