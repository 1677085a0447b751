"""The audits of item rows and of pair counts: what sums reveal about single users.

`audit_rows` explains item rows. Pair counts determine histories as follows. Released is G: for
every two items with enough holders, the number of users that hold both, and on the diagonal the
holders of each item. If G_jk = 1, exactly one user holds j and k. If G_jj = 1, where
`minimum_item_users` allows it, exactly one user holds j, and k means j below. For that user, every
other item i is

    out        if G_ij = 0 or G_ik = 0: no user holds it with both,
    certain    if G_ij = G_jj or G_ik = G_kk: all holders of j, or of k, hold it, or
               if G_ij + G_ik > G_ii: some holder of i holds both j and k, and that is the user.

These are Bonferroni's bounds on the number of users that hold i, j and k. If every item is one or
the other, the user's history among these items is determined. A reader can subtract it from G, and
what is left is the G of all others. The audit repeats this until it finds no more users.

The result is a lower bound. The inference uses three items at a time and no other knowledge. The
equations as a whole may determine further users, and so may knowledge of some of their items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError
from fedrec.ids import UserId
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.schema import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCount:
    """A number with its meaning.

    Attributes:
        key: a stable name, for programs.
    """

    key: str
    count: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The users that released sums determine, according to one inference.

    Attributes:
        released: the sums that were checked.
        inference: how a user is found.
        n_active: the number of items with at least `minimum_item_users` holders.
        determined: the users whose active training items the sums determine.
        findings: further counts.
        advice: the setting that would change this, and how.
    """

    released: str
    inference: str
    n_users: int
    n_items: int
    n_active: int
    minimum_item_users: int
    determined: tuple[UserId, ...]
    findings: tuple[AuditCount, ...]
    advice: str


