"""The supported file layouts: one entry each, with readers for JSON lines and Parquet."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from fedrec.data.decoding import SAMPLE_ROWS, head_of, on_disk, open_text, plain_name
from fedrec.data.delimited import read_headed, read_headless
from fedrec.data.detection import header_separator, table_separator
from fedrec.data.gathering import CHUNK_ROWS, BadRow, RowChunk, Table
from fedrec.data.guessing import find_places
from fedrec.data.reading import ROLES, Reading, flag_of
from fedrec.errors import DataError
from fedrec.extras import how_to_install

_FIRST_ROWS = 100
"""The number of objects in which keys are searched, because a key may be absent if it has no value.
"""
_PYTHON = re.compile(r"\{\s*u?'")


def read_json_lines(path: Path, reading: Reading) -> Table:
    """Read one JSON object from each line. Ids given as numbers keep their digits.

    Raises:
        DataError: the first objects lack a key.
    """
    reading.refuse_beyond("jsonl", "encoding", *(f"{role}_column" for role in ROLES))
    lines = head_of(path, reading.encoding, _FIRST_ROWS)
    first = list(map(_object, lines))
    objects = _objects(lines)
    if first and not objects:
        if _PYTHON.match(lines[0].lstrip()):
            raise _python(path, lines[0])
        leave = f"Omit {flag_of('layout')}, or write" if reading.layout else "Write"
        raise DataError(
            f"{path}, line 1, is not a JSON line: {first[0]}.",
            remedy=f"{leave} one object on each line.",
            options={"layout": None} if reading.layout else None,
        )
    names = list(dict.fromkeys(key for found in objects for key in found))

    def rows() -> list[list[str]]:
        some = _objects(head_of(path, reading.encoding, SAMPLE_ROWS))
        return [[_field(found.get(name)) for name in names] for found in some]

    columns = find_places(path, names, reading, rows).columns(names)
    chunks = _json_chunks(path, reading, [*columns.by_role().values()])
    return Table(columns=columns, chunks=chunks, header=columns)


def _objects(lines: list[str]) -> list[dict[str, Any]]:
    return [found for found in map(_object, lines) if isinstance(found, dict)]


def _field(value: Any) -> str:
    return "" if value is None else str(value)


def _python(path: Path, line: str) -> DataError:
    """Return the error for a file of dictionaries in Python's notation."""
    plain = plain_name(path)
    unpacked = "" if plain == path else f"Unpack it to {plain.name}. "
    code = (
        "import ast, json, sys;[print(json.dumps(ast.literal_eval(line))) for line in sys.stdin "
        "if line.strip()]"
    )
    target = plain.with_suffix(".jsonl")
    if target == plain:
        target = plain.with_name(f"rows-{plain.name}")
    return DataError(
        f"{path}, line 1, is a Python dictionary, not JSON: {line[:40]!r}.",
        remedy=f"{unpacked}Convert it with: python3 -c {shlex.quote(code)} < "
        f"{shlex.quote(str(plain))} > {shlex.quote(str(target))}",
    )


def _json_chunks(path: Path, reading: Reading, keys: list[str | None]) -> Iterator[RowChunk]:
    with open_text(path, reading.encoding) as file:
        numbered = enumerate(file, start=1)
        while some := list(islice(numbered, CHUNK_ROWS)):
            lines: list[int] = []
            objects: list[dict[str, Any]] = []
            bad: list[BadRow] = []
            for line, text in some:
                if text.isspace():
                    continue
                found = _object(text)
                if isinstance(found, str):
                    bad.append(BadRow(line=line, reason=found))
                else:
                    lines.append(line)
                    objects.append(found)
            users, items, ratings, times = (
                None if key is None else [each.get(key) for each in objects] for key in keys
            )
            yield RowChunk(
                lines=lines, users=users or [], items=items or [], ratings=ratings, times=times,
                bad=bad,
            )  # fmt: skip


def _object(text: str) -> dict[str, Any] | str:
    """Return a line's object, or why there is none."""
    try:
        found = json.loads(text.removeprefix("\ufeff"))
    except ValueError as error:
        return f"not JSON: {error}"
    except RecursionError:
        return "not JSON: too deeply nested"
    return found if isinstance(found, dict) else f"{text.strip()[:40]!r}, expected a JSON object"


