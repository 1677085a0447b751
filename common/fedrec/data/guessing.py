"""Find a file's columns by their names, and propose columns in errors by their values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from fedrec.data.column_kinds import ENOUGH, Column, ColumnKind, number_of, role_of_name
from fedrec.data.gathering import Columns
from fedrec.data.reading import (
    ROLES,
    USUAL_NAMES,
    Reading,
    flag_of,
    is_nothing,
    usual_columns,
)
from fedrec.data.times import looks_like_time
from fedrec.errors import DataError

_SHAPES = ((re.compile(r"\d+"), "9"), (re.compile(r"[^\W\d_]+"), "a"))
_MOST_READINGS = 4
_MOST_COLUMNS, _SHOWN_COLUMNS = 20, 10

Rows = Sequence[Sequence[str]]
"""The first rows of a file as fields, without the header."""
Choice = Mapping[str, Sequence[Column]]
"""The columns that each role may have."""

_ALONE = {ColumnKind.CODES}
_IDS = _ALONE | {ColumnKind.WORDS}
_SMALL = _IDS | {ColumnKind.SCALE, ColumnKind.FEW, ColumnKind.CONSTANT}
_TIERS = (_ALONE, _IDS, _SMALL | {ColumnKind.MOMENTS})
"""Kinds of columns that may hold ids, tried in this order."""
_NO_IDS = (ColumnKind.EMPTY, ColumnKind.DATES, ColumnKind.MEASURES, ColumnKind.PROSE)
_TIMES = (ColumnKind.DATES, ColumnKind.MOMENTS)
_DISTINCT = 0.9
"""Columns of a few small numbers count as ids if at least this share of rows has a distinct pair.
"""
_DISTINCT_OF_FEW = 0.2
"""The same share for a few users with repeated items."""


def is_header(names: Sequence[str], rows: Rows) -> bool:
    """Return whether a first line looks like names above rows of matching values.

    In doubt it counts as a row: a name among ids does less harm than a lost id.
    """
    if _is_numbered(names, rows):
        return True
    tells = any(map(role_of_name, names))
    if any(map(is_value, names)) or (len(set(names)) < len(names) and not tells):
        return False
    for place, name in enumerate(names):
        below = [
            row[place] for row in rows if len(row) == len(names) and not is_nothing(row[place])
        ]
        has_digit = any(letter.isdigit() for letter in name)
        if name in below or (has_digit and _shape(name) in map(_shape, below)):
            return False
        tells |= not has_digit and bool(below) and all(re.search(r"\d", text) for text in below)
        tells |= len(below) >= ENOUGH and min(Counter(below).values()) > 1
    return tells


def _is_numbered(names: Sequence[str], rows: Rows) -> bool:
    """Return whether a first line numbers the columns, as pandas does for columns without names."""
    without_index = list(names[1:] if names and not names[0] else names)
    if len(names) < 3 or without_index != list(map(str, range(len(without_index)))):
        return False
    return not names[0] or any("." in row[-1] or looks_like_time(row[-1]) for row in rows if row)


def is_value(text: str) -> bool:
    """Return whether a field is a number or a date, which names of columns are not."""
    return number_of(text) is not None or looks_like_time(text)


def columns_of(names: Sequence[str], rows: Rows) -> list[Column]:
    """Return the columns of rows with as many fields as names, counting repeated rows once."""
    whole = list(dict.fromkeys(tuple(row) for row in rows if len(row) == len(names)))
    values = zip(*whole, strict=True) if whole else [()] * len(names)
    return [
        Column(
            place=place,
            name=name,
            values=["" if is_nothing(value) else value.strip() for value in below],
        )
        for place, (name, below) in enumerate(zip(names, values, strict=True))
    ]


def possible_roles(columns: Sequence[Column], given: Choice) -> list[dict[str, int]]:
    """Return the places of user, item, rating and time in each reading that the values allow.

    Args:
        columns: the candidates.
        given: the columns from which to take one, for roles that names determine.

    Returns:
        No reading if none fits or too many do.
    """
    candidates = given.get("timestamp") or ()
    times = [each for each in candidates if each.kind in _TIMES] or candidates or _times(columns)
    ratings = given.get("rating") or _ratings(columns)
    found: list[dict[str, int]] = []
    for user, item in _pairs(columns, given, times):
        taken = (user, item)
        moments: list[Column | None] = [*_time_candidates(times, taken)]
        rates: list[Column | None] = [
            each
            for each in ratings
            if each not in taken and (each.role or given.get("rating") or each.place > user.place)
        ]
        if len(rates) > 1 and not given.get("rating"):
            rates = []
        for when, rate in product(moments or [None], rates or [None]):
            reading = {"user": user, "item": item, "rating": rate, "timestamp": when}
            found.append({role: each.place for role, each in reading.items() if each})
    return found if len(found) <= _MOST_READINGS else []


def _time_candidates(times: Sequence[Column], ids: tuple[Column, Column]) -> list[Column]:
    """Return the columns that may be times, other than attributes of the user or the item."""
    left = [each for each in times if each not in ids]
    own = [each for each in left if not any(column.determines(each) for column in ids)]
    return own or [each for each in left if each.role == "timestamp"]


def why_none(columns: Sequence[Column]) -> str:
    """Return why values determine no user and no item, as a sentence with a blank after it."""
    shown = "; ".join(column.in_words for column in columns[:_SHOWN_COLUMNS])
    more = len(columns) - _SHOWN_COLUMNS
    shown += f"; and {more} more" if more > 0 else ""
    return f"Their values do not determine the user and the item: {shown}. " if shown else ""


def _times(columns: Sequence[Column]) -> list[Column]:
    timely = [each for each in columns if each.kind in _TIMES]
    named = [each for each in timely if each.role == "timestamp"]
    dates = [
        each for each in timely if each.kind is ColumnKind.DATES and each.role in (None, "other")
    ]
    return named or dates or [each for each in timely if not each.role and not each.is_named_as_id]


def _ratings(columns: Sequence[Column]) -> list[Column]:
    numbers = (ColumnKind.SCALE, ColumnKind.MEASURES, ColumnKind.CONSTANT)
    best = [each for each in columns if each.role == "rating" and each.kind in numbers]
    return best or [each for each in columns if each.role is None and each.kind is ColumnKind.SCALE]


def _pairs(
    columns: Sequence[Column], given: Choice, times: Sequence[Column]
) -> list[tuple[Column, Column]]:
    """Return pairs of columns that may be user and item, in order for a file without names."""
    users, items = given.get("user", []), given.get("item", [])
    users = users or [each for each in columns if each.role == "user"]
    users = users or [each for each in columns if each.role == "session"]
    items = items or [each for each in columns if each.role == "item"]
    free = [each for each in columns if each.role is None and not each.is_decimal]
    ids = [each for each in free if each.kind in _SMALL and each not in times]
    if not columns or len(columns[0].values) < ENOUGH:
        return _pairs_of_few_rows(users, items, ids, times)
    events = [each for each in ids if _is_event(each, [*users, *ids], times)]
    ids = [each for each in ids if each not in events]
    ids += [each for each in times if each.role is None and _repeats_as_ids_do(each)]
    if len(ids) > _MOST_COLUMNS:
        return []
    unique = [each for each in ids if each.kind in _IDS and each.is_unique]
    found: list[tuple[Column, Column]] = []
    for kinds in _TIERS:
        pool = [each for each in ids if each.kind in kinds]
        found = [
            (user, item)
            for user, item in product(users or pool, items or pool)
            if user is not item and _may_be_ids(user, item, certain=bool(users and items))
        ]
        if not (users or items):
            found = [pair for pair in found if _are_in_order(*pair, [*events, *times])]
        if kinds > _IDS and not (users and items):
            # If an id differs in every row, the other columns may be anything.
            found = [pair for pair in found if not unique or pair[1] in unique]
            found = _pairs_of_small(found)
        if found:
            break
    found = list(_without_aliases(found))
    if not (users or items):
        found += _pairs_of_first(found, ids)
    return found


def _pairs_of_few_rows(
    users: Sequence[Column], items: Sequence[Column], ids: Sequence[Column], times: Sequence[Column]
) -> list[tuple[Column, Column]]:
    """Return pairs that may be user and item if rows are too few to show what repeats.

    Either names determine both, or they determine one and a single column is left, or the columns
    are in the usual order of files without names: user, item, and perhaps rating and time.
    """
    left = [each for each in ids if not each.is_unique]
    if users or items:
        left = [each for each in left if each.kind in _IDS]
        left = left if len(left) == 1 else []
        pairs = product(users or left, items or left)
        return [pair for pair in pairs if _may_be_ids(*pair, certain=True)]
    user, item = (*left[:2], None, None)[:2]
    others = [each for each in left[2:] if each.kind is not ColumnKind.CONSTANT]
    if (
        user is None
        or item is None
        or (item.kind is ColumnKind.CONSTANT and len(item.values) > 1)
        or [each.kind for each in others] not in ([], [ColumnKind.SCALE])
        or len(left) < len(ids)
        or any(each.kind is ColumnKind.MOMENTS and each.place < item.place for each in times)
    ):
        return []
    return [pair for pair in ((user, item), (item, user)) if _are_in_order(*pair, times)]


def _pairs_of_first(
    pairs: Sequence[tuple[Column, Column]], ids: Sequence[Column]
) -> list[tuple[Column, Column]]:
    """Return pairs of columns before all others, as users often are, with few values.

    The first rows of a file may belong to few users.
    """
    first = min((user.place for user, _ in pairs), default=0)
    return [
        (user, item)
        for user in ids
        if not user.name and user.kind not in _IDS and user.place < first
        for item in dict.fromkeys(each for pair in pairs for each in pair)
        if _may_be_ids(user, item, certain=False)
        and (user.kind is ColumnKind.CONSTANT or _share_of_pairs(user, item) >= _DISTINCT_OF_FEW)
    ]


def _repeats_as_ids_do(column: Column) -> bool:
    return column.kind is ColumnKind.MOMENTS and 2 * len(set(column.values)) <= len(column.values)


def _are_in_order(user: Column, item: Column, events: Sequence[Column]) -> bool:
    """Return whether two unnamed columns can be user and item in this order.

    Rows of one order or of one time have one user. Otherwise, users are assumed to come before
    items.
    """
    owners = [each for each in (user, item) if any(event.determines(each) for event in events)]
    if len(owners) == 1:
        return owners[0] is user
    is_named = bool(user.name) and not user.name.isdigit()
    return is_named or user.place < item.place


def _may_be_ids(user: Column, item: Column, *, certain: bool) -> bool:
    """Return whether values allow two columns to be user and item.

    Args:
        certain: names determine both.
    """
    if user.kind in _NO_IDS or item.kind in (*_NO_IDS, ColumnKind.CONSTANT) or user.is_unique:
        return False
    one_user = user.kind is ColumnKind.CONSTANT
    if one_user and user.name and user.role != "user":
        return False
    if item.is_unique and (not one_user or item.is_row_number):
        return False
    return certain or not (user.determines(item) or item.determines(user))


def _is_event(column: Column, others: Sequence[Column], times: Sequence[Column]) -> bool:
    """Return whether a column is an order or the like, with one time and one other id."""
    return any(map(column.determines, times)) and any(
        column.determines(each) for each in others if each is not column
    )


def _pairs_of_small(pairs: Sequence[tuple[Column, Column]]) -> list[tuple[Column, Column]]:
    """Return pairs of columns with few values that are ids, not ratings or events.

    A user may have the same item in many rows.
    """
    shares = [
        1.0
        if user.kind is ColumnKind.CONSTANT and item.kind in _IDS
        else _share_of_pairs(user, item)
        for user, item in pairs
    ]
    most = max(shares, default=0.0)
    return [
        pair
        for pair, share in zip(pairs, shares, strict=True)
        if share == most and most >= _DISTINCT
    ]


def _share_of_pairs(user: Column, item: Column) -> float:
    return len(set(zip(user.values, item.values, strict=True))) / len(user.values)


def _without_aliases(pairs: Sequence[tuple[Column, Column]]) -> Iterator[tuple[Column, Column]]:
    """Drop columns with the same values as a better one: one named as an id, or the first."""
    kept: list[tuple[Column, Column]] = []
    for pair in sorted(pairs, key=lambda pair: -sum(each.is_named_as_id for each in pair)):
        if not any(
            _stands_for(user, pair[0]) and _stands_for(item, pair[1]) for user, item in kept
        ):
            kept.append(pair)
    return iter(pair for pair in pairs if pair in kept)


def _stands_for(better: Column, column: Column) -> bool:
    if column is better:
        return True
    named = better.is_named_as_id and not column.is_named_as_id
    return better.determines(column) and (named or column.determines(better))


def no_header(
    path: Path, first: str, fields: Sequence[str], rows: Rows, reading: Reading, separator: str = ""
) -> DataError:
    """Return the error for a file whose first line names no columns.

    Args:
        first: its first line.
        fields: the fields of that line.
        separator: the word for the separator, if the file does not show it.
    """
    options: dict[str, str | None] = {
        name: None
        for name in ("layout", *(f"{role}_column" for role in ROLES))
        if getattr(reading, name) is not None
    }
    if separator:
        options["separator"] = separator
    columns = columns_of([""] * len(fields), [fields, *rows])
    found = [
        ",".join(roles.get(place, "-") for place in range(len(fields)))
        for roles in (
            {place: role for role, place in each.items()} for each in possible_roles(columns, {})
        )
    ]
    return DataError(
        f"The layout of {path} is unknown. Its first line, {first[:120]!r}, does not look like a "
        "header.",
        remedy=("" if found else why_none(columns))
        + f"Name its columns in order with {flag_of('columns')}: user, item, rating, timestamp, "
        "and - for any other. If the line is a header, name its columns with "
        f"{flag_of('user_column')} and {flag_of('item_column')}.",
        readings=[options | {"columns": each} for each in found],
    )


def _shape(text: str) -> str:
    for pattern, sign in _SHAPES:
        text = pattern.sub(sign, text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The position of each column in a row, from 0, or None if it is missing."""

    user: int
    item: int
    rating: int | None = None
    timestamp: int | None = None

    def columns(self, names: Sequence[str]) -> Columns:
        """Return the names of these columns and of the ignored ones."""
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


