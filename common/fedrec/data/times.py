"""Read times from files: numbers, ISO 8601, or a named format.

Only the order of one user's times matters, so numbers stay in the file's own unit. Dates become
microseconds since 1970 in UTC. One without a time zone counts as UTC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.data.interactions import MISSING_TIMESTAMP
from fedrec.data.reading import flag_of, is_nothing
from fedrec.errors import DataError

_LATEST = 2**63
_EPOCH, _ZONELESS_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
FIRST_TIME = 10**8
"""The smallest number, from 1973, that may be seconds since 1970. Ids and ratings are smaller."""
_FIRST_OF_UNIT = np.array([FIRST_TIME, 10**11, 10**14, 10**17], dtype=np.int64)
"""From 1973 on, a time's size shows its unit: the four ranges do not overlap before 5138."""
_LIKELY = (631_152_000, 2_051_222_400)
"""Seconds since 1970 from 1990 to 2035, in which a number is more likely a time than an id."""
_DAYS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%d.%m.%y", "%d/%m/%y",
    "%m/%d/%y", "%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y",
    "%m %d, %Y",
)  # fmt: skip
_HOURS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_FORMS = (
    "auto",
    *(f"{day}{hour}" for day in _DAYS for hour in _HOURS),
    "%Y-%m-%d %I:%M %p",
    "%Y-%m-%d %I:%M:%S %p",
    "%a %b %d %H:%M:%S %z %Y",
    "%a %b %d %H:%M:%S UTC %Y",
    "%a %b %d %H:%M:%S %Y",
    "%a, %d %b %Y %H:%M:%S %z",
    "%a, %d %b %Y %H:%M:%S GMT",
    "%d %b %Y, %H:%M",
    "Posted %B %d, %Y.",
)
"""Common date formats, for proposals."""
_DATE_LIKE = re.compile(r"(?=(?:\D*\d){3}).*(?:\d[-/., T]|[a-z] \d).{2,40}", re.IGNORECASE)
_COMPACT = re.compile(r"(199|20[0-3])\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])((\d{2}){2,3})?")
_ZONE_NAME = re.compile(r" (UTC|GMT)$")
_TRIED = 100
_KEPT_UNREAD = 1000
_DATE, _ZONED = "a date without a time zone", "a date with a time zone"


class Times:
    """Read the times of a file, chunk by chunk.

    Under ``auto`` a file has numbers of one unit, or dates that either all have a time zone or all
    lack one. A mixture has no reliable order, and `check` refuses it.

    Args:
        how: ``auto``, ``number``, ``iso``, or a format of `datetime.strptime`.
    """

    def __init__(self, how: str) -> None:
        self._how = how
        self._seen: dict[str, tuple[int, Any]] = {}
        self.n_rounded = 0
        self.unread: list[Any] = []
        """The first values that are not times."""

    def read(
        self, values: Sequence[Any], lines: Sequence[int]
    ) -> tuple[NDArray[np.int64], dict[int, str]]:
        """Return times of shape (n_rows,), and why some places have no valid time."""
        if self._how in ("auto", "number"):
            found = _whole_numbers(values)
            if found is not None:
                self._note_units(found, values, lines)
                return found, {}
        times = np.empty(len(values), dtype=np.int64)
        bad: dict[int, str] = {}
        for place, value in enumerate(values):
            try:
                times[place] = self._one(value, lines[place])
            except ValueError as error:
                times[place] = MISSING_TIMESTAMP
                bad[place] = str(error)
                if len(self.unread) < _KEPT_UNREAD:
                    self.unread.append(value)
        return times, bad

    @property
    def are_dates(self) -> bool:
        """Whether dates were read, which became microseconds."""
        return _DATE in self._seen or _ZONED in self._seen

    def check(self, path: Path) -> None:
        """Refuse a file whose times have no common order.

        Raises:
            DataError: the file mixes kinds of times. The message has a line of each kind.
        """
        if self._how != "auto" or len(self._seen) < 2:
            return
        kinds = sorted(self._seen.items(), key=lambda found: found[1][0])
        listed = ", ".join(f"line {line} has {kind} ({value!r})" for kind, (line, value) in kinds)
        remedy = (
            "iso takes dates alone, reads those without a time zone as UTC, and leaves other rows "
            "out"
            if self.are_dates
            else "number takes numbers alone and leaves other rows out"
        )
        raise DataError(
            f"{path} mixes times of different kinds: {listed}.",
            remedy=f"Write all of them in one form, or choose with {flag_of('timestamp_format')}: "
            f"{remedy}. none ignores times, so that held-out items are random.",
            options={"timestamp_format": "iso"} if self._seen.keys() == {_DATE, _ZONED} else None,
        )

    def _note(self, kind: str, line: int, value: Any) -> None:
        if kind not in self._seen:
            self._seen[kind] = (line, value)

    def _note_units(
        self, found: NDArray[np.int64], values: Sequence[Any], lines: Sequence[int]
    ) -> None:
        units = np.searchsorted(_FIRST_OF_UNIT, found, side="right")
        for unit in np.unique(units[units > 0]).tolist():
            place = int(np.argmax(units == unit))
            self._note(f"{_UNITS[unit - 1]} since 1970", lines[place], values[place])

    def _one(self, value: Any, line: int) -> int:
        # Only NaN differs from itself.
        if value is None or value != value or (isinstance(value, str) and is_nothing(value)):
            return MISSING_TIMESTAMP
        number = _number(value) if self._how in ("auto", "number") else None
        if number is not None:
            time = int(number)
            self.n_rounded += time != number
            if not 0 <= time < _LATEST:
                raise ValueError(f"the time is {value!r}, expected a number from 0")
            self._note_units(np.array([time]), [value], [line])
            return time
        if self._how == "number":
            raise ValueError(f"the time is {value!r}, expected a number from 0")
        return self._date(value, line)

    def _date(self, value: Any, line: int) -> int:
        text = str(value).strip()
        try:
            if self._how in ("auto", "iso"):
                found = datetime.fromisoformat(_ZONE_NAME.sub("+00:00", text))
            else:
                found = datetime.strptime(text, self._how)
            zoned = found.tzinfo is not None
            time = (found - (_EPOCH if zoned else _ZONELESS_EPOCH)) // _MICROSECOND
        except (ValueError, OverflowError):
            wanted = {"auto": "a number from 0 or an ISO date", "iso": "an ISO date"}
            like = wanted.get(self._how, f"one like {self._how}")
            raise ValueError(f"the time is {value!r}, expected {like}") from None
        if time < 0:
            raise ValueError(f"the time is {value!r}, expected none before 1970")
        self._note(_ZONED if zoned else _DATE, line, value)
        return time


