"""Interactions: rows of user, item and time in canonical orders, with selections and counts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.data.frames import (
    DataFrame,
    are_rated,
    chosen_column,
    column_names,
    object_column,
    times_in,
    whole_times,
)
from fedrec.errors import DataError
from fedrec.ids import digest, id_text
from fedrec.showing import Tabular, bars, html_table


def sorted_ids(ids: Iterable[str]) -> list[str]:
    """Return the distinct ids in their canonical order.

    If every id consists of ASCII digits they are ordered by (length, text), which is the numeric
    order of ids without leading zeros. Otherwise by Unicode code points.
    """
    distinct = set(ids)
    if all(id_.isascii() and id_.isdigit() for id_ in distinct):
        return sorted(distinct, key=lambda id_: (len(id_), id_))
    return sorted(distinct)


def encode_ids(ids: NDArray[np.object_]) -> tuple[list[str], NDArray[np.int64]]:
    """Replace ids by positions in their canonical order.

    Args:
        ids: strings, shape (n_rows,).

    Returns:
        The distinct ids in canonical order, and for each row the position of its id among
        them, shape (n_rows,).
    """
    rows: list[str] = ids.tolist()
    distinct = sorted_ids(rows)
    position = {id_: index for index, id_ in enumerate(distinct)}
    index = np.fromiter(map(position.__getitem__, rows), dtype=np.int64, count=len(rows))
    return distinct, index


def recency_keys(user_ids: Sequence[str], item_ids: Sequence[str]) -> NDArray[np.uint64]:
    """Return the tie-break for interactions with equal or missing times.

    The key is the first 8 bytes, big-endian, of SHA-256 of ``user<TAB>item`` in UTF-8. A larger key
    counts as more recent. It is part of the evaluation protocol, so it never changes.

    Args:
        user_ids: n_rows ids.
        item_ids: n_rows ids.

    Returns:
        Keys of shape (n_rows,).
    """
    sha256 = hashlib.sha256
    prefixes = b"".join(
        [
            sha256(f"{user}\t{item}".encode()).digest()[:8]
            for user, item in zip(user_ids, item_ids, strict=True)
        ]
    )
    return np.frombuffer(prefixes, dtype=">u8").astype(np.uint64)


MISSING_TIMESTAMP = -1
"""The timestamp of a row without a time. It sorts by the tie rule, before all times."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Interactions(Tabular):
    """One row for each interaction. Ids are the data's own strings, and the arrays are read-only.

    Ids are object arrays whose rows share one string for each distinct id: 8 bytes a row, whatever
    its length. Integers become their digits. Ratings are not kept, because every row counts as an
    interaction.

    Attributes:
        user_ids: strings, shape (n_rows,).
        item_ids: strings, shape (n_rows,).
        timestamps: int64 of shape (n_rows,) in the data's own unit, `MISSING_TIMESTAMP` if a row
            has none, or None if no row has one.

    Raises:
        DataError: lengths differ, an id is empty or neither a string nor an integer, or a timestamp
            is negative.
    """

    user_ids: NDArray[np.object_]
    item_ids: NDArray[np.object_]
    timestamps: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Check the columns and make them read-only."""
        columns: dict[str, NDArray[np.object_]] = {
            "user_ids": _id_column("user_ids", self.user_ids),
            "item_ids": _id_column("item_ids", self.item_ids),
        }
        lengths = {name: len(column) for name, column in columns.items()}
        if self.timestamps is not None:
            times = _timestamp_column(self.timestamps)
            lengths["timestamps"] = len(times)
            object.__setattr__(self, "timestamps", times)
        if len(set(lengths.values())) > 1:
            raise DataError(f"The columns of interactions have different lengths: {lengths}.")
        for name, column in columns.items():
            object.__setattr__(self, name, column)

    @classmethod
    def from_arrays(
        cls,
        users: Iterable[str | int],
        items: Iterable[str | int],
        timestamps: Iterable[int] | None = None,
    ) -> Interactions:
        """Build interactions from arrays or other iterables of equal length.

        Args:
            users: the user of each row.
            items: the item of each row.
            timestamps: integers, or dates or points in time, which become microseconds since 1970.
        """
        return cls(
            user_ids=object_column(users),
            item_ids=object_column(items),
            timestamps=None if timestamps is None else whole_times(timestamps, MISSING_TIMESTAMP),
        )

    @classmethod
    def from_frame(
        cls,
        frame: DataFrame,
        *,
        user_column: str | int | None = None,
        item_column: str | int | None = None,
        timestamp_column: str | int | None = None,
        rating_column: str | int | None = None,
        minimum_rating: float | None = None,
    ) -> Interactions:
        """Build interactions from a frame of pandas or polars, or from a table of pyarrow.

        Columns are found by the usual names, such as user_id, item_id, timestamp and rating. Name
        others by `user_column` and so on. Without a header, pandas names them by numbers.

        Args:
            minimum_rating: leave out rows with a lower rating. If omitted, every row counts.

        Raises:
            DataError: a column is missing, several could be meant, or values cannot be used.
        """
        names = column_names(frame)
        user = chosen_column(names, "user", user_column)
        item = chosen_column(names, "item", item_column)
        named = (user_column, item_column, rating_column)
        when = chosen_column(names, "timestamp", timestamp_column, needed=False, taken=named)
        if user == item or when in (user, item):
            raise DataError(
                f"Two of user_column, item_column and timestamp_column are the same column, "
                f"{user if when != item else item!r}.",
                remedy="Name another column for each.",
            )
        found = cls.from_arrays(
            frame[user].to_numpy(),
            frame[item].to_numpy(),
            None if when is None else times_in(frame[when]),
        )
        if minimum_rating is None:
            return found
        rating = chosen_column(names, "rating", rating_column)
        return found.take(are_rated(frame[rating], minimum_rating))

    @classmethod
    def from_scipy(
        cls,
        matrix: Any,
        *,
        user_ids: Sequence[str | int] | None = None,
        item_ids: Sequence[str | int] | None = None,
    ) -> Interactions:
        """Build interactions from a sparse matrix, one for each entry that is not zero.

        Args:
            matrix: a scipy.sparse matrix or array of shape (n_users, n_items).
            user_ids: the id of each row. By default its number from 0.
            item_ids: the same for each column.

        Raises:
            DataError: the number of ids differs from the matrix.
        """
        entries = matrix.tocoo()
        kept = entries.data != 0
        columns = []
        for axis, (name, ids) in enumerate((("user_ids", user_ids), ("item_ids", item_ids))):
            length = entries.shape[axis]
            if ids is not None and len(ids) != length:
                raise DataError(
                    f"{name} has {len(ids)} ids, but the matrix has {length} of them.",
                    remedy=f"Pass {name} with an id for each, or omit it.",
                )
            names = object_column(range(length) if ids is None else ids)
            columns.append(names[(entries.row, entries.col)[axis][kept]])
        return cls.from_arrays(*columns)

    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Return user_id, item_id and, if any row has a time, timestamp."""
        found: dict[str, NDArray[Any]] = {"user_id": self.user_ids, "item_id": self.item_ids}
        return found if self.timestamps is None else found | {"timestamp": self.timestamps}

    def __repr__(self) -> str:
        times = "with" if self.has_times else "without"
        return (
            f"Interactions({len(self):,} rows, {self.n_users:,} users, {self.n_items:,} items, "
            f"{times} times)"
        )

    def _repr_html_(self) -> str:
        summary = describe(self)
        rows = [
            (name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:,.4g}")
            for name in summary.__dataclass_fields__
            for value in (getattr(summary, name),)
        ]
        figure = bars(_by_activity(self), caption="users by their number of interactions")
        return html_table(("", ""), rows, caption=repr(self)) + figure

    def __len__(self) -> int:
        """Return the number of rows, duplicates included."""
        return len(self.user_ids)

    @property
    def n_users(self) -> int:
        """The number of distinct users."""
        return len(set(self.user_ids.tolist()))

    @property
    def n_items(self) -> int:
        """The number of distinct items."""
        return len(set(self.item_ids.tolist()))

    @property
    def has_times(self) -> bool:
        """Whether any row has a time. Without times, the tie rule orders everything."""
        return self.timestamps is not None and bool((self.timestamps != MISSING_TIMESTAMP).any())

    def times(self) -> NDArray[np.int64]:
        """Return the timestamps of shape (n_rows,), with `MISSING_TIMESTAMP` for missing ones."""
        if self.timestamps is None:
            return np.full(len(self), MISSING_TIMESTAMP, dtype=np.int64)
        return self.timestamps

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Interactions:
        """Return the chosen rows, given as positions or as a mask of shape (n_rows,)."""
        # Rows that were checked are not checked again: a million strings take a while.
        made = object.__new__(Interactions)
        for name in ("user_ids", "item_ids", "timestamps"):
            column = getattr(self, name)
            if column is not None:
                column = column[rows]
                column.flags.writeable = False
            object.__setattr__(made, name, column)
        return made

    def canonical(self) -> Interactions:
        """Return the rows ordered by user, item and time, independent of their order before."""
        order, _ = self._canonical_order()
        return self.take(order)

    def deduplicated(self) -> Interactions:
        """Keep each pair of user and item once, at its latest timestamp, in canonical order."""
        order, pair = self._canonical_order()
        pair = pair[order]
        is_last = np.append(pair[1:] != pair[:-1], True)[: len(pair)]
        return self.take(order[is_last])

    def with_minimum(
        self, interactions_per_user: int, interactions_per_item: int = 1
    ) -> Interactions:
        """Keep users with enough distinct items and items with enough users.

        Removing an item may take a user below the minimum and the other way round. Both are removed
        in turn until all reach it, which gives the k-core and does not depend on the order of
        removal. All rows of the remaining pairs stay, in their order.

        Raises:
            DataError: a minimum is below 1.
        """
        if min(interactions_per_user, interactions_per_item) < 1:
            raise DataError(
                f"The minimum is {min(interactions_per_user, interactions_per_item)} interactions, "
                "expected at least 1.",
                remedy="Set it to 1 or more.",
            )
        users, user_index = encode_ids(self.user_ids)
        items, item_index = encode_ids(self.item_ids)
        n_items = max(len(items), 1)
        pair_user, pair_item = np.divmod(np.unique(user_index * n_items + item_index), n_items)
        while True:
            held = np.bincount(pair_user, minlength=len(users))
            holders = np.bincount(pair_item, minlength=len(items))
            kept = (held >= interactions_per_user)[pair_user]
            kept &= (holders >= interactions_per_item)[pair_item]
            if kept.all():
                return self.take((held > 0)[user_index] & (holders > 0)[item_index])
            pair_user, pair_item = pair_user[kept], pair_item[kept]

    def _canonical_order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the order by (user, item, time) and each row's pair number, both (n_rows,)."""
        _, user_index = encode_ids(self.user_ids)
        items, item_index = encode_ids(self.item_ids)
        pair = user_index * max(len(items), 1) + item_index
        if self.timestamps is None:
            return np.argsort(pair, kind="stable"), pair
        return np.lexsort((self.timestamps, pair)), pair


