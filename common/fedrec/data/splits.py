"""Divide histories into training, validation and test items.

Leave-one-out, of which a federation's metrics are: each user's last interaction is for test and the
previous one for validation. `hold_out` also divides by a share of each history, or at one time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedrec.data.catalogue import Catalogue
from fedrec.data.interactions import Interactions, encode_ids, recency_keys
from fedrec.data.mapped_items import MappedItems
from fedrec.errors import DataError
from fedrec.ids import UserId
from fedrec.own_folder import ITEMS_PREFIX, MOST_FILE_USERS, remove_abandoned
from fedrec.showing import bars, html_table

NO_ITEM = -1
"""Marks a missing validation or test item, for users with fewer than 3 interactions."""


_ITEMS_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserSplit:
    """Training items of each user as compressed sparse rows, and the two held-out items.

    Users are in the canonical order of their ids, and items are rows of the catalogue.

    Attributes:
        user_ids: n_users ids.
        train_indptr: int64 of shape (n_users + 1,). User u's training items are
            ``train_items[train_indptr[u]:train_indptr[u + 1]]``, ascending.
        train_items: int64 of shape (n_train,), in memory or in files (see `in_files`).
        validation_items: int64 of shape (n_users,), `NO_ITEM` if there is none.
        test_items: int64 of shape (n_users,), `NO_ITEM` if there is none.
    """

    user_ids: tuple[UserId, ...]
    train_indptr: NDArray[np.int64]
    train_items: NDArray[np.int64] | MappedItems
    validation_items: NDArray[np.int64]
    test_items: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"UserSplit({', '.join(f'{count:,} {what}' for what, count in self._counts())})"

    def _repr_html_(self) -> str:
        active = np.frexp(np.diff(self.train_indptr))[1]
        groups = {
            f"{(1 << power) >> 1:,} to {(1 << power) - 1:,}": float((active == power).sum())
            for power in np.unique(active).tolist()
        }
        figure = bars(groups, caption="users by their number of training items")
        counts = [(what, f"{count:,}") for what, count in self._counts()]
        return html_table(("", "number"), counts, caption="UserSplit") + figure

    def _counts(self) -> list[tuple[str, int]]:
        return [
            ("users", len(self)),
            ("training items", self.n_train),
            ("validation items", int((self.validation_items != NO_ITEM).sum())),
            ("test items", int((self.test_items != NO_ITEM).sum())),
        ]

    def __len__(self) -> int:
        """Return the number of users."""
        return len(self.user_ids)

    @property
    def n_users(self) -> int:
        """The number of users."""
        return len(self.user_ids)

    @property
    def n_train(self) -> int:
        """The number of training interactions of all users."""
        return len(self.train_items)

    @property
    def train_owner(self) -> NDArray[np.int64]:
        """The position of each training item's user, int64 (n_train,)."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.train_indptr))

    def train_of(self, user_index: int) -> NDArray[np.int64]:
        """Return one user's training items, ascending."""
        return self.train_items[self.train_indptr[user_index] : self.train_indptr[user_index + 1]]

    def item_counts(self, n_items: int) -> NDArray[np.int64]:
        """Return the number of users that train on each item, int64 (n_items,)."""
        found = np.zeros(n_items, dtype=np.int64)
        for begin in range(0, self.n_train, _ITEMS_AT_ONCE):
            part = self.train_items[begin : begin + _ITEMS_AT_ONCE]
            found += np.bincount(part, minlength=n_items)
        return found

    def counts_among(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the number of each user's training items that are chosen, int64 (n_users,).

        Args:
            chosen: whether each item is, bool (n_items,).
        """
        found = np.zeros(len(self), dtype=np.int64)
        for begin in range(0, len(self), MOST_FILE_USERS):
            starts = self.train_indptr[begin : begin + MOST_FILE_USERS + 1]
            before = np.cumsum(chosen[self.train_items[starts[0] : starts[-1]]])
            found[begin : begin + MOST_FILE_USERS] = np.diff(
                np.append(0, before)[starts - starts[0]]
            )
        return found

    def in_files(self, folder: Path | None = None) -> UserSplit:
        """Return the same users, with their training items in files of up to 100,000 users each.

        Fewer users stay in memory. Files of killed processes are removed from the folder.

        Args:
            folder: the folder for the folder with the files, or None for the system's temporary
                one. See `MappedItems.written`.

        Raises:
            DiskFull: the disk has no room for them.
            SettingsError: the folder can't be written.
        """
        within = Path(tempfile.gettempdir()) if folder is None else folder
        if len(self) <= MOST_FILE_USERS:
            remove_abandoned(within, ITEMS_PREFIX)
            return self
        ends = np.append(self.train_indptr[:-1:MOST_FILE_USERS], self.n_train).tolist()
        parts = (self.train_items[begin:end] for begin, end in pairwise(ends))
        return replace(self, train_items=MappedItems.written(parts, within))

    def select(self, user_index: NDArray[np.int64]) -> UserSplit:
        """Return the split of some users, in the order given.

        Args:
            user_index: the users' positions, shape (n_chosen,).

        Raises:
            DataError: a position is outside 0 .. n_users - 1.
        """
        chosen = np.asarray(user_index, dtype=np.int64)
        outside = chosen[(chosen < 0) | (chosen >= len(self))]
        if len(outside):
            raise DataError(f"User {outside[0]} is outside the {len(self)} users of this split.")
        starts = self.train_indptr[chosen]
        lengths = self.train_indptr[chosen + 1] - starts
        indptr = _indptr(lengths)
        gather = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)
        return UserSplit(
            user_ids=tuple(self.user_ids[index] for index in chosen.tolist()),
            train_indptr=indptr,
            train_items=self.train_items[gather],
            validation_items=self.validation_items[chosen],
            test_items=self.test_items[chosen],
        )

    def renumbered(self, rows: NDArray[np.int64]) -> UserSplit:
        """Return the split with other item rows.

        Args:
            rows: the new row of each item, or -1 if it has none, int64 (n_items,).
        """
        owner, items = self.train_owner, rows[self.train_items]
        owner, items = owner[items >= 0], items[items >= 0]
        # Index -1 of the lookup table maps `NO_ITEM`, which is -1, to itself.
        held_out = np.append(rows, NO_ITEM)
        return UserSplit(
            user_ids=self.user_ids,
            train_indptr=_indptr(np.bincount(owner, minlength=len(self))),
            train_items=_ascending(owner, items),
            validation_items=held_out[self.validation_items],
            test_items=held_out[self.test_items],
        )

    def whole(self) -> UserSplit:
        """Return the same users with their held-out items added to the training items."""
        each_user = np.arange(len(self), dtype=np.int64)
        owner = np.concatenate([self.train_owner, each_user, each_user])
        items = np.concatenate([self.train_items, self.validation_items, self.test_items])
        return _all_for_training(self.user_ids, owner[items != NO_ITEM], items[items != NO_ITEM])

    def user_keys(self) -> NDArray[np.int64]:
        """Return each user's identity for streams of randomness, int64 of shape (n_users,).

        It is the first 8 bytes, big-endian and signed, of SHA-256 of ``fedrec user<TAB>id``. It
        depends on the user alone, not on other users in the split.
        """
        prefixes = b"".join(
            [sha256(f"fedrec user\t{user}".encode()).digest()[:8] for user in self.user_ids]
        )
        return np.frombuffer(prefixes, dtype=">i8").astype(np.int64)


Divide: TypeAlias = Callable[[Interactions, Catalogue], UserSplit]
"""The signature of `leave_one_out` and `undivided`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldOut:
    """The test items of users, any number for each, in the order of a `UserSplit`.

    Attributes:
        indptr: int64 (n_users + 1,). User u's items are ``items[indptr[u]:indptr[u + 1]]``.
        items: rows of the catalogue, the oldest interaction of a user first, int64 (n_test,).
    """

    indptr: NDArray[np.int64]
    items: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"HeldOut({len(self.items):,} test items of {len(self.indptr) - 1:,} users)"

    @property
    def owner(self) -> NDArray[np.int64]:
        """The position of each item's user, int64 (n_test,)."""
        return np.repeat(np.arange(len(self.indptr) - 1, dtype=np.int64), np.diff(self.indptr))

    def select(self, kept: NDArray[np.bool_]) -> HeldOut:
        """Return the items of some users, which keep their order."""
        sizes = np.diff(self.indptr)
        return HeldOut(indptr=_indptr(sizes[kept]), items=self.items[np.repeat(kept, sizes)])


By: TypeAlias = Literal["last", "ratio", "time"]
BY: tuple[By, ...] = ("last", "ratio", "time")


def leave_one_out(
    interactions: Interactions, catalogue: Catalogue, *, minimum_interactions: int = 1
) -> UserSplit:
    """Split each user's history by time, independent of the order of rows.

    A pair of user and item counts once, at its latest time. Equal or missing times are ordered by
    `fedrec.data.interactions.recency_keys`. A user with fewer than 3 interactions keeps all of them
    for training.

    Args:
        interactions: the interactions.
        catalogue: the federation's items, which may include more than the interactions do.
        minimum_interactions: users with fewer distinct items are left out.

    Raises:
        CatalogueMismatch: some items are outside the catalogue.
        DataError: no user is left.
    """
    return hold_out(interactions, catalogue, minimum_interactions=minimum_interactions)[0]


def hold_out(
    interactions: Interactions,
    catalogue: Catalogue,
    *,
    by: By = "last",
    share: float = 0.2,
    minimum_interactions: int = 1,
) -> tuple[UserSplit, HeldOut]:
    """Split each user's history by time, as `leave_one_out` does, with any number of test items.

    Validation is the item before the first test item. The test item of the `UserSplit` is the first
    one, the user's next item. The others are in no part of it. A user that would keep fewer than 2
    items before its test items has none.

    Args:
        by: "last" holds out the last item of each user. "ratio" holds out the latest share of each
            history, rounded down but at least one item. "time" holds out everything from one time
            on, the same for all users, before which all but the share of the interactions are.
            Later interactions of users without test items are left out.
        share: the share of interactions for test.
        minimum_interactions: users with fewer distinct items are left out.

    Raises:
        CatalogueMismatch: some items are outside the catalogue.
        DataError: no user is left, an argument has another type or value, or a time is missing.
    """
    for name, value, kind, remedy in (
        ("interactions", interactions, Interactions, "Use Interactions.from_frame(...)."),
        ("catalogue", catalogue, Catalogue, "Use Catalogue.from_interactions(interactions)."),
    ):
        if not isinstance(value, kind):
            raise DataError(f"{name} is of type {type(value).__name__}.", remedy=remedy)
    if by not in BY:
        raise DataError(f"by is {by!r}.", remedy=f"Choose among {', '.join(BY)}.")
    if not isinstance(share, Real) or not 0.0 < share < 1.0:
        raise DataError(f"share is {share!r}.", remedy="Pass a number between 0 and 1.")
    unique = interactions.deduplicated()
    item_rows = catalogue.rows_of(unique.item_ids.tolist())
    users, user_index = encode_ids(unique.user_ids)
    held = np.bincount(user_index, minlength=len(users))
    kept = held[user_index] >= minimum_interactions
    if not kept.any():
        raise DataError(
            f"None of the {len(users)} users has {minimum_interactions} interactions or more.",
            remedy="Lower minimum_interactions, or check the data.",
        )
    late = np.zeros(len(unique), dtype=np.bool_)
    if by == "time":
        late = _late(unique, share)
        before = np.bincount(user_index, weights=~late, minlength=len(users))
        # Without a past, a user has nothing to train on and nothing to be measured by.
        kept &= ~late | (before >= 2)[user_index]
    if not kept.all():
        unique, item_rows, late = unique.take(kept), item_rows[kept], late[kept]
        users, user_index = encode_ids(unique.user_ids)
        held = np.bincount(user_index, minlength=len(users))

    order = _by_user_and_recency(unique, user_index, item_rows)
    item_rows, user_index = item_rows[order], user_index[order]
    ends = np.cumsum(held)
    if by == "time":
        n_test = np.bincount(user_index, weights=late[order], minlength=len(users)).astype(np.int64)
    else:
        wished = np.ones_like(held) if by == "last" else (held * share).astype(np.int64)
        n_test = np.where(held >= 3, np.clip(wished, 1, np.maximum(held - 2, 1)), 0)
    has_test = n_test > 0
    validation = np.full(len(users), NO_ITEM, dtype=np.int64)
    test = np.full(len(users), NO_ITEM, dtype=np.int64)
    first = (ends - n_test)[has_test]
    validation[has_test] = item_rows[first - 1]
    test[has_test] = item_rows[first]

    place = np.arange(len(item_rows))
    is_train = place < (ends - n_test - has_test)[user_index]
    is_test = place >= (ends - n_test)[user_index]
    train_items, train_users = item_rows[is_train], user_index[is_train]
    split = UserSplit(
        user_ids=tuple(map(UserId, users)),
        train_indptr=_indptr(held - n_test - has_test),
        train_items=_ascending(train_users, train_items),
        validation_items=validation,
        test_items=test,
    )
    return split, HeldOut(indptr=_indptr(n_test), items=item_rows[is_test])


def _late(unique: Interactions, share: float) -> NDArray[np.bool_]:
    """Return which interactions are at or after the time that separates their latest share."""
    times = unique.times()
    if (times < 0).any():
        raise DataError(
            "Some interactions have no time, so they can't be divided at one.",
            remedy='Use "ratio" or "last".',
        )
    return np.asarray(times >= np.sort(times)[int(len(times) * (1.0 - share))])


def undivided(interactions: Interactions, catalogue: Catalogue) -> UserSplit:
    """Return the result of `leave_one_out` followed by `UserSplit.whole`: all items, none held out.

    It skips ordering each user's interactions, which is most of the work if times are missing or
    equal.

    Raises:
        CatalogueMismatch: some items are outside the catalogue.
        DataError: there are no interactions.
    """
    if not len(interactions):
        return leave_one_out(interactions, catalogue)
    item_rows = catalogue.rows_of(interactions.item_ids.tolist())
    users, user_index = encode_ids(interactions.user_ids)
    pairs = np.sort(user_index * len(catalogue) + item_rows)
    pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])]
    owner, items = np.divmod(pairs, len(catalogue))
    return _all_for_training(tuple(map(UserId, users)), owner, items)


