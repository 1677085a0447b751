"""Parquet tables; pyarrow is imported here and nowhere else in the data layer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fedrec.data.chunks import CHUNK_ROWS, RowChunk, Table
from fedrec.data.columns import find_places
from fedrec.data.opening import SAMPLE_ROWS, on_disk
from fedrec.data.reading import ROLES, Reading
from fedrec.errors import DataError
from fedrec.extras import how_to_install


def parts_of(path: Path) -> list[Path]:
    """Return a file itself, or a folder's Parquet files in the order of their names.

    Names that begin with ``_`` or a dot are what writers leave beside the parts.
    """
    if not path.is_dir():
        return [path]
    return [
        file
        for file in sorted(path.rglob("*"))
        if not any(name.startswith(("_", ".")) for name in file.relative_to(path).parts)
        and file.suffix.lower() in (".parquet", ".pq")
        and file.is_file()
    ]


def read_parquet(path: Path, reading: Reading) -> Table:
    """Read a Parquet file or a folder of them, points in time as microseconds since 1970.

    Raises:
        DataError: pyarrow is missing, a file or a column cannot be used, or files differ in
            their columns.
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
    schemas: dict[Path, Any] = {}
    for part in parts_of(on_disk(path)):
        try:
            # A handle keeps pyarrow from guessing partitions from the names of the folders above.
            with part.open("rb") as file, parquet.ParquetFile(file) as table:
                # What has no rows may have lost the types of its columns.
                if table.metadata.num_rows or not schemas:
                    schemas[part] = table.schema_arrow
        except arrow.ArrowException as error:
            raise _unreadable(part, error) from error
    parts = list(schemas)
    names = list(schemas[parts[0]].names)
    # Rows are needed for a guess alone: a group of them takes memory in all of its columns.
    columns = find_places(path, names, reading, partial(_first_rows, parts[0])).columns(names)
    chosen = [*columns.by_role().values()]
    for part, schema in schemas.items():
        _check_columns(part, schema, parts[0], names, chosen)
    when = columns.timestamp
    kinds = [] if when is None else [schema.field(when).type for schema in schemas.values()]
    has_dates = {_is_dates(kind) for kind in kinds if not arrow.types.is_null(kind)}
    if len(has_dates) > 1:
        raise DataError(
            f"{path}: the column {when!r} has dates in some files and none in others.",
            remedy="Write all files with one type of times.",
        )
    return Table(
        columns=columns, chunks=_chunks(parts, chosen), has_dates=True in has_dates, header=columns
    )


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


def _chunks(parts: list[Path], names: list[str | None]) -> Iterator[RowChunk]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    wanted = [name for name in names if name is not None]
    line = 1
    for part in parts:
        try:
            with part.open("rb") as file, parquet.ParquetFile(file) as table:
                for batch in table.iter_batches(CHUNK_ROWS, columns=wanted):
                    users, items, ratings, times = (
                        None if name is None else _values(batch.column(name)) for name in names
                    )
                    yield RowChunk(
                        lines=range(line, line + len(batch)), users=users or [],
                        items=items or [], ratings=ratings, times=times,
                    )  # fmt: skip
                    line += len(batch)
        except arrow.ArrowException as error:
            raise _unreadable(part, error) from error


def _check_columns(
    part: Path, schema: Any, first: Path, names: list[str], chosen: list[str | None]
) -> None:
    """Refuse a part with other columns than the first one, or with values of no use.

    Raises:
        DataError: naming the column.
    """
    import pyarrow as arrow

    other = sorted(set(names) ^ set(schema.names))
    if other:
        raise DataError(
            f"{part} has other columns than {first}: only one of them has {', '.join(other[:10])}.",
            remedy="Name one file, or a folder that holds the parts of one table.",
        )
    allowed = (
        arrow.types.is_string, arrow.types.is_large_string, arrow.types.is_integer,
        arrow.types.is_floating, arrow.types.is_null, _is_dates,
    )  # fmt: skip
    for name in filter(None, chosen):
        kind = _plain(schema.field(name).type)
        if not any(is_one(kind) for is_one in allowed):
            raise DataError(
                f"{part}: the column {name!r} has the type {kind}; expected text, numbers or "
                "times.",
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
