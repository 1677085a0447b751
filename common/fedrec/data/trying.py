"""Reading the file that settings name; what an error proposes was tried on that file before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedrec.data.guessing import role_told
from fedrec.data.interactions import Interactions
from fedrec.data.readers import ReadReport, read_interactions, try_reading
from fedrec.data.reading import ROLES
from fedrec.data.settings import DataSettings
from fedrec.data.times import FIRST_TIME
from fedrec.errors import DataError

__all__ = ["read_file", "time_column"]

_SPLITTING = ("layout", "columns", "separator", *(f"{role}_column" for role in ROLES))
_MOST_STEPS = 6
_MOST_COLUMNS = 20

Options = Mapping[str, str | None]


def read_file(path: str | Path, data: DataSettings) -> tuple[Interactions, ReadReport]:
    """Read a file as the section `data` says.

    Raises:
        DataError: the file cannot be read so. Its options are settings with which the first
            thousands of rows were read, or none.
    """
    try:
        return read_interactions(path, data.reading())
    except DataError as error:
        error.options = _working(Path(path), data, error)
        raise


def time_column(report: ReadReport, data: DataSettings) -> dict[str, str]:
    """Return settings with which an ignored column gives each row a time; none if none does.

    Args:
        report: of reading a file that has no times.
        data: how it was read.
    """
    was_said = data.columns is not None or data.timestamp_format == "none"
    if was_said or report.columns.timestamp is not None:
        return {}
    try:
        n_rows = len(try_reading(report.path, data.reading()))
    except DataError:
        return {}  # the file's first rows are no sample of the others
    # Those whose names tell come first: each one costs reading the first thousands of rows.
    named = sorted(
        filter(None, report.columns.ignored), key=lambda name: role_told(name) != "timestamp"
    )
    for name in named[:_MOST_COLUMNS]:
        options: dict[str, str] = {"timestamp_column": name}
        for _ in range(2):
            try:
                times = try_reading(report.path, _with(data, options).reading()).times()
            except DataError as error:
                how = error.options.get("timestamp_format")
                if how in (None, "none"):
                    break
                options["timestamp_format"] = str(how)
                continue
            if len(times) == n_rows and (times >= FIRST_TIME).all():
                return options
            break
    return {}


def _working(path: Path, data: DataSettings, error: DataError) -> Options:
    """Follow what errors propose, one after the other, until the file can be read."""
    if not error.options and _problem(path, data) is None:
        return {}  # what is wrong lies further down, and is no matter of settings
    changed: dict[str, str | None] = {}
    for _ in range(_MOST_STEPS):
        step = dict(error.options)
        if not step:
            # Nothing is known of what is wrong: perhaps one finds out what it was told.
            step = {
                name: None
                for name in _SPLITTING
                if getattr(data, name) is not None and name not in changed
            }
        if not step or step.items() <= changed.items():
            return {}
        changed |= step
        problem = _problem(path, _with(data, changed))
        if problem is None:
            given = data.model_fields_set
            return {
                name: value for name, value in changed.items() if value is not None or name in given
            }
        error = problem
    return {}


def _with(data: DataSettings, options: Options) -> DataSettings:
    fields = DataSettings.model_fields
    return data.model_copy(
        update={
            name: fields[name].default if value is None else value
            for name, value in options.items()
        }
    )


def _problem(path: Path, data: DataSettings) -> DataError | None:
    """Return what is wrong with a file's first rows under these settings."""
    try:
        try_reading(path, data.reading())
    except DataError as error:
        return error
    return None
