"""Which column of a file is the user, the item, the rating and the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrec.data.chunks import Columns
from fedrec.data.guessing import Rows, guessed_names
from fedrec.data.reading import ROLES, Reading, flag_of
from fedrec.errors import DataError

__all__ = ["Places", "find_places", "known_roles", "places_of_roles"]

_KNOWN: dict[str, tuple[str, ...]] = {
    "user": ("user_id", "userid", "user", "uid", "reviewerid", "customer_id"),
    "item": ("item_id", "itemid", "item", "iid", "movieid", "movie_id", "asin", "product_id"),
    "rating": ("rating", "ratings", "score", "overall", "stars"),
    "timestamp": (
        "timestamp", "time", "unix_timestamp", "ts", "unixreviewtime", "date", "datetime",
    ),
}  # fmt: skip
"""Usual names of columns, in any case."""


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
    names = {name.strip().casefold() for name in header}
    return {role for role, known in _KNOWN.items() if names & set(known)}


def places_of_roles(roles: Sequence[str], reading: Reading) -> Places:
    """Return the places in a file without a header."""
    at = {role: roles.index(role) if role in roles else None for role in ROLES}
    user, item = at["user"], at["item"]
    if user is None or item is None:
        raise DataError(f"The columns {', '.join(roles)} have no user or no item.")
    when = None if reading.timestamp_format == "none" else at["timestamp"]
    return Places(user=user, item=item, rating=at["rating"], timestamp=when)


def find_places(path: Path, header: Sequence[str], reading: Reading, rows: Rows = ()) -> Places:
    """Look the columns up in a header, by the names that were given or by usual ones.

    Args:
        rows: some rows under it, to guess from what columns are that nobody named.

    Raises:
        DataError: a column is missing, or two could be meant; every problem is named.
    """
    names = [name.strip() for name in header]
    problems = [f"the column {name!r} twice" for name in names if name and names.count(name) > 1][
        :1
    ]
    found: dict[str, int | None] = {}
    options: dict[str, str | None] = {}
    unknown: list[str] = []
    for role in ROLES:
        wanted = getattr(reading, f"{role}_column")
        usual = [name for name in names if name.casefold() in _KNOWN[role]]
        matching = [wanted] if wanted in names else [] if wanted else list(dict.fromkeys(usual))
        found[role] = names.index(matching[0]) if matching else None
        if wanted and not matching:
            problems.append(f"no column {wanted!r} for the {role}")
            options[f"{role}_column"] = None
        if len(matching) > 1:
            problems.append(f"{' and '.join(matching)}, each of which could be the {role}")
            options[f"{role}_column"] = matching[0]
        elif not matching and not usual:
            if role != "rating" or reading.minimum_rating is not None:
                unknown.append(role)
            if role in ("user", "item") and not wanted:
                problems.append(f"no column for the {role} (one of {', '.join(_KNOWN[role])})")
    user, item = found["user"], found["item"]
    if problems or user is None or item is None:
        raise DataError(
            f"{path}, line 1, has the columns {', '.join(names[:20]) or 'none'}: "
            f"{'; '.join(problems)}.",
            remedy=f"Name columns with {flag_of('user_column')}, {flag_of('item_column')}, "
            f"{flag_of('rating_column')} and {flag_of('timestamp_column')}. If line 1 is no "
            f"header, name all of them, in order, with {flag_of('columns')}.",
            options=options | _guessed(names, rows, unknown, set(found.values())),
        )
    when = None if reading.timestamp_format == "none" else found["timestamp"]
    return Places(user=user, item=item, rating=found["rating"], timestamp=when)


def _guessed(
    names: Sequence[str], rows: Rows, roles: Sequence[str], taken: set[int | None]
) -> dict[str, str | None]:
    """Return names for roles that have none, of places not taken; nothing without both ids."""
    free = {
        name
        for place, name in enumerate(names)
        if name and place not in taken and not known_roles([name])
    }
    found = guessed_names(names, rows, roles, free)
    if not {"user", "item"} & set(roles) <= set(found):
        return {}
    return {f"{role}_column": name for role, name in found.items()}