def _id_column(name: str, values: object) -> NDArray[np.object_]:
    column = np.asarray(values, dtype=np.object_).view()
    if column.ndim != 1:
        raise DataError(f"{name} has {column.ndim} dimensions, expected one id for each row.")
    ids = column.tolist()
    if not all(issubclass(kind, str) for kind in set(map(type, ids))):
        shared: dict[object, object] = {id_: id_text(id_) for id_ in set(ids)}
        ids = [shared[id_] for id_ in ids]
        column = object_column(ids)
    foreign = sorted(kind.__name__ for kind in set(map(type, ids)) if not issubclass(kind, str))
    if foreign:
        row = next(row for row, id_ in enumerate(ids) if not isinstance(id_, str))
        raise DataError(
            f"{name} contains values of type {', '.join(foreign)}, expected strings or integers. "
            f"Row {row}, counted from 0, has {ids[row]!r}.",
            remedy="Leave out rows without an id (dropna in pandas), and convert the others "
            "(astype(int) or astype(str)).",
        )
    if "" in ids:
        raise DataError(
            f"{name} contains an empty id, first in row {ids.index('')}, counted from 0.",
            remedy="Leave out rows without an id.",
        )
    column.flags.writeable = False
    return column


def _timestamp_column(values: object) -> NDArray[np.int64]:
    times = np.asarray(values)
    if times.ndim != 1 or times.dtype.kind not in "iu":
        raise DataError(
            f"timestamps have shape {times.shape} and type {times.dtype}, expected one integer for "
            "each row."
        )
    times = times.astype(np.int64, copy=False).view()
    if len(times) and times.min() < MISSING_TIMESTAMP:
        raise DataError(
            f"timestamps contain {times.min()}, expected 0 or more, or {MISSING_TIMESTAMP} for a "
            "missing one."
        )
    times.flags.writeable = False
    return times


