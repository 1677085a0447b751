"""Reading the file that settings name; what an error proposes was tried on that file before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedrec.data.column_kinds import Column, is_named_as_id, role_told
from fedrec.data.interactions import Interactions
from fedrec.data.readers import ReadReport, read_interactions, try_reading
from fedrec.data.reading import ROLES
from fedrec.data.settings import DataSettings
from fedrec.data.times import looks_like_moments, shown_span
from fedrec.errors import DataError

_SPLITTING = ("layout", "columns", "separator", *(f"{role}_column" for role in ROLES))
_MOST_STEPS = 6
_MOST_READINGS = 4
_MOST_COLUMNS = 20
_SHOWN_ROWS = 3
_TRIED_CHUNKS = 64

Options = Mapping[str, str | None]
_Tried = tuple[Interactions, ReadReport]


def read_file(path: str | Path, data: DataSettings) -> tuple[Interactions, ReadReport]:
    """Read a file as the section `data` says.

    Raises:
        DataError: the file cannot be read so. Its options are settings with which its first rows
            were read; where several readings are possible, these are its readings.
    """
    try:
        return read_interactions(path, data.reading())
    except DataError as error:
        ways = _ways(Path(path), data, error)
        if len(ways) > _MOST_READINGS:
            ways = []
        error.options = ways[0][0] if len(ways) == 1 else {}
        error.readings = [options for options, _ in ways] if len(ways) > 1 else ()
        error.first_rows = [_first_rows(*tried) for _, tried in ways]
        raise


def time_columns(report: ReadReport, data: DataSettings) -> list[dict[str, str]]:
    """Return settings for each ignored column that could give each row a time.

    Args:
        report: of reading a file that has no times.
        data: how it was read.
    """
    was_said = data.columns is not None or data.timestamp_format == "none"
    if was_said or report.columns.timestamp is not None:
        return []
    try:
        known, _ = try_reading(report.path, data.reading())
    except DataError:
        return []  # the file's first rows are no sample of the others
    names = [name for name in report.columns.ignored if name]
    told = [name for name in names if role_told(name) == "timestamp"]
    others = [name for name in names if name not in told and not is_named_as_id(name)]
    # Each one costs reading the first thousands of rows.
    for some in (told[:_MOST_COLUMNS], others[:_MOST_COLUMNS]):
        ways = [
            way for name in some if (way := _as_times(name, report.path, data, known)) is not None
        ]
        own = [options for options, is_own in ways if is_own]
        if own or (ways and some[0] in told):
            return own or [options for options, _ in ways]
    return []


def _as_times(
    name: str, path: Path, data: DataSettings, known: Interactions
) -> tuple[dict[str, str], bool] | None:
    """Return settings with which a column gives each row a time; None if it does not.

    Args:
        known: the first rows, read without it.

    Returns:
        The settings, and whether its times are the rows' own, not of their users or items.
    """
    options = {"timestamp_column": name}
    for _ in range(2):
        try:
            found, report = try_reading(path, _with(data, options).reading())
        except DataError as error:
            options["timestamp_format"] = error.options.get("timestamp_format") or ""
            if not options["timestamp_format"]:
                return None
            continue
        times = found.times().tolist()
        if len(times) != len(known) or not (report.has_dates or looks_like_moments(times)):
            return None
        when = Column(place=0, name=name, values=list(map(str, times)))
        ids = (
            Column(place=0, name="", values=each.tolist())
            for each in (known.user_ids, known.item_ids)
        )
        return options, not any(each.determines(when) for each in ids)
    return None


def _ways(path: Path, data: DataSettings, error: DataError) -> list[tuple[Options, _Tried]]:
    """Follow what errors propose, one after the other, until the file can be read.

    Returns:
        Each reading's settings and what was read so; none twice.
    """
    if not (error.options or error.readings) and not isinstance(_try(path, data), DataError):
        return []  # what is wrong lies further down, and is no matter of settings
    found: list[tuple[Options, _Tried]] = []
    left: list[tuple[dict[str, str | None], DataError]] = [({}, error)]
    for _ in range(_MOST_STEPS):
        ahead: list[tuple[dict[str, str | None], DataError]] = []
        for changed, problem in left:
            # Where nothing is known of what is wrong, perhaps one finds out what it was told.
            told = {
                name: None
                for name in _SPLITTING
                if getattr(data, name) is not None and name not in changed
            }
            for step in problem.readings or [problem.options or told]:
                options = changed | dict(step)
                if options == changed:
                    continue
                tried = _try(path, _with(data, options))
                if isinstance(tried, DataError):
                    ahead.append((options, tried))
                elif not any(_is_same(tried[0], before[0]) for _, before in found):
                    given = data.model_fields_set
                    found.append(
                        (
                            {
                                name: value
                                for name, value in options.items()
                                if value is not None or name in given
                            },
                            tried,
                        )
                    )
        left = ahead[:_MOST_READINGS]
    return found


def _with(data: DataSettings, options: Options) -> DataSettings:
    fields = DataSettings.model_fields
    return data.model_copy(
        update={
            name: fields[name].default if value is None else value
            for name, value in options.items()
        }
    )


def _try(path: Path, data: DataSettings) -> _Tried | DataError:
    """Read a file's first rows under these settings, or return what is wrong with them."""
    try:
        try_reading(path, data.reading())
        return try_reading(path, data.reading(), n_chunks=_TRIED_CHUNKS)
    except DataError as error:
        return error


def _is_same(one: Interactions, other: Interactions) -> bool:
    columns = ((each.user_ids, each.item_ids, each.times()) for each in (one, other))
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(*columns, strict=True))


def _first_rows(found: Interactions, report: ReadReport) -> list[str]:
    rows = []
    for place in range(min(_SHOWN_ROWS, len(found))):
        row = f"user {found.user_ids[place]}, item {found.item_ids[place]}"
        span = shown_span(found.times()[place : place + 1], are_dates=report.has_dates)
        rows.append(row if span is None else f"{row}, time {span[0]}")
    return rows
