"""Which column of a file is the user, the item, the rating and the time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrec.data.chunks import Columns
from fedrec.data.guessing import Rows, columns_of, possible_roles, why_none
from fedrec.data.reading import ROLES, Reading, flag_of
from fedrec.errors import DataError

_KNOWN: dict[str, tuple[str, ...]] = {
    "user": ("user_id", "userid", "user", "uid", "reviewerid", "customer_id"),
    "item": ("item_id", "itemid", "item", "iid", "movieid", "movie_id", "asin", "product_id"),
    "rating": ("rating", "ratings", "score", "overall", "stars"),
    "timestamp": (
        "timestamp", "time", "unix_timestamp", "ts", "unixreviewtime", "date", "datetime",
    ),
}  # fmt: skip
"""Usual names of columns, in any case, with blanks or hyphens in place of underscores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where in a row each column is, from 0; None where a file has none."""

    user: int
    item: int
    rating: int | None = None
    timestamp: int | None = None

    def columns(self, names: Sequence[str]) -> Columns:
        """Return these columns, and the ignored ones, by the names of all of them."""
        taken = (self.user, self.item, self.rating, self.timestamp)
        rating, timestamp = (
            None if place is None else names[place] for place in (self.rating, self.timestamp)
        )
        return Columns(
            user=names[self.user],
            item=names[self.item],
            rating=rating,
            timestamp=timestamp,
            ignored=tuple(name for place, name in enumerate(names) if place not in taken),
        )


def known_roles(header: Sequence[str]) -> set[str]:
    """Return the roles for which a header has a usual name."""
    names = set(map(_folded, header))
    return {role for role, known in _KNOWN.items() if names & set(known)}


def _folded(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().casefold())


def places_of_roles(roles: Sequence[str], reading: Reading) -> Places:
    """Return the places in a file without a header."""
    at = {role: roles.index(role) if role in roles else None for role in ROLES}
    user, item = at["user"], at["item"]
    if user is None or item is None:
        raise DataError(f"The columns {', '.join(roles)} have no user or no item.")
    when = None if reading.timestamp_format == "none" else at["timestamp"]
    return Places(user=user, item=item, rating=at["rating"], timestamp=when)


def find_places(
    path: Path, header: Sequence[str], reading: Reading, rows: Callable[[], Rows] = tuple
) -> Places:
    """Look the columns up in a header, by the names that were given or by usual ones.

    Args:
        rows: returns the first rows under it, to judge by them what columns are.

    Raises:
        DataError: a column is missing, or two could be meant; every problem is named.
    """
    names = [name.strip() for name in header]
    problems = [f"the column {name!r} twice" for name in names if name and names.count(name) > 1][
        :1
    ]
    found: dict[str, list[str]] = {}
    options: dict[str, str | None] = {}
    for role in ROLES:
        wanted = getattr(reading, f"{role}_column")
        usual = list(dict.fromkeys(name for name in names if _folded(name) in _KNOWN[role]))
        found[role] = usual if wanted is None else [wanted] if wanted in names else []
        if wanted and not found[role]:
            problems.append(f"no column {wanted!r} for the {role}")
            options[f"{role}_column"] = None
            found[role] = usual
        elif len(usual) > 1 and wanted is None:
            problems.append(f"{' and '.join(usual)}, each of which could be the {role}")
        elif role in ("user", "item") and not found[role]:
            problems.append(f"no column for the {role} (one of {', '.join(_KNOWN[role])})")
    at = {role: names.index(usual[0]) if usual else None for role, usual in found.items()}
    user, item = at["user"], at["item"]
    if problems or user is None or item is None:
        first = rows()
        readings = _possible(names, first, reading, found)
        reason = "" if readings else why_none(columns_of(names, first))
        raise DataError(
            f"{path}, line 1, has the columns {', '.join(names[:20]) or 'none'}: "
            f"{'; '.join(problems)}.",
            remedy=f"{reason}Name columns with {flag_of('user_column')}, {flag_of('item_column')}, "
            f"{flag_of('rating_column')} and {flag_of('timestamp_column')}. If line 1 is no "
            f"header, name all of them, in order, with {flag_of('columns')}.",
            options=options,
            readings=[options | each for each in readings],
        )
    when = None if reading.timestamp_format == "none" else at["timestamp"]
    return Places(user=user, item=item, rating=at["rating"], timestamp=when)


def _possible(
    names: Sequence[str], rows: Rows, reading: Reading, found: Mapping[str, Sequence[str]]
) -> list[dict[str, str]]:
    """Return names for the roles that have none or several, in each reading that values allow."""
    columns = columns_of(names, rows)
    given = {role: [columns[names.index(name)] for name in usual] for role, usual in found.items()}
    taken = {each.place for usual in given.values() for each in usual}
    free = [each for each in columns if each.name and each.place not in taken]
    asked = {role for role, usual in found.items() if len(usual) != 1}
    asked -= {"rating"} if reading.minimum_rating is None and not found["rating"] else set()
    asked -= {"timestamp"} if reading.timestamp_format == "none" else set()
    possible: list[dict[str, str]] = []
    for places in possible_roles(free, given):
        each = {f"{role}_column": names[place] for role, place in places.items() if role in asked}
        if each not in possible:
            possible.append(each)
    return possible