def audit_rows(plan: Plan, users: UserSplit, n_items: int) -> AuditReport:
    """Return the users that are the only holder of an item with a released row.

    The change of an item's row is a sum over the users that touched it, which include its holders.
    With one holder and few negatives, the row is that user's data, and its direction is the user's
    own vector. Rows of items with fewer than `minimum_item_users` holders are never updated. The
    audit only counts holders. If negatives are drawn, a row also includes users that do not hold
    the item, and a series of sums reveals more than one.

    Raises:
        SettingsError: updates have no rows of items.
    """
    if not any(tensor.per_item for tensor in algorithm_of(plan, n_items).tensors):
        raise SettingsError(
            f"With these settings, the updates of {plan.algorithm.name} have no rows of items: "
            "only the counts of items with enough holders are summed.",
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
        f"with {least} or more holders",
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
                sentence=f"items have fewer than {least} holders, so their rows are never released",
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


_MOST_ITEMS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inferred:
    """Masks of the users that the counts reveal, bool (n_users,), and the counts.

    Attributes:
        determined: mask of the users whose items can be fully reconstructed.
        directly: mask of the users whose items can be reconstructed before any other user's items
            are subtracted.
        alone: mask of the users that hold an item or a pair that no other user holds.
        gram: the counts G, int32 (n_items, n_items).
    """

    determined: NDArray[np.bool_]
    directly: NDArray[np.bool_]
    alone: NDArray[np.bool_]
    gram: NDArray[np.int32]


def determined_users(
    pointers: NDArray[np.int64], items: NDArray[np.int64], n_items: int
) -> Inferred:
    """Return the users that the counts determine. See the module's docstring.

    Args:
        pointers, items: the users' items, ascending, as compressed rows.
        n_items: the number of counted items.
    """
    from fedrec_lab.audit.accelerators.determined_users import look_for_users

    gram = _gram(pointers, items, n_items)
    # Items with many holders first: there a pair that decides nothing is dropped early.
    order = np.argsort(-np.diag(gram), kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(n_items)
    left, rows = np.ascontiguousarray(gram[np.ix_(order, order)]), place[items]
    unknown = np.diff(pointers) > 0
    passes = []
    while True:
        alone, found = np.zeros_like(unknown), np.zeros_like(unknown)
        look_for_users(left, pointers, rows, unknown, alone, found)
        passes.append((found, alone))
        if not found.any():
            break
        for user in np.nonzero(found)[0].tolist():
            own = rows[pointers[user] : pointers[user + 1]]
            left[np.ix_(own, own)] -= 1
        unknown &= ~found
    return Inferred(
        determined=np.logical_or.reduce([found for found, _ in passes]),
        directly=passes[0][0],
        alone=passes[0][1],
        gram=gram,
    )


def check_exact(plan: Plan) -> None:
    """Refuse sums with noise.

    Raises:
        SettingsError: the plan has noise.
    """
    if plan.privacy.mechanism != "none":
        raise SettingsError(
            f"privacy.mechanism is {plan.privacy.mechanism!r}: no pair count can be decoded from "
            "sums with noise on every value.",
            remedy="Audit the noise itself with `fedrec audit --only dp`.",
        )


def audit_pairs(plan: Plan, users: UserSplit, n_items: int) -> AuditReport:
    """Return the users whose training items follow from pair counts. See the module's docstring.

    Raises:
        SettingsError: the sums have noise.
    """
    check_exact(plan)
    least = plan.federation.minimum_item_users
    active, pointers, items = _counted(users, n_items, least)
    sizes = np.diff(pointers)
    inferred = determined_users(pointers, items, len(active))
    determined, gram = inferred.determined, inferred.gram
    whole = determined & (sizes == np.diff(users.train_indptr))
    single = np.triu(gram == 1, 1).sum()
    return AuditReport(
        released=f"how many users hold each pair of the {len(active)} items that {least} or more "
        "hold",
        inference="an item that only one user holds, or a pair that only one user holds and "
        "whose counts with every other item show whether that user has it, too. Then "
        "again without the users found",
        n_users=len(users),
        n_items=n_items,
        n_active=len(active),
        minimum_item_users=least,
        determined=tuple(users.user_ids[index] for index in np.nonzero(determined)[0]),
        findings=(
            AuditCount(
                key="determined_directly",
                count=int(inferred.directly.sum()),
                sentence="of them at once, the others only after subtracting these",
            ),
            AuditCount(
                key="determined_completely",
                count=int(whole.sum()),
                sentence="of them have no other training item, so this is their whole history",
            ),
            AuditCount(
                key="users_with_a_pair_alone",
                count=int(inferred.alone.sum()),
                sentence="users hold a pair of items, or an item, that no other user holds",
            ),
            AuditCount(
                key="pairs_of_one_user",
                count=int(single),
                sentence="pairs of items are held together by exactly one user",
            ),
            AuditCount(
                key="items_of_one_user",
                count=int((np.diag(gram) == 1).sum()),
                sentence="counted items are held by exactly one user",
            ),
        ),
        advice="Raise federation.minimum_item_users: fewer items are counted, and rare ones "
        "reveal most. Pairs with one holder remain. Only another algorithm avoids them.",
    )


def pair_counts_of(
    users: UserSplit, n_items: int, least: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the items with at least this many holders, and G over them."""
    active, pointers, items = _counted(users, n_items, least)
    return active, _gram(pointers, items, len(active))


def _counted(
    users: UserSplit, n_items: int, least: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the counted items, and users' items among them as compressed rows."""
    holders = np.bincount(users.train_items, minlength=n_items)
    active = np.nonzero(holders >= least)[0]
    if len(active) > _MOST_ITEMS:
        raise SettingsError(
            f"{len(active)} items have {least} holders or more, but the audit of pairs takes at "
            f"most {_MOST_ITEMS}.",
            remedy="Raise federation.minimum_item_users, or remove rare items from the data.",
        )
    position = np.full(n_items, -1, dtype=np.int64)
    position[active] = np.arange(len(active))
    counted = users.renumbered(position)
    return active, counted.train_indptr, np.asarray(counted.train_items)


def _gram(pointers: NDArray[np.int64], items: NDArray[np.int64], n_items: int) -> NDArray[np.int32]:
    from fedrec.algorithms.accelerators.pair_counts import count_pairs

    counts = np.zeros(n_items * (n_items - 1) // 2, dtype=np.int64)
    count_pairs(pointers, items, 0, counts)
    gram = np.zeros((n_items, n_items), dtype=np.int32)
    for item in range(n_items):
        begin = item * (item - 1) // 2
        gram[item, :item] = counts[begin : begin + item]
    gram += gram.T
    gram[np.diag_indices_from(gram)] = np.bincount(items, minlength=n_items)
    return gram
