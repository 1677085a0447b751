"""Times as files write them: numbers, ISO 8601, or a format that was named.

Only the order of one user's times matters, so numbers stay in the file's own unit. Dates become
microseconds since 1970 in UTC; one without a time zone counts as UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.data.interactions import MISSING_TIMESTAMP
from fedrec.data.reading import flag_of, is_nothing
from fedrec.errors import DataError

__all__ = ["FIRST_TIME", "Times", "formats_that_fit", "looks_like_time", "shown_span"]

_LATEST = 2**63
_EPOCH, _ZONELESS_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
FIRST_TIME = 10**8
"""From here on, in 1973, a number is more likely seconds since 1970 than anything else."""
_FIRST_OF_UNIT = np.array([FIRST_TIME, 10**11, 10**14, 10**17], dtype=np.int64)
"""From 1973 on a time's unit shows in its size: the four ranges do not meet before 5138."""
_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d")
_FORMS = ("auto", *(f"{day}{hour}" for day in _DAYS for hour in ("", " %H:%M", " %H:%M:%S")))
"""How dates are often written, for proposals."""
_KEPT_UNREAD = 1000
_DATE, _ZONED = "a date without a time zone", "a date with a time zone"


class Times:
    """Reads the times of a file, chunk after chunk.

    Under ``auto`` a file has numbers of one unit, or dates that all have a time zone, or none of
    which has; what mixes them has no order that could be relied on, and `check` refuses it.

    Args:
        how: ``auto``, ``number``, ``iso``, or a format of `datetime.strptime`.
    """

    def __init__(self, how: str) -> None:
        self._how = how
        self._seen: dict[str, tuple[int, Any]] = {}
        self.n_rounded = 0
        self.unread: list[Any] = []
        """The first of the values that are no times."""

    def read(
        self, values: Sequence[Any], lines: Sequence[int]
    ) -> tuple[NDArray[np.int64], dict[int, str]]:
        """Return times of shape (n_rows,), and why those in these places are none."""
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
            DataError: naming a line of each kind.
        """
        if self._how != "auto" or len(self._seen) < 2:
            return
        kinds = sorted(self._seen.items(), key=lambda found: found[1][0])
        listed = ", ".join(f"line {line} has {kind} ({value!r})" for kind, (line, value) in kinds)
        instead = "iso" if self.are_dates else "number"
        remedy = (
            "iso takes dates alone, without a time zone as UTC, and leaves other rows out"
            if self.are_dates
            else "number takes numbers as they are"
        )
        raise DataError(
            f"{path} mixes times of different kinds: {listed}.",
            remedy=f"Write them alike, or say how to take them with {flag_of('timestamp_format')}: "
            f"{remedy}; none leaves times out, so that held-out items are random.",
            options={"timestamp_format": instead},
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
                found = datetime.fromisoformat(text)
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
    """Return the ways of writing times, `auto` among them, under which most values are times."""
    lines = range(len(values))
    n_bad = {how: len(Times(how).read(values, lines)[1]) for how in _FORMS}
    fewest = min(n_bad.values())
    return [how for how, count in n_bad.items() if count == fewest and 2 * count < len(values)]


def looks_like_time(text: str) -> bool:
    """Tell whether text can hardly be anything but a time: a date, or seconds since 1973 or less.

    Smaller numbers may be times, too, but as well ids or ratings.
    """
    if is_nothing(text):
        return False
    number = _number(text)
    if number is not None:
        return bool(FIRST_TIME <= number < _LATEST)
    return bool(formats_that_fit([text]))


def shown_span(times: NDArray[np.int64], *, are_dates: bool) -> tuple[str, str] | None:
    """Return the first and last of some times as people read them; None where all are missing.

    Args:
        are_dates: they came of dates. Else the size of the last one tells the unit, and numbers
            that look like no time stay numbers.
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
    """Return times that are all whole numbers from 0; None where one is not."""
    kinds = set(map(type, values))
    if kinds != {int} and (kinds != {str} or "_" in "".join(values)):
        return None
    try:
        found = np.fromiter(map(int, values), np.int64, len(values))
    except (ValueError, OverflowError):
        return None
    return found if not len(found) or found.min() >= 0 else None


def _number(value: Any) -> float | int | None:
    """Return a value as a number; None where it is none."""
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
