"""The audit of item rows: whose data a row of the shared model is made of.

The change of an item's row is a sum over the users who touched it, and those who hold it are among
them. With one holder, and few negatives beside it, the row is that user's data, and its direction
the user's own vector. Rows of items with fewer than `minimum_item_users` holders are never
updated. The audit counts holders only: where negatives are drawn a row also has users who do not
hold the item, and a series of sums says more than one.
"""

from __future__ import annotations

import numpy as np

from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.schema import Plan
from fedrec_lab.audit.report import AuditCount, AuditReport


def audit_rows(plan: Plan, users: UserSplit, n_items: int) -> AuditReport:
    """Return who is the only holder of an item whose row is released.

    Raises:
        SettingsError: updates have no rows of items.
    """
    if not any(tensor.per_item for tensor in algorithm_of(plan, n_items).tensors):
        raise SettingsError(
            f"The updates of these settings of {plan.algorithm.name} have no rows of items: item "
            "counts are all that is summed, of items that enough users hold.",
            remedy="There is nothing here to audit.",
        )
    least = plan.federation.minimum_item_users
    holders = np.bincount(users.train_items, minlength=n_items)
    active = holders >= least
    owner = users.train_owner
    single = np.unique(owner[(holders == 1)[users.train_items]])
    exposed = single if least == 1 else single[:0]
    rare = ~active & (holders > 0)
    fewest = int(holders[active].min()) if active.any() else 0
    return AuditReport(
        released=f"sums of {plan.algorithm.name} for the rows of the {int(active.sum())} items "
        f"that {least} or more users hold",
        inference="an item that only one user holds: its row is that user's data",
        n_users=len(users),
        n_items=n_items,
        n_active=int(active.sum()),
        minimum_item_users=least,
        determined=tuple(users.user_ids[index] for index in exposed),
        findings=(
            AuditCount(
                key="fewest_holders",
                count=fewest,
                sentence="users hold the rarest item whose row is released",
            ),
            AuditCount(
                key="items_kept_back",
                count=int(rare.sum()),
                sentence=f"items have fewer than {least} holders; their rows are never released",
            ),
            AuditCount(
                key="items_of_one_user",
                count=int((holders == 1).sum()),
                sentence="items are held by exactly one user",
            ),
            AuditCount(
                key="users_alone_with_an_item",
                count=len(single),
                sentence="users are the only holder of an item: with "
                "federation.minimum_item_users = 1 its row would be theirs",
            ),
        ),
        advice="Raise federation.minimum_item_users: rows of items with fewer holders are never "
        "released.",
    )