def parts_of(path: Path) -> list[Path]:
    """Return a file itself, or a folder's Parquet files ordered by name.

    Names that begin with ``_`` or a dot are files that writers leave next to the parts.
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
        DataError: pyarrow is missing, a file or column is unsupported, or files have different
            columns.
    """
    reading.refuse_beyond("parquet", *(f"{role}_column" for role in ROLES))
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(
            f"{path} is Parquet, which needs pyarrow.",
            remedy=f"Install it with: {how_to_install('pyarrow')}. Or convert the file to CSV.",
        ) from error
    schemas: dict[Path, Any] = {}
    for part in parts_of(on_disk(path)):
        try:
            # A file handle keeps pyarrow from deriving partitions from the names of folders.
            with part.open("rb") as file, parquet.ParquetFile(file) as table:
                # A part without rows may have lost the types of its columns.
                if table.metadata.num_rows or not schemas:
                    schemas[part] = table.schema_arrow
        except arrow.ArrowException as error:
            raise _unreadable(part, error) from error
    parts = list(schemas)
    names = list(schemas[parts[0]].names)
    # Only guessing needs rows: a group of them takes memory for all of its columns.
    columns = find_places(path, names, reading, partial(_first_rows, parts[0])).columns(names)
    # Ratings that no minimum is compared with may have any type.
    used = columns if reading.minimum_rating is not None else replace(columns, rating=None)
    chosen = [*used.by_role().values()]
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
        columns=columns,
        chunks=_parquet_chunks(parts, chosen),
        has_dates=True in has_dates,
        header=columns,
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


def _parquet_chunks(parts: list[Path], names: list[str | None]) -> Iterator[RowChunk]:
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
    """Refuse a part whose columns have unsupported types or differ from the first part.

    Raises:
        DataError: the columns differ or have unsupported types. The message names the column.
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
                f"{part}: the column {name!r} has the type {kind}, expected text, numbers or "
                "times.",
                remedy="Convert the column, or name another one.",
            )


def _plain(kind: Any) -> Any:
    """Return the type of a column's values, including those of a dictionary."""
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
    """Return values as text, with dates in ISO 8601. Dates beyond Python's become empty."""
    return list(map(_shown, _in_microseconds(column)))


def _shown(scalar: Any) -> str:
    try:
        value = scalar.as_py()
    except (OverflowError, ValueError):  # a date after the year 9999, as some databases write
        return ""
    return "" if value is None else str(value)


def _in_microseconds(column: Any) -> Any:
    """Return a column without a dictionary, its dates in microseconds."""
    import pyarrow as arrow

    kind = _plain(column.type)
    column = column.cast(kind)
    if not _is_dates(kind):
        return column
    return column.cast(arrow.timestamp("us", getattr(kind, "tz", None)), safe=False)


_TEXT = ("encoding", "quotes")
_NAMED = (*_TEXT, *(f"{role}_column" for role in ROLES))


def _read_fixed(
    path: Path, reading: Reading, *, layout: str, separator: str, roles: Sequence[str]
) -> Table:
    """Read a layout without a header, whose columns are fixed."""
    reading.refuse_beyond(layout, *_TEXT)
    return read_headless(path, reading, separator=separator, roles=roles)


def _read_movielens_csv(path: Path, reading: Reading) -> Table:
    reading.refuse_beyond("ratings.csv", *_NAMED)
    return read_headed(path, reading, separator=",")


def _read_csv(path: Path, reading: Reading) -> Table:
    """Read fields below a header, with any separator."""
    reading.refuse_beyond("csv", "separator", *_NAMED)
    return read_headed(path, reading, separator=header_separator(path, reading))


def _read_table(path: Path, reading: Reading) -> Table:
    """Read fields without a header, whose columns were named."""
    reading.refuse_beyond("table", "columns", "separator", *_TEXT)
    if reading.roles is None:
        raise DataError(
            "The layout table has no header, and no setting names its columns.",
            remedy=f"Name them in order with {flag_of('columns')}.",
            options={"layout": None},
        )
    separator = table_separator(path, reading, reading.roles)
    return read_headless(path, reading, separator=separator, roles=reading.roles)


def _read_inter(path: Path, reading: Reading) -> Table:
    """Read a RecBole `.inter` file: tab-separated, with a header of ``name:type``."""
    reading.refuse_beyond("inter", *_NAMED)
    return read_headed(path, reading, separator="\t", typed=True)


READERS: dict[str, Callable[[Path, Reading], Table]] = {
    "csv": _read_csv,
    "table": _read_table,
    "jsonl": read_json_lines,
    "parquet": read_parquet,
    "ratings.csv": _read_movielens_csv,
    "u.data": partial(_read_fixed, layout="u.data", separator="\t", roles=ROLES),
    "ratings.dat": partial(_read_fixed, layout="ratings.dat", separator="::", roles=ROLES),
    "ratings.txt": partial(_read_fixed, layout="ratings.txt", separator=" ", roles=ROLES[:3]),
    "amazon": partial(_read_fixed, layout="amazon", separator=",", roles=ROLES),
    "inter": _read_inter,
}
"""One reader for each layout. ``amazon`` and ``table`` are never detected, only named."""
