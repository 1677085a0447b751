"""Reading the file that settings name; what an error proposes was tried on that file before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedrec.data.interactions import Interactions
from fedrec.data.readers import ReadReport, read_interactions, try_reading
from fedrec.data.reading import ROLES
from fedrec.data.settings import DataSettings
from fedrec.errors import DataError

__all__ = ["read_file"]

_SPLITTING = ("layout", "columns", "separator", *(f"{role}_column" for role in ROLES))
_MOST_STEPS = 6

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
