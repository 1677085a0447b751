"""Read interactions from the usual file formats of recommender data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from fedrec.data.decoding import on_disk, reading_problems
from fedrec.data.detection import detect_layout
from fedrec.data.gathering import BadRow, Columns, Gathered, gather
from fedrec.data.interactions import MISSING_TIMESTAMP, Interactions
from fedrec.data.layouts import READERS, parts_of
from fedrec.data.reading import SEPARATORS, Reading, flag_of, separator_word
from fedrec.data.times import FIRST_TIME, formats_that_fit
from fedrec.errors import DataError

_SHOWN_ROWS = 5
_AS_FOUND = Reading()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """The result of reading a file, with counts of the rows that were left out.

    Attributes:
        path: the file.
        layout: the layout it was read in, a key of `READERS`.
        columns: the columns that were used, and the ignored ones.
        separator: the separator, as a word or itself, or None if the format has none.
        n_rows: rows found, including bad ones, without header and blank lines.
        n_bad: rows left out because they cannot be read.
        bad_rows: the first 20 of them.
        n_without_id: bad rows without a user or an item: empty, nan, NA, NULL and the like.
        n_headers: bad rows that repeat the header, as in files that were joined.
        n_below_rating: rows left out because their rating is below the minimum.
        n_missing_timestamps: kept rows without a time (all of them if there is no column).
        n_rounded_timestamps: kept rows whose time had a fraction, which was truncated.
        n_zero_timestamps: kept rows whose time is 0, if that is unlikely to be meant.
        has_dates: whether times were dates, which became microseconds since 1970.
        frequent: an id in more than a tenth of the kept rows, as in ``("user", "guest", 72)``. With
            ten ids or fewer the limit is half the rows, and with one user none is reported.
        written_twice: how many ids are written both as 1 and as 1.0: ``("user", 12)``.
    """

    path: Path
    layout: str
    columns: Columns
    separator: str | None
    n_rows: int
    n_bad: int
    bad_rows: tuple[BadRow, ...]
    n_without_id: int
    n_headers: int
    n_below_rating: int
    n_missing_timestamps: int
    n_rounded_timestamps: int
    n_zero_timestamps: int
    has_dates: bool
    frequent: tuple[tuple[str, str, int], ...]
    written_twice: tuple[tuple[str, int], ...]

    @property
    def read_as(self) -> str:
        """A description of the layout and separator."""
        if self.separator is None:
            return f"read as {self.layout}"
        between = f"{self.separator}s" if self.separator in SEPARATORS else repr(self.separator)
        return f"read as {self.layout} with {between} between fields"

    @property
    def left_out(self) -> str:
        """The number of unreadable rows, as text."""
        reasons = {"without a user or an item": self.n_without_id, "the header": self.n_headers}
        counted = ", ".join(f"{count} {words}" for words, count in reasons.items() if count)
        return (
            f"{self.n_bad} of {self.n_rows} rows {'was' if self.n_bad == 1 else 'were'} left out"
            + (f" ({counted})" if counted else "")
        )

    def below_rating(self, minimum: float) -> str:
        """Return the number of rows left out for their rating, as text."""
        has, was = ("has", "was") if self.n_below_rating == 1 else ("have", "were")
        return (
            f"{self.n_below_rating} of {self.n_rows} rows {has} a rating below {minimum:g} and "
            f"{was} left out"
        )

    def doubts(self, *, named: bool = False) -> Iterator[str]:
        """List values that were read literally but may mean something else.

        Args:
            named: whether the text may contain an id.
        """
        n_kept = self.n_rows - self.n_bad - self.n_below_rating
        for role, id_, count in self.frequent:
            which = f"the {role} {id_!r}" if named else f"one {role}"
            yield (
                f"{which} has {count} of {n_kept} rows. Leave them out if it marks a missing {role}"
            )
        for role, count in self.written_twice:
            yield f"{role}s written both as 1 and as 1.0, each of which counts as two: {count}"
        if self.n_zero_timestamps:
            yield (
                f"{self.n_zero_timestamps} of {n_kept} rows have the time 0, which counts as the "
                "oldest. Leave it empty if it is missing"
            )


def read_interactions(
    path: str | Path, reading: Reading = _AS_FOUND
) -> tuple[Interactions, ReadReport]:
    """Read one file of interactions in chunks, whatever its size.

    Ids are kept as in the file, so 007 and 7 are different. Every row counts, whatever its rating,
    unless `reading` has a minimum. These rows are bad: rows with a wrong number of fields, an empty
    or NaN id, or an unreadable time. If ratings count, so are rows with an unreadable rating.

    Args:
        path: the file, compressed or not.
        reading: how to read it. Missing options are detected if only one reading is possible.

    Returns:
        The interactions in the order of the file, and the report.

    Raises:
        DataError: the file is missing, empty, damaged, in another encoding or of unknown layout.
            Also if it lacks a column, mixes kinds of times, has no usable row, or has a bad row
            under `reading.strict`.
    """
    found, report = _read(Path(path), reading, n_chunks=None)
    return found.interactions, report


def try_reading(
    path: Path, reading: Reading, *, n_chunks: int = 1
) -> tuple[Interactions, ReadReport]:
    """Read a file's first rows, to check that it can be read with these options.

    Raises:
        DataError: as for `read_interactions`, or most of these rows are bad.
    """
    found, report = _read(path, reading, n_chunks=n_chunks)
    if 2 * report.n_bad > report.n_rows:
        raise DataError(f"{report.n_bad} of the first {report.n_rows} rows of {path} are bad.")
    return found.interactions, report


def _read(path: Path, reading: Reading, *, n_chunks: int | None) -> tuple[Gathered, ReadReport]:
    with reading_problems(path, reading.encoding):
        _refuse_unreadable(path, reading)
        name = detect_layout(path, reading) if reading.layout is None else reading.layout
        if name not in READERS:
            raise DataError(
                f"The layout {name!r} is unknown.",
                remedy=f"Set {flag_of('layout')} to one of {', '.join(READERS)}.",
                options={"layout": None},
            )
        table = READERS[name](path, reading)
        if reading.minimum_rating is not None and table.columns.rating is None:
            raise DataError(
                f"{path}, read as {name}, has no ratings to compare with "
                f"{flag_of('minimum_rating')}.",
                remedy=f"Omit {flag_of('minimum_rating')}, or name the column with "
                f"{flag_of('rating_column')} or, without a header, in {flag_of('columns')}.",
                options={"minimum_rating": None},
            )
        found = gather(path, replace(table, chunks=islice(table.chunks, n_chunks)), reading)
    times = found.interactions.times()
    n_zero, latest = int(np.count_nonzero(times == 0)), times.max(initial=MISSING_TIMESTAMP)
    report = ReadReport(
        path=path,
        layout=name,
        columns=table.columns,
        separator=None if table.separator is None else separator_word(table.separator),
        n_rows=found.n_rows,
        n_bad=found.n_bad,
        bad_rows=tuple(found.bad),
        n_without_id=found.n_without_id,
        n_headers=found.n_headers,
        n_below_rating=found.n_below,
        n_missing_timestamps=int(np.count_nonzero(times == MISSING_TIMESTAMP)),
        n_rounded_timestamps=found.n_rounded,
        n_zero_timestamps=n_zero if latest == 0 or latest >= FIRST_TIME else 0,
        has_dates=found.has_dates,
        frequent=tuple(found.frequent),
        written_twice=tuple(found.written_twice),
    )
    _refuse_unusable(found, report, reading)
    return found, report


def _refuse_unreadable(path: Path, reading: Reading) -> None:
    source = on_disk(path)
    if source.is_dir() and reading.layout in (None, "parquet") and parts_of(source):
        return
    if not source.is_file():
        raise DataError(
            f"{path} is {'a folder' if source.is_dir() else 'not there'}. Expected a file, or a "
            "folder of Parquet files.",
            remedy="Check the path.",
        )
    if source.stat().st_size == 0:
        raise DataError(f"{path} is empty. Expected interactions.", remedy="Check the path.")


def _refuse_unusable(found: Gathered, report: ReadReport, reading: Reading) -> None:
    if report.n_rows == 0:
        raise DataError(f"{report.path} has no rows.", remedy="Check the path.")
    usable = len(found.interactions) > 0
    if report.n_bad and (reading.strict or not (usable or report.n_below_rating)):
        listed = report.bad_rows[:_SHOWN_ROWS]
        more = ", ..." if report.n_bad > len(listed) else ""
        remedy, readings = _remedy_for(found, report, reading)
        raise DataError(
            f"{report.path}, read as {report.layout}: {report.n_bad} of {report.n_rows} rows are "
            "bad. " + " ".join(f"Line {bad.line}: {bad.reason}." for bad in listed) + more,
            remedy=remedy,
            readings=readings,
        )
    if not usable:
        raise DataError(
            f"None of the {report.n_rows} rows of {report.path} has a rating of "
            f"{reading.minimum_rating:g} or more.",
            remedy=f"Lower {flag_of('minimum_rating')}.",
            options={"minimum_rating": None},
        )


def _remedy_for(
    found: Gathered, report: ReadReport, reading: Reading
) -> tuple[str, list[dict[str, str | None]]]:
    """Return the remedy for bad rows, and the settings that may help."""
    if len(found.interactions):
        remedy = f"Correct these rows, or omit {flag_of('strict')} to leave them out."
        return remedy, [{"strict": None}]
    n_times = sum(bad.reason.startswith("the time") for bad in report.bad_rows)
    if 2 * n_times <= len(report.bad_rows):
        known = [name for name in ("layout", "columns", "separator") if getattr(reading, name)]
        remedy = f"Correct these rows, or choose another {flag_of('layout')}."
        return remedy, [dict.fromkeys(known)]
    fitting = formats_that_fit(found.unread_times)
    which = "Set how times are written"
    if len(fitting) > 1:
        which = f"They may be written as {' or as '.join(fitting)}: choose"
    remedy = (
        f"{which} with {flag_of('timestamp_format')}. none ignores times, so that held-out items "
        "are random."
    )
    return remedy, [{"timestamp_format": each} for each in fitting]