def user_groups(user_ids: Sequence[str], n_parts: int, *, seed: int = 0) -> list[NDArray[np.int64]]:
    """Return the positions of each part's users, ascending. Parts may be empty.

    Users are ordered by a hash of (seed, id) and dealt out in turn. So part sizes differ by at most
    one user, and neither order nor machine matters. Adding a user may move others.

    Raises:
        DataError: `n_parts` is below 1.
    """
    if n_parts < 1:
        raise DataError(f"{n_parts} parts were requested.", remedy="Ask for 1 or more.")
    hashes = [digest("fedrec partition", seed, user) for user in user_ids]
    dealt = np.array(sorted(range(len(user_ids)), key=hashes.__getitem__), dtype=np.int64)
    return [np.sort(dealt[part::n_parts]) for part in range(n_parts)]


def partition_users(interactions: Interactions, n_parts: int, seed: int = 0) -> list[Interactions]:
    """Assign every user, with all its rows, to exactly one of `n_parts` parts, by `user_groups`.

    Rows of a part are in canonical order. Parts may be empty.

    Raises:
        DataError: `n_parts` is below 1.
    """
    ordered = interactions.canonical()
    users, user_index = encode_ids(ordered.user_ids)
    part_of_user = np.empty(len(users), dtype=np.int64)
    for part, group in enumerate(user_groups(users, n_parts, seed=seed)):
        part_of_user[group] = part
    part_of_row = part_of_user[user_index]
    return [ordered.take(part_of_row == part) for part in range(n_parts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """The counts of `describe`. An interaction is a distinct pair of user and item.

    Attributes:
        n_users: distinct users.
        n_items: distinct items with at least one holder.
        n_interactions: distinct pairs.
        n_duplicates: rows beyond the distinct pairs.
        density: share of all possible pairs, from 0 to 1.
        minimum_per_user: the minimum number of interactions of a user.
        median_per_user: median over users.
        maximum_per_user: the maximum number of interactions of a user.
        interactions_without_time: pairs without a time. If all lack one, held-out items are random.
        users_with_tied_last_timestamp: users with two or more items at their latest time. The tie
            rule chooses their test item.
        items_with_one_holder: items whose row in a released sum is one user's alone.
        items_below_minimum_holders: items with fewer holders than the given minimum.
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


def _by_activity(interactions: Interactions) -> dict[str, float]:
    """Return the number of users by their number of rows, in powers of two."""
    users, index = encode_ids(interactions.user_ids)
    powers = np.frexp(np.bincount(index, minlength=len(users)))[1]
    counts = np.bincount(powers)
    return {
        f"{1 << (power - 1):,} to {(1 << power) - 1:,}": float(counts[power])
        for power in range(1, len(counts))
    }


def describe(interactions: Interactions, *, minimum_item_users: int = 10) -> DatasetSummary:
    """Count users, items, interactions, ties and rarely held items. All 0 for no data."""
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
