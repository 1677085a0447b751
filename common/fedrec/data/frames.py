"""Columns of frames and arrays: which one has a role, and their values as ids and times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedrec.data.reading import usual_columns
from fedrec.errors import DataError


@runtime_checkable
class DataFrame(Protocol):
    """A frame of pandas or polars, or a table of pyarrow."""

    @property
    def columns(self) -> Any:
        """The columns, or their names."""

    def __getitem__(self, name: Any, /) -> Any:
        """Return a column."""


def object_column(ids: Iterable[object]) -> NDArray[np.object_]:
    """Return ids as an array of Python's own objects, shape (n_rows,)."""
    values = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    column = np.empty(len(values), dtype=np.object_)
    column[:] = values
    return column


def column_names(frame: Any) -> list[Any]:
    """Return the names of a frame's columns, which are numbers in pandas without a header.

    Raises:
        DataError: it is not a frame.
    """
    names = getattr(frame, "column_names", getattr(frame, "columns", None))
    if names is None:
        raise DataError(
            f"frame is of type {type(frame).__name__}, expected a frame of pandas or polars, or a "
            "table of pyarrow.",
            remedy="Use load_data for a file, Interactions.from_arrays for arrays or lists, and "
            "Interactions.from_scipy for a sparse matrix.",
        )
    return list(names)


def are_rated(column: Any, minimum_rating: float) -> NDArray[np.bool_]:
    """Return which rows have at least this rating. Missing ratings have not.

    Raises:
        DataError: ratings or their minimum are not numbers.
    """
    try:
        return np.asarray(np.asarray(column.to_numpy(), dtype=np.float64) >= minimum_rating)
    except (TypeError, ValueError):
        raise DataError(
            f"Ratings can't be compared with minimum_rating={minimum_rating!r}: they must be "
            "numbers.",
            remedy="Convert the column (pandas.to_numeric does), or pass another one as "
            "rating_column.",
        ) from None


def chosen_column(
    names: list[Any],
    role: str,
    wanted: str | int | None,
    *,
    needed: bool = True,
    taken: Sequence[str | int | None] = (),
) -> Any:
    """Return the column of a role in a frame, or None if there is none and it is not needed.

    Args:
        taken: columns named for other roles, which are not looked for by the usual names.

    Raises:
        DataError: it is missing, or several could be meant.
    """
    texts = [str(name) for name in names]
    others = {str(name) for name in taken if name is not None}
    usual = (
        usual_columns(role, (text for text in texts if text not in others))
        if wanted is None
        else [name for name, text in zip(names, texts, strict=True) if text == str(wanted)]
    )
    if len(usual) == 1 or not (usual or needed or wanted is not None):
        return usual[0] if usual else None
    found = "several columns that could be" if usual else "no column for"
    if wanted is not None:
        found = f"{len(usual)} columns {wanted!r} for" if usual else f"no column {wanted!r} for"
    raise DataError(
        f"The frame has {found} the {role}. Its columns are {', '.join(texts[:20])}.",
        remedy=f"Name the column with {role}_column.",
    )


def times_in(column: Any) -> NDArray[Any]:
    """Return the times of a frame's column as integers or as numpy's points in time.

    Raises:
        DataError: they are neither, and no dates.
    """
    values = np.asarray(column.to_numpy())
    if values.dtype != np.object_ or not len(values):
        return values
    try:
        # Points in time with a zone are objects in pandas.
        return np.asarray(column.to_numpy(dtype="datetime64[us]"))
    except (TypeError, ValueError):
        return _from_objects(values)


def _from_objects(values: NDArray[np.object_]) -> NDArray[np.datetime64]:
    """Return Python's dates as numpy's points in time. None, NaN and NaT become NaT."""
    try:
        # Only NaN and NaT differ from themselves.
        return np.array(
            [None if value != value else value for value in values.tolist()], dtype="datetime64[us]"
        )
    except (TypeError, ValueError):
        raise DataError(
            f"The times are of type {type(values[0]).__name__}, expected integers, dates or points "
            "in time.",
            remedy="Convert them (pandas.to_datetime does), or pass others as timestamp_column or "
            "timestamps.",
        ) from None


def whole_times(values: Iterable[Any], missing_time: int) -> NDArray[Any]:
    """Return times as integers, dates and points in time in microseconds since 1970.

    Args:
        missing_time: stands in for missing times.

    Raises:
        DataError: objects that are no dates.
    """
    times = values if isinstance(values, np.ndarray) else np.array(list(values))
    if times.dtype == np.object_ and times.ndim == 1 and len(times):
        times = _from_objects(times)
    if times.dtype.kind == "M":
        missing = np.isnat(times)
        numbers = times.astype("datetime64[us]").astype(np.int64)
        return np.where(missing, missing_time, numbers)
    if times.dtype.kind == "f":
        # Integers with gaps arrive as floats, and no values at all, too.
        missing = np.isnan(times)
        whole = np.where(missing, missing_time, times)
        return whole.astype(np.int64) if (whole == np.floor(whole)).all() else times
    return times
