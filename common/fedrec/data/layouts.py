"""How the supported files lay out their rows; turns each into lines of user, item and time."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.errors import DataError

__all__ = [
    "BadRow",
    "ColumnNames",
    "Rows",
    "read_inter",
    "read_named_csv",
    "read_parquet",
    "read_positional",
    "split_header",
]

USER_COLUMNS = ("user_id", "userId", "userID", "user", "user_ID", "uid")
ITEM_COLUMNS = ("item_id", "itemId", "itemID", "movieId", "movie_id", "item", "item_ID", "iid")
TIMESTAMP_COLUMNS = ("timestamp", "time", "unix_timestamp", "ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row that was left out.

    Attributes:
        line: its line in the file, from 1; in Parquet its row, from 1.
        reason: what was found and what was expected.
    """

    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNames:
    """The columns that the caller asked for; None means the layout's own name."""

    user: str | None = None
    item: str | None = None
    timestamp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What a layout yields: line, user, item and time as found, or why a row has none."""

    has_timestamps: bool
    rows: Iterator[tuple[int, Any, Any, Any] | BadRow]


def read_positional(
    path: Path, columns: ColumnNames, *, separator: str | None, n_fields: int
) -> Rows:
    """Read lines without a header: user, item, rating and, in a fourth field, the time.

    Args:
        path: the file.
        columns: must name nothing, for there are no names to look up.
        separator: what is between two fields; None means any white space.
        n_fields: 3 or 4.

    Raises:
        DataError: `columns` names a column.
    """
    if columns != ColumnNames():
        raise DataError(
            f"{path} was given column names, but its layout has no header to find them in.",
            remedy="Leave the column names out, or choose layout='csv'.",
        )
    return Rows(
        has_timestamps=n_fields > 3,
        rows=_picked(_lines(path, separator), n_fields, 0, 1, 3 if n_fields > 3 else None),
    )


def read_inter(path: Path, columns: ColumnNames) -> Rows:
    """Read a RecBole `.inter` file: tab separated under a header of ``name:type``."""
    header = [name.partition(":")[0] for name in split_header(path, "\t")]
    user, item, timestamp = _find_columns(path, header, columns)
    rows = _picked(_lines(path, "\t"), len(header), user, item, timestamp)
    next(rows)
    return Rows(has_timestamps=timestamp is not None, rows=rows)


def read_named_csv(path: Path, columns: ColumnNames) -> Rows:
    """Read comma separated values under a header, quoted or not."""
    header = split_header(path, ",")
    user, item, timestamp = _find_columns(path, header, columns)
    rows = _picked(_csv_records(path), len(header), user, item, timestamp)
    next(rows)
    return Rows(has_timestamps=timestamp is not None, rows=rows)


def read_parquet(path: Path, columns: ColumnNames) -> Rows:
    """Read a Parquet table, points in time as microseconds since 1970.

    pyarrow is imported here and nowhere else in the data layer.

    Raises:
        DataError: pyarrow is missing, or the file or a column cannot be used.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(
            f"{path} is Parquet and pyarrow is not installed.",
            remedy="Install fedrec[client], or convert the file to CSV.",
        ) from error
    try:
        # A handle keeps pyarrow from guessing partitions from the names of the folders above.
        with path.open("rb") as file, parquet.ParquetFile(file) as table:
            header = list(table.schema_arrow.names)
            chosen = _find_columns(path, header, columns)
            names = [header[index] for index in chosen if index is not None]
            data = table.read(columns=names)
        values = [_parquet_values(path, name, data.column(name)) for name in names]
    except arrow.ArrowException as error:
        raise DataError(
            f"{path} cannot be read as Parquet: {error}.", remedy="Write the file again."
        ) from error
    if len(values) == 2:
        values.append([None] * len(values[0]))
    numbered = zip(range(1, len(values[0]) + 1), *values, strict=True)
    return Rows(has_timestamps=chosen[2] is not None, rows=iter(numbered))


def split_header(path: Path, separator: str) -> list[str]:
    """Return the fields of the first line that is not blank, without white space around them."""
    records = _csv_records(path) if separator == "," else _lines(path, separator)
    _, fields = next(records, (0, ""))
    return [field.strip() for field in fields] if isinstance(fields, list) else []


def _lines(path: Path, separator: str | None) -> Iterator[tuple[int, list[str] | str]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            text = line.rstrip("\n")
            if text and not text.isspace():
                yield number, text.split(separator)


def _csv_records(path: Path) -> Iterator[tuple[int, list[str] | str]]:
    """Yield each record with its first line, or the reason why it cannot be split."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        while True:
            first = reader.line_num + 1
            try:
                fields = next(reader, None)
            except csv.Error as error:
                yield first, str(error)
                continue
            if fields is None:
                return
            if len(fields) > 1 or (fields and fields[0].strip()):
                yield first, fields


def _picked(
    records: Iterable[tuple[int, list[str] | str]],
    n_fields: int,
    user: int,
    item: int,
    timestamp: int | None,
) -> Iterator[tuple[int, Any, Any, Any] | BadRow]:
    for line, fields in records:
        if isinstance(fields, str):
            yield BadRow(line=line, reason=fields)
        elif len(fields) != n_fields:
            hint = ""
            if any("\n" in field for field in fields):
                hint = "; a quotation mark is not closed, so that lines after it were swallowed"
            yield BadRow(line=line, reason=f"{len(fields)} fields, expected {n_fields}{hint}")
        else:
            when = "" if timestamp is None else fields[timestamp]
            yield line, fields[user], fields[item], when


def _find_columns(
    path: Path, header: list[str], columns: ColumnNames
) -> tuple[int, int, int | None]:
    problems = [f"the column {name!r} twice" for name in header if header.count(name) > 1][:1]

    def find(wanted: str | None, known: tuple[str, ...], role: str) -> int | None:
        if wanted is not None and wanted not in header:
            problems.append(f"no column {wanted!r} for the {role}")
        names = known if wanted is None else (wanted,)
        return next((header.index(name) for name in names if name in header), None)

    user = find(columns.user, USER_COLUMNS, "user")
    item = find(columns.item, ITEM_COLUMNS, "item")
    timestamp = find(columns.timestamp, TIMESTAMP_COLUMNS, "time")
    if user is None and columns.user is None:
        problems.append(f"no column for the user (one of {', '.join(USER_COLUMNS)})")
    if item is None and columns.item is None:
        problems.append(f"no column for the item (one of {', '.join(ITEM_COLUMNS)})")
    if problems or user is None or item is None:
        raise DataError(
            f"{path} has the columns {', '.join(header[:20]) or 'none'}: {'; '.join(problems)}.",
            remedy="Name the columns with user_column, item_column and timestamp_column.",
        )
    return user, item, timestamp


def _parquet_values(path: Path, name: str, column: Any) -> list[Any]:
    import pyarrow as arrow

    kind = column.type
    if arrow.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if arrow.types.is_timestamp(kind):
        column = column.cast(arrow.timestamp("us"), safe=False).cast(arrow.int64())
    elif not (
        arrow.types.is_string(kind)
        or arrow.types.is_large_string(kind)
        or arrow.types.is_integer(kind)
        or arrow.types.is_floating(kind)
    ):
        raise DataError(
            f"{path}: the column {name!r} has the type {kind}; expected text, integers or times.",
            remedy="Convert the column, or name another one.",
        )
    values: list[Any] = column.to_pylist()
    return values
