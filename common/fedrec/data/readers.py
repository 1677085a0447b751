"""Reading interactions from the files that recommender data comes in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.data.interactions import MISSING_TIMESTAMP, Interactions
from fedrec.data.layouts import (
    BadRow,
    ColumnNames,
    Rows,
    read_inter,
    read_named_csv,
    read_parquet,
    read_positional,
    split_header,
)
from fedrec.errors import DataError

__all__ = ["READERS", "BadRow", "ReadReport", "read_interactions"]

REPORTED_ROWS = 20
_LATEST = 2**63
_NO_ID = frozenset({"", "nan", "NaN"})

READERS: dict[str, Callable[[Path, ColumnNames], Rows]] = {
    "u.data": partial(read_positional, separator="\t", n_fields=4),
    "ratings.dat": partial(read_positional, separator="::", n_fields=4),
    "ratings.csv": read_named_csv,
    "ratings.txt": partial(read_positional, separator=None, n_fields=3),
    "amazon": partial(read_positional, separator=",", n_fields=4),
    "inter": read_inter,
    "csv": read_named_csv,
    "parquet": read_parquet,
}
"""One reader per layout; ``amazon`` is user,item,rating,time without a header, by name only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """What was read from a file, and what was not.

    Attributes:
        path: the file.
        layout: the layout it was read in, a key of `READERS`.
        n_rows: rows found, bad ones included, header and blank lines not.
        n_bad: rows left out.
        bad_rows: the first 20 of them.
        n_missing_timestamps: kept rows whose time is missing (all where there is no column).
        n_rounded_timestamps: kept rows whose time had a fraction, which was cut off.
    """

    path: Path
    layout: str
    n_rows: int
    n_bad: int
    bad_rows: tuple[BadRow, ...]
    n_missing_timestamps: int
    n_rounded_timestamps: int


def read_interactions(
    path: str | Path,
    *,
    layout: str | None = None,
    user_column: str | None = None,
    item_column: str | None = None,
    timestamp_column: str | None = None,
    strict: bool = False,
) -> tuple[Interactions, ReadReport]:
    """Read one file of interactions; every row counts, whatever its rating.

    Text is UTF-8, with or without a byte order mark, with any line ends. Ids are kept as the
    file writes them. A row is bad if it has another number of fields than its file, an id that
    is empty or NaN, or a time that is neither empty nor a number of at least 0.

    Args:
        path: the file.
        layout: a key of `READERS`; None finds it from the file's name and first line.
        user_column: the header's name of the user column; None takes a usual one.
        item_column: the header's name of the item column; None takes a usual one.
        timestamp_column: the header's name of the time column; None takes a usual one if it is
            there, else the interactions have no timestamps.
        strict: refuse a file with bad rows instead of leaving them out.

    Returns:
        The interactions in the order of the file, and the report.

    Raises:
        DataError: the file is missing, empty, not UTF-8, of unknown layout, lacks a column, has
            no usable row, or has a bad row where `strict`.
    """
    path = Path(path)
    columns = ColumnNames(user=user_column, item=item_column, timestamp=timestamp_column)
    try:
        _refuse_unreadable(path)
        name = detect_layout(path) if layout is None else layout
        if name not in READERS:
            raise DataError(
                f"The layout {name!r} is unknown.", remedy=f"Choose one of {', '.join(READERS)}."
            )
        interactions, report = _collect(path, name, READERS[name](path, columns))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text: {error.reason} near byte {error.start} of a block.",
            remedy="Convert it to UTF-8 first.",
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    if report.n_rows == 0:
        raise DataError(f"{path} has no rows.", remedy="Check the path.")
    if not len(interactions) or (strict and report.n_bad):
        raise DataError(
            f"{path}, read as {name}: {report.n_bad} of {report.n_rows} rows are bad. "
            + " ".join(f"Line {bad.line}: {bad.reason}." for bad in report.bad_rows),
            remedy="Correct these rows or choose another layout"
            + (", or read without strict." if len(interactions) else "."),
        )
    return interactions, report