def formats_that_fit(values: Sequence[Any]) -> list[str]:
    """Return the time formats, including `auto`, with which most values can be read."""
    lines = range(len(values))
    forms = dict.fromkeys(how for value in values[:_TRIED] for how in _forms_of(str(value)))
    n_bad = {how: len(Times(how).read(values, lines)[1]) for how in forms}
    fewest = min(n_bad.values(), default=0)
    return [how for how, count in n_bad.items() if count == fewest and 2 * count < len(values)]


def is_date_form(values: Sequence[str]) -> bool:
    """Return whether text must be dates: a single form fits the first values."""
    some = values[:_TRIED]
    if not some or all(map(_COMPACT.fullmatch, some)):
        return bool(some)
    if _number(some[0]) is not None or not all(map(_DATE_LIKE.match, some)):
        return False
    lines = range(len(some))
    return any(not Times(how).read(some, lines)[1] for how in _forms_of(some[0]))


@lru_cache(maxsize=1024)
def _forms_of(value: str) -> list[str]:
    return [how for how in _FORMS if not Times(how).read([value], [0])[1]]


def looks_like_moments(values: Sequence[float]) -> bool:
    """Return whether all numbers are plausible times since 1970 in one unit.

    Smaller numbers may be times, but also ids or ratings.
    """
    least, most = min(values), max(values)
    return any(
        _LIKELY[0] * 1000**unit <= least and most < _LIKELY[1] * 1000**unit
        for unit in range(len(_UNITS))
    )


def looks_like_time(text: str) -> bool:
    """Return whether text must be a time: a date, or a number from recent years."""
    number = _number(text)
    return is_date_form([text]) if number is None else looks_like_moments([number])


def shown_span(times: NDArray[np.int64], *, are_dates: bool) -> tuple[str, str] | None:
    """Return the first and last time in readable form, or None if all are missing.

    Args:
        are_dates: the times were read from dates. Otherwise the size of the last one shows the
            unit, and other numbers stay numbers.
    """
    known = times[times != MISSING_TIMESTAMP]
    if not len(known):
        return None
    first, last = int(known.min()), int(known.max())
    unit = int(np.searchsorted(_FIRST_OF_UNIT, last, side="right"))
    if are_dates:
        unit = 1 + _UNITS.index("microseconds")
    if not unit:
        return str(first), str(last)
    try:
        dates = [
            _EPOCH + time * 1_000_000 // 1000 ** (unit - 1) * _MICROSECOND for time in (first, last)
        ]
    except OverflowError:
        return str(first), str(last)
    found = [f"{date.isoformat(timespec='seconds').removesuffix('+00:00')}Z" for date in dates]
    return found[0], found[1]


def _whole_numbers(values: Sequence[Any]) -> NDArray[np.int64] | None:
    """Return times as integers, or None unless all are whole numbers from 0."""
    kinds = set(map(type, values))
    if kinds != {int} and (kinds != {str} or "_" in "".join(values)):
        return None
    try:
        found = np.fromiter(map(int, values), np.int64, len(values))
    except (ValueError, OverflowError):
        return None
    return found if not len(found) or found.min() >= 0 else None


def _number(value: Any) -> float | int | None:
    """Return a value as a number, or None if it is not one."""
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        return None
    try:
        return int(value) if isinstance(value, str | int) else _finite(value)
    except (ValueError, TypeError):
        pass
    try:
        return _finite(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _finite(value: Any) -> float:
    number = float(value)
    if not isfinite(number):
        raise ValueError(value)
    return number
