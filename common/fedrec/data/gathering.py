"""Check the rows of any layout and gather them, some thousand at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.data.interactions import Interactions
from fedrec.data.reading import Reading, is_nothing
from fedrec.data.times import Times

CHUNK_ROWS = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row that was left out.

    Attributes:
        line: its line in the file, from 1. In Parquet its row, from 1.
        reason: the value that was found and what was expected.
    """

    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChunk:
    """Columns of equal length as in the file, and the rows that could not be split.

    Attributes:
        lines: each row's first line in the file, from 1.
        ratings, times: None if the file has no such column or it is not needed.
    """

    lines: Sequence[int]
    users: Sequence[Any]
    items: Sequence[Any]
    ratings: Sequence[Any] | None = None
    times: Sequence[Any] | None = None
    bad: Sequence[BadRow] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The names of a file's columns, ``column 1`` and so on without a header.

    Attributes:
        rating, timestamp: None if the file has no such column.
        ignored: all others, in the order of the file.
    """

    user: str
    item: str
    rating: str | None = None
    timestamp: str | None = None
    ignored: tuple[str, ...] = ()

    def by_role(self) -> dict[str, str | None]:
        """Return the name of each role's column."""
        return {
            "user": self.user,
            "item": self.item,
            "rating": self.rating,
            "timestamp": self.timestamp,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows and columns that a layout reads from a file.

    Attributes:
        separator: the text between two fields, or None if the format has none.
        decimal_comma: whether a rating may be written as 3,5.
        header: the fields of the header as in the file, or None if there is no header.
        has_dates: whether times are dates, given as microseconds since 1970.
    """

    columns: Columns
    chunks: Iterator[RowChunk]
    separator: str | None = None
    decimal_comma: bool = False
    header: Columns | None = None
    has_dates: bool = False


REPORTED_ROWS = 20
_FEW_ROWS = 20
_DECIMAL_COMMA = re.compile(r"\s*-?\d+,\d{1,2}\s*")


@dataclass(slots=True, kw_only=True)
class Gathered:
    """The interactions from a table's rows, with counts of what was left out.

    Attributes:
        n_rows: rows found, bad ones included.
        n_bad: rows left out because they cannot be read.
        n_below: rows left out for their rating.
        n_without_id, n_headers: bad rows without a user or an item, and bad rows that repeat the
            header.
        bad: the first bad rows.
        frequent: ids of users and items in suspiciously many kept rows, as role, id and number of
            rows.
        written_twice: the number of ids of users and of items written both as 1 and as 1.0.
        unread_times: the first values that should be times and are not.
        has_dates: whether times were dates.
    """

    interactions: Interactions = field(default_factory=lambda: Interactions.from_arrays([], []))
    n_rows: int = 0
    n_bad: int = 0
    n_below: int = 0
    n_rounded: int = 0
    n_without_id: int = 0
    n_headers: int = 0
    bad: list[BadRow] = field(default_factory=list)
    unread_times: list[Any] = field(default_factory=list)
    has_dates: bool = False
    frequent: list[tuple[str, str, int]] = field(default_factory=list)
    written_twice: list[tuple[str, int]] = field(default_factory=list)


class _Ids(dict[str, int]):
    """Number ids in the order of their appearance, keeping each distinct id once."""

    def __init__(self) -> None:
        super().__init__()
        self._void: set[int] = set()

    def __missing__(self, key: str) -> int:
        code = len(self)
        self[key] = code
        return code

    def encode(self, values: Sequence[Any], role: str) -> tuple[NDArray[np.int32], dict[int, str]]:
        """Return the number of each id, and why some places have no valid id."""
        before = len(self)
        bad: dict[int, str] = {}
        if set(map(type, values)) - {str}:
            values, bad = _as_text(values, role)
        codes = np.fromiter(map(self.__getitem__, values), np.int32, len(values))
        for key in islice(reversed(self), len(self) - before):
            if is_nothing(key):
                self._void.add(self[key])
        if self._void:
            for place in np.flatnonzero(np.isin(codes, list(self._void))).tolist():
                bad.setdefault(place, f"the {role}'s id is {values[place]!r}")
        return codes, bad


def gather(path: Path, table: Table, reading: Reading) -> Gathered:
    """Read a table to its end.

    Raises:
        DataError: the times have no common order.
    """
    # Dates of a typed column have one unit, whatever their size.
    times = Times("number" if table.has_dates else reading.timestamp_format)
    users, items = _Ids(), _Ids()
    kept: list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64] | None]] = []
    found = Gathered()
    with_times = table.columns.timestamp is not None
    for chunk in table.chunks:
        user, bad = users.encode(chunk.users, "user")
        item, more = items.encode(chunk.items, "item")
        bad = more | bad
        found.n_without_id += len(bad)
        headers = _repeated(table.header, chunk, (user, users), (item, items))
        found.n_headers += len(headers)
        bad |= dict.fromkeys(headers, "the header again")
        when = None
        if with_times and chunk.times is not None:
            when, more = times.read(chunk.times, chunk.lines)
            bad = more | bad
        good = np.ones(len(user), dtype=np.bool_)
        if reading.minimum_rating is not None and chunk.ratings is not None:
            ratings, more = _ratings(chunk.ratings, decimal_comma=table.decimal_comma)
            bad = more | bad
            good = ratings >= reading.minimum_rating
        good[list(bad)] = True
        found.n_below += int(np.count_nonzero(~good))
        good[list(bad)] = False
        found.n_rows += len(user) + len(chunk.bad)
        found.n_bad += len(bad) + len(chunk.bad)
        if len(found.bad) < REPORTED_ROWS:
            found.bad += sorted(_bad_rows(chunk, bad), key=lambda row: row.line)
            del found.bad[REPORTED_ROWS:]
        if not good.all():
            user, item = user[good], item[good]
            when = None if when is None else when[good]
        kept.append((user, item, when))
    times.check(path)
    found.n_rounded, found.unread_times = times.n_rounded, times.unread
    found.has_dates = table.has_dates or times.are_dates
    if any(len(part[0]) for part in kept):
        names = []
        for role, ids, place in (("user", users, 0), ("item", items, 1)):
            codes = np.concatenate([part[place] for part in kept])
            _note_odd_ids(found, role, ids, codes)
            names.append(_names(ids, codes))
        if found.frequent and found.frequent[0][::2] == ("user", len(codes)):
            found.frequent.clear()  # one user may well have one favourite item
        found.interactions = Interactions(
            user_ids=names[0],
            item_ids=names[1],
            timestamps=np.concatenate([part[2] for part in kept if part[2] is not None])
            if with_times
            else None,
        )
    return found


def _names(ids: _Ids, codes: NDArray[np.int32]) -> NDArray[np.object_]:
    distinct = np.empty(len(ids), dtype=np.object_)
    distinct[:] = list(ids)
    return distinct[codes]


def _note_odd_ids(found: Gathered, role: str, ids: _Ids, codes: NDArray[np.int32]) -> None:
    """Note ids of the kept rows that may not identify a user or an item."""
    n_rows = np.bincount(codes, minlength=len(ids))
    n_ids, most = np.count_nonzero(n_rows), int(n_rows.argmax())
    # With a few ids or rows, one of them always has a tenth.
    if n_rows[most] * (10 if n_ids > 10 else 2) > len(codes) >= _FEW_ROWS:
        found.frequent.append((role, list(ids)[most], int(n_rows[most])))
    n_twice = 0
    for id_ in (each for each in ids if "." in each):
        whole, _, zeros = id_.partition(".")
        if not zeros.strip("0") and whole.isdecimal() and whole in ids:
            n_twice += bool(n_rows[ids[whole]] and n_rows[ids[id_]])
    if n_twice:
        found.written_twice.append((role, n_twice))


def _repeated(
    header: Columns | None,
    chunk: RowChunk,
    user: tuple[NDArray[np.int32], _Ids],
    item: tuple[NDArray[np.int32], _Ids],
) -> list[int]:
    """Return the rows of a chunk that repeat the header, as joined files have them."""
    if header is None or header.user not in user[1] or header.item not in item[1]:
        return []
    same = (user[0] == user[1][header.user]) & (item[0] == item[1][header.item])
    return [
        place
        for place in np.flatnonzero(same).tolist()
        if chunk.times is None or chunk.times[place] == header.timestamp
    ]


def _bad_rows(chunk: RowChunk, bad: dict[int, str]) -> Iterator[BadRow]:
    yield from chunk.bad
    for place, reason in bad.items():
        yield BadRow(line=chunk.lines[place], reason=reason)


def _as_text(values: Sequence[Any], role: str) -> tuple[list[str], dict[int, str]]:
    """Return numeric ids as text, and why some places have no valid id."""
    texts: list[str] = []
    bad: dict[int, str] = {}
    for place, value in enumerate(values):
        text = _id_text(value)
        if text is None:
            shown = f"{value!r}"[:40] if not isinstance(value, float) else f"{value}"
            bad[place] = f"the {role}'s id is {shown}"
        texts.append(text or "")
    return texts, bad


def _id_text(value: Any) -> str | None:
    """Return an id as text, or None if it is not one."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        # A column of integers with gaps arrives as floats.
        return str(int(value)) if value.is_integer() else None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _ratings(
    values: Sequence[Any], *, decimal_comma: bool
) -> tuple[NDArray[np.float64], dict[int, str]]:
    """Return ratings of shape (n_rows,), and why some places have no valid rating."""
    try:
        found = np.fromiter(map(float, values), np.float64, len(values))
        if not np.isnan(found).any():
            return found, {}
    except (ValueError, TypeError):
        pass
    found = np.empty(len(values), dtype=np.float64)
    bad: dict[int, str] = {}
    for place, value in enumerate(values):
        if decimal_comma and isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value):
            value = value.replace(",", ".")
        try:
            found[place] = float(value)
        except (ValueError, TypeError):
            found[place] = np.nan
        if isnan(found[place]):
            bad[place] = f"the rating is {value!r}, expected a number"
    return found, bad
