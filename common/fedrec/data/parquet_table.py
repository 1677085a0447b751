"""Parquet tables; pyarrow is imported here and nowhere else in the data layer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fedrec.data.chunks import CHUNK_ROWS, Chunk, Table
from fedrec.data.columns import find_places
from fedrec.data.opening import SAMPLE_ROWS
from fedrec.data.reading import ROLES, Reading
from fedrec.errors import DataError
from fedrec.extras import how_to_install

__all__ = ["read_parquet"]


def read_parquet(path: Path, reading: Reading) -> Table:
    """Read a Parquet table, points in time as microseconds since 1970.

    Raises:
        DataError: pyarrow is missing, or the file or a column cannot be used.
    """
    reading.refuse_beyond("parquet", *(f"{role}_column" for role in ROLES))
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(
            f"{path} is Parquet and pyarrow is not installed.",
            remedy=f"Install it with: {how_to_install('pyarrow')}; or convert the file to CSV.",
        ) from error
    try:
        # A handle keeps pyarrow from guessing partitions from the names of the folders above.
        with path.open("rb") as file, parquet.ParquetFile(file) as table:
            schema = table.schema_arrow
    except arrow.ArrowException as error:
        raise _unreadable(path, error) from error
    names = list(schema.names)
    # Rows are needed for a guess alone: a group of them takes memory in all of its columns.
    columns = find_places(path, names, reading, partial(_first_rows, path)).columns(names)
    chosen = [*columns.by_role().values()]
    for name in chosen:
        if name is not None:
            _check_type(path, name, schema.field(name).type)
    when = columns.timestamp
    has_dates = when is not None and _is_dates(schema.field(when).type)
    return Table(columns=columns, chunks=_chunks(path, chosen), has_dates=has_dates)


def _first_rows(path: Path) -> list[tuple[str, ...]]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        with path.open("rb") as file, parquet.ParquetFile(file) as table:
            batch = next(table.iter_batches(SAMPLE_ROWS), None)
            columns = [] if batch is None else list(map(_values_shown, batch.columns))
            return list(zip(*columns, strict=True))
    except arrow.ArrowException as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read as Parquet: {error}.", remedy="Write the file again.")


def _chunks(path: Path, names: list[str | None]) -> Iterator[Chunk]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    wanted = [name for name in names if name is not None]
    line = 1
    try:
        with path.open("rb") as file, parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(CHUNK_ROWS, columns=wanted):
                users, items, ratings, times = (
                    None if name is None else _values(batch.column(name)) for name in names
                )
                yield Chunk(
                    lines=range(line, line + len(batch)), users=users or [], items=items or [],
                    ratings=ratings, times=times,
                )  # fmt: skip
                line += len(batch)
    except arrow.ArrowException as error:
        raise _unreadable(path, error) from error


def _check_type(path: Path, name: str, kind: Any) -> None:
    import pyarrow as arrow

    kind = _plain(kind)
    allowed = (
        arrow.types.is_string, arrow.types.is_large_string, arrow.types.is_integer,
        arrow.types.is_floating, _is_dates,
    )  # fmt: skip
    if not any(is_one(kind) for is_one in allowed):
        raise DataError(
            f"{path}: the column {name!r} has the type {kind}; expected text, numbers or times.",
            remedy="Convert the column, or name another one.",
        )


def _plain(kind: Any) -> Any:
    """Return the type of a column's values, which a dictionary may hold."""
    import pyarrow as arrow

    return kind.value_type if arrow.types.is_dictionary(kind) else kind


def _is_dates(kind: Any) -> bool:
    import pyarrow as arrow

    kind = _plain(kind)
    return bool(arrow.types.is_timestamp(kind) or arrow.types.is_date(kind))


def _values(column: Any) -> list[Any]:
    import pyarrow as arrow

    column = _in_microseconds(column)
    if _is_dates(column.type):
        column = column.cast(arrow.int64())
    values: list[Any] = column.to_pylist()
    return values


def _values_shown(column: Any) -> list[str]:
    """Return values as text, dates as ISO 8601 writes them."""
    values = _in_microseconds(column).to_pylist()
    return ["" if value is None else str(value) for value in values]


def _in_microseconds(column: Any) -> Any:
    """Return a column without a dictionary, its dates as points in time."""
    import pyarrow as arrow

    kind = _plain(column.type)
    column = column.cast(kind)
    if not _is_dates(kind):
        return column
    return column.cast(arrow.timestamp("us", getattr(kind, "tz", None)), safe=False)
