"""What a file's columns may be, guessed from its first rows: for what errors propose, no more."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from fedrec.data.opening import plain_name
from fedrec.data.reading import ROLES, Reading, flag_of, is_nothing
from fedrec.data.times import looks_like_time
from fedrec.errors import DataError

__all__ = ["guessed_names", "is_header", "is_number", "is_value", "no_header", "role_told"]

_TELLING: dict[str, tuple[str, ...]] = {
    "user": ("user", "customer", "client", "member", "person", "buyer", "account"),
    "item": ("item", "product", "article", "movie", "film", "book", "track", "song"),
    "rating": ("rating", "score", "stars"),
    "timestamp": ("time", "date", "when"),
}
"""Parts of names that tell what a column is."""
_SHAPES = ((re.compile(r"\d+"), "9"), (re.compile(r"[^\W\d_]+"), "a"))

Rows = Sequence[Sequence[str]]
"""Rows of a file as its fields, the first one first; the header is none of them."""


def is_header(names: Sequence[str], rows: Rows) -> bool:
    """Tell whether a first line looks like names, above rows that look like what is named.

    Where nothing tells, it is a row: a name among ids does less harm than an id that is lost.
    """
    tells = any(map(role_told, names))
    if any(map(is_value, names)) or (len(set(names)) < len(names) and not tells):
        return False
    for place, name in enumerate(names):
        below = [row[place] for row in rows if len(row) == len(names) and row[place].strip()]
        has_digit = any(letter.isdigit() for letter in name)
        if name in below or (has_digit and _shape(name) in map(_shape, below)):
            return False
        tells |= not has_digit and bool(below) and all(re.search(r"\d", text) for text in below)
    return tells


def is_number(text: str) -> bool:
    """Tell whether a field is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_value(text: str) -> bool:
    """Tell whether a field is a number or a date, as no name of a column is."""
    return is_number(text) or looks_like_time(text)


def guessed_names(
    names: Sequence[str], rows: Rows, roles: Sequence[str], free: Collection[str]
) -> dict[str, str]:
    """Return a column for each of these roles, where one is left: by its name, else by its place.

    Args:
        free: the names that may be given; a time is only what looks like one in every row.
    """
    at = {name: place for place, name in enumerate(names)}
    left = [name for name in names if name in free]
    timely = [name for name in left if _all_times(rows, at[name])]
    found: dict[str, str] = {}
    for role in roles:
        told = [name for name in left if role_told(name) == role]
        fitting = told + [name for name in left if role_told(name) is None and name not in timely]
        if role == "timestamp":
            fitting = [name for name in told if name in timely] + timely
        elif role == "rating":
            fitting = told
        fitting = [name for name in fitting if name in left]
        if fitting:
            found[role] = fitting[0]
            left.remove(fitting[0])
    return found


def no_header(
    path: Path, first: str, fields: Sequence[str], rows: Rows, reading: Reading, separator: str = ""
) -> DataError:
    """Return what to say of a file whose first line names no columns.

    Args:
        first: its first line.
        fields: that line's fields.
        separator: the word for what is between them, where that is not clear from the file.
    """
    if first.lstrip().startswith("#"):
        return _comment(path, first)
    options: dict[str, str | None] = {
        name: None
        for name in ("layout", *(f"{role}_column" for role in ROLES))
        if getattr(reading, name) is not None
    }
    options["columns"] = _guessed_columns([fields, *rows])
    if separator:
        options["separator"] = separator
    return DataError(
        f"The layout of {path} is unknown; its first line is {first[:120]!r}: no header, as it "
        "looks.",
        remedy=f"Name its columns in order with {flag_of('columns')}: user, item, rating, "
        "timestamp, and - for any other. If that line is a header, name columns of it with "
        f"{flag_of('user_column')} and {flag_of('item_column')}.",
        options=options,
    )


def _comment(path: Path, first: str) -> DataError:
    plain = plain_name(path)
    unpacked = "" if plain == path else f"Unpack it to {plain.name}. "
    target = shlex.quote(str(plain.with_name(f"rows-{plain.name}")))
    return DataError(
        f"{path} begins with a comment, {first[:60]!r}; expected a header or rows.",
        remedy=f"{unpacked}Write it without the lines above the rows; a single one goes with: "
        f"tail -n +2 {shlex.quote(str(plain))} > {target}",
    )


def _guessed_columns(rows: Rows) -> str:
    """Return what columns may be: user, item, and what looks like a rating or a time."""
    roles = ["user", "item"]
    for place, field in enumerate(rows[0][2:], start=2):
        looks = "rating" if is_number(field) else "-"
        if _all_times(rows, place):
            looks = "timestamp"
        roles.append(looks if looks not in roles else "-")
    return ",".join(roles)


def role_told(name: str) -> str | None:
    """Return what a part of a column's name tells that it is; None where nothing does."""
    folded = name.casefold()
    for role, words in _TELLING.items():
        if any(word in folded for word in words):
            return role
    return None


def _shape(text: str) -> str:
    for pattern, sign in _SHAPES:
        text = pattern.sub(sign, text)
    return text


def _all_times(rows: Rows, place: int) -> bool:
    values = [row[place] for row in rows if place < len(row) and not is_nothing(row[place])]
    return bool(values) and all(map(looks_like_time, values))