def detect_layout(path: Path) -> str:
    """Return the key of `READERS` that fits a file's name and first line.

    Raises:
        DataError: none fits, with what was found and what is known.
    """
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return "parquet"
    tabs, commas, spaces = (split_header(path, separator) for separator in ("\t", ",", " "))
    doubled = split_header(path, "::")
    if suffix == ".inter" and any(":" in field for field in tabs):
        return "inter"
    if suffix == ".dat" and len(doubled) == 4:
        return "ratings.dat"
    if suffix == ".data" and len(tabs) == 4:
        return "u.data"
    if suffix == ".txt" and len(spaces) == 3 and all(map(_is_number, spaces)):
        return "ratings.txt"
    if suffix == ".csv" and len(commas) > 1 and not any(map(_is_number, commas)):
        return "ratings.csv" if commas[:2] == ["userId", "movieId"] else "csv"
    first = tabs[0] if len(tabs) == 1 else " <TAB> ".join(tabs)
    raise DataError(
        f"The layout of {path} is unknown; its first line is {first[:120]!r}. Expected u.data "
        "(4 fields between tabs), ratings.dat (4 between '::'), .csv with a header, .inter with "
        "a typed header, ratings.txt (3 numbers between spaces) or .parquet.",
        remedy=f"Name the layout: one of {', '.join(READERS)}.",
    )


def _refuse_unreadable(path: Path) -> None:
    if not path.is_file():
        raise DataError(
            f"{path} is {'a folder' if path.is_dir() else 'not there'}; expected a file.",
            remedy="Check the path.",
        )
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; expected interactions.", remedy="Check the path.")


def _collect(path: Path, layout: str, found: Rows) -> tuple[Interactions, ReadReport]:
    """Check every row and gather the good ones in columns."""
    users: list[str] = []
    items: list[str] = []
    times: list[int] = []
    bad: list[BadRow] = []
    known: dict[Any, str] = {}
    n_rows = n_bad = n_rounded = 0
    for row in found.rows:
        n_rows += 1
        try:
            if isinstance(row, BadRow):
                raise ValueError(row.reason)
            _, raw_user, raw_item, when = row
            # One string per distinct id, checked when it is first met.
            user = known.get(raw_user) or _checked_id(raw_user, "user")
            item = known.get(raw_item) or _checked_id(raw_item, "item")
            time, rounded = _checked_time(when)
        except ValueError as error:
            n_bad += 1
            if len(bad) < REPORTED_ROWS:
                number = row.line if isinstance(row, BadRow) else row[0]
                bad.append(BadRow(line=number, reason=str(error)))
            continue
        n_rounded += rounded
        users.append(known.setdefault(raw_user, user))
        items.append(known.setdefault(raw_item, item))
        times.append(time)
    interactions = Interactions.from_columns(users, items, times if found.has_timestamps else None)
    report = ReadReport(
        path=path,
        layout=layout,
        n_rows=n_rows,
        n_bad=n_bad,
        bad_rows=tuple(bad),
        n_missing_timestamps=int(np.count_nonzero(interactions.times() == MISSING_TIMESTAMP)),
        n_rounded_timestamps=n_rounded,
    )
    return interactions, report


def _checked_id(value: Any, role: str) -> str:
    if type(value) is str:
        if value in _NO_ID or value.isspace():
            raise ValueError(f"the {role}'s id is {value!r}")
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a column of integers with gaps comes as floats
    if value is None or isinstance(value, float):
        raise ValueError(f"the {role}'s id is {value}")
    return str(value)


def _checked_time(value: Any) -> tuple[int, bool]:
    """Return a time in whole units and whether a fraction was cut off."""
    if value is None or value == "":
        return MISSING_TIMESTAMP, False
    try:
        time, rounded = int(value), False
        if type(value) is not str and time != value:
            rounded = True
    except (ValueError, OverflowError):
        time, rounded = _from_float(value)
    if not 0 <= time < _LATEST or (type(value) is str and "_" in value):
        raise ValueError(f"the time is {value!r}, expected a number from 0")
    return time, rounded


def _from_float(value: Any) -> tuple[int, bool]:
    try:
        if value.isspace():
            return MISSING_TIMESTAMP, False
        number = float(value)
    except (AttributeError, ValueError):
        number = float("nan")
    if not isfinite(number):
        raise ValueError(f"the time is {value!r}, expected a number from 0")
    return int(number), not number.is_integer()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