def _all_for_training(
    user_ids: tuple[UserId, ...], owner: NDArray[np.int64], items: NDArray[np.int64]
) -> UserSplit:
    nothing = np.full(len(user_ids), NO_ITEM, dtype=np.int64)
    return UserSplit(
        user_ids=user_ids,
        train_indptr=_indptr(np.bincount(owner, minlength=len(user_ids))),
        train_items=_ascending(owner, items),
        validation_items=nothing,
        test_items=nothing,
    )


def _ascending(owner: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return items (n,) grouped by owner, ascending within each group."""
    width = int(items.max(initial=0)) + 1
    # Sorting one combined number takes a tenth of the time of two keys.
    return np.sort(owner * width + items) % width


def _by_user_and_recency(
    unique: Interactions, user_index: NDArray[np.int64], item_rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the order of rows by user, then from the oldest to the most recent, (n_rows,)."""
    times = unique.times()
    order = np.lexsort((times, user_index))
    same = (user_index[order][1:] == user_index[order][:-1]) & (
        times[order][1:] == times[order][:-1]
    )
    tied = np.zeros(len(order), dtype=np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    rows = order[tied]
    if len(rows):
        keys = recency_keys(unique.user_ids[rows].tolist(), unique.item_ids[rows].tolist())
        # The item's row decides between equal keys, so that even a hash collision has one
        # outcome. Rows of one user and time are adjacent, so they are reordered among themselves.
        by = np.lexsort((item_rows[rows], keys, times[rows], user_index[rows]))
        order[tied] = rows[by]
    return order


def _indptr(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