def places_of_roles(roles: Sequence[str], reading: Reading) -> Places:
    """Return the positions of roles in a file without a header."""
    found = _placed({role: roles.index(role) if role in roles else None for role in ROLES}, reading)
    if found is None:
        raise DataError(f"The columns {', '.join(roles)} lack the user or the item.")
    return found


def _placed(at: Mapping[str, int | None], reading: Reading) -> Places | None:
    """Return the positions of roles, or None without a user or an item."""
    user, item = at["user"], at["item"]
    if user is None or item is None:
        return None
    when = None if reading.timestamp_format == "none" else at["timestamp"]
    return Places(user=user, item=item, rating=at["rating"], timestamp=when)


def find_places(
    path: Path, header: Sequence[str], reading: Reading, rows: Callable[[], Rows] = tuple
) -> Places:
    """Find the columns in a header by the given names or by usual ones.

    Args:
        rows: returns the first rows below it, which tell what columns contain.

    Raises:
        DataError: a column is missing or ambiguous. The message has every problem.
    """
    names = [name.strip() for name in header]
    problems = [f"the column {name!r} twice" for name in names if name and names.count(name) > 1][
        :1
    ]
    found: dict[str, list[str]] = {}
    options: dict[str, str | None] = {}
    # A column named as an item may be called "date" or "rating" without being one.
    free = [name for name in names if name not in {getattr(reading, f"{r}_column") for r in ROLES}]
    for role in ROLES:
        wanted = getattr(reading, f"{role}_column")
        usual = usual_columns(role, names if role in ("user", "item") else free)
        found[role] = usual if wanted is None else [wanted] if wanted in names else []
        if wanted and not found[role]:
            problems.append(f"no column {wanted!r} for the {role}")
            options[f"{role}_column"] = None
            found[role] = usual
        elif len(usual) > 1 and wanted is None:
            problems.append(f"{' and '.join(usual)}, each of which could be the {role}")
        elif role in ("user", "item") and not found[role]:
            problems.append(f"no column for the {role} (one of {', '.join(USUAL_NAMES[role])})")
    read = [role for role in ROLES if role != "timestamp" or reading.timestamp_format != "none"]
    for pair in combinations(read, 2):
        one, other = (found[role] for role in pair)
        if one and one == other:
            problems.append(f"the column {one[0]!r} was named as the {' and as the '.join(pair)}")
            for role in pair:
                options[f"{role}_column"] = None
                found[role] = usual_columns(role, names)
    at = {role: names.index(usual[0]) if usual else None for role, usual in found.items()}
    placed = _placed(at, reading)
    if problems or placed is None:
        first = rows()
        readings = _possible(names, first, reading, found)
        reason = "" if readings else why_none(columns_of(names, first))
        raise DataError(
            f"{path}, line 1, has the columns {', '.join(names[:20]) or 'none'}: "
            f"{'; '.join(problems)}.",
            remedy=f"{reason}Name columns with {flag_of('user_column')}, {flag_of('item_column')}, "
            f"{flag_of('rating_column')} and {flag_of('timestamp_column')}. If line 1 is "
            f"not a header, name all columns, in order, with {flag_of('columns')}.",
            options=options,
            readings=[options | each for each in readings],
        )
    return placed


def _possible(
    names: Sequence[str], rows: Rows, reading: Reading, found: Mapping[str, Sequence[str]]
) -> list[dict[str, str]]:
    """Return names for the missing and ambiguous roles, in each reading that the values allow."""
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
