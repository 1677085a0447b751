"""Read rows of text whose fields are separated, with and without a header."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Protocol

from fedrec.data.decoding import SAMPLE_ROWS, head_of, open_text, zero_byte
from fedrec.data.gathering import CHUNK_ROWS, BadRow, Columns, RowChunk, Table
from fedrec.data.guessing import (
    Places,
    Rows,
    find_places,
    is_header,
    is_value,
    no_header,
    places_of_roles,
)
from fedrec.data.reading import UNQUOTED, Reading, flag_of, is_nothing, separator_word
from fedrec.errors import DataError

_AS_FOUND = Reading()
_ASKED_ROWS = 1000
_MARK = "\ufeff"
_UNIT = "\x1f"
"""A single character for readers that cannot split at several."""


class _Rows(Protocol):
    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


def _split(lines: Iterable[str], separator: str, quotes: str) -> _Rows:
    mark = separator.removesuffix(" ")
    if not mark:
        lines, mark = map(_UNIT.join, map(str.split, lines)), _UNIT
    elif len(mark) > 1:
        lines, mark = (line.replace(separator, _UNIT) for line in lines), _UNIT
    return csv.reader(
        lines,
        delimiter=mark,
        quoting=csv.QUOTE_NONE if quotes == "none" else csv.QUOTE_MINIMAL,
        skipinitialspace=separator == f"{mark} ",
        # Otherwise a quotation mark that is never closed would not be an error.
        strict=quotes == "lines",
    )


def _with_blank(path: Path, reading: Reading, separator: str) -> str:
    """Return a separator, with the blank after it if every separator in the first line has one."""
    if len(separator) > 1 or separator == " ":
        return separator
    _, *after = "".join(head_of(path, reading.encoding, 1)).split(separator)
    return f"{separator} " if after and all(text.startswith(" ") for text in after) else separator


def fields_of(
    lines: Sequence[str], separator: str, reading: Reading = _AS_FOUND
) -> list[list[str]]:
    """Split some lines into fields, much as the readers in this module do.

    A quotation mark never extends to the next line, unless fields may span lines.
    """
    quotes = reading.quotes_between(separator)
    rows: list[list[str]] = []
    for some in [lines] if quotes == "lines" else [[line] for line in lines]:
        try:
            rows += _split(some, separator, quotes)
        except csv.Error:
            rows += [line.split(separator) for line in some]
    around = " \t\r\n" + _MARK + '"' * (quotes == "none")
    return [[field.strip(around) for field in row] for row in rows]


def read_headed(path: Path, reading: Reading, *, separator: str, typed: bool = False) -> Table:
    """Read rows below a header.

    Args:
        separator: the text between two fields.
        typed: the header's names have the form ``name:type``, as RecBole's do.

    Raises:
        DataError: the header lacks a column, or quotation marks are ambiguous.
    """
    quotes = _quotes(path, reading, separator, skipped=1)
    between = _with_blank(path, reading, separator)
    with open_text(path, reading.encoding) as file:
        header, _ = _header(path, file, between, quotes)
    names = [name.strip(' "') for name in header] if quotes == "none" else header
    names = [name.partition(":")[0] for name in names] if typed else names

    def rows() -> Rows:
        return fields_of(head_of(path, reading.encoding, SAMPLE_ROWS)[1:], separator, reading)

    try:
        places = find_places(path, names, reading, rows)
    except DataError as error:
        lines = head_of(path, reading.encoding)
        if lines and not typed and not is_header(names, rows()):
            raise no_header(path, lines[0], names, rows(), reading) from error
        raise
    chunks = _chunks(path, reading, between, places, len(names), quotes, skipped=1)
    columns = places.columns([name.strip() for name in names])
    return _table(chunks, columns, separator, places.columns(header))


def read_headless(path: Path, reading: Reading, *, separator: str, roles: Sequence[str]) -> Table:
    """Read rows without a header, whose columns have these roles in order.

    Raises:
        DataError: quotation marks are ambiguous.
    """
    places = places_of_roles(roles, reading)
    quotes = _quotes(path, reading, separator, skipped=0)
    between = _with_blank(path, reading, separator)
    chunks = _chunks(path, reading, between, places, len(roles), quotes, skipped=0)
    names = [f"column {number}" for number in range(1, len(roles) + 1)]
    return _table(chunks, places.columns(names), separator)


def _table(
    chunks: Iterator[RowChunk], columns: Columns, separator: str, header: Columns | None = None
) -> Table:
    return Table(
        columns=columns,
        chunks=chunks,
        separator=separator,
        decimal_comma=separator != ",",
        header=header,
    )


def _quotes(path: Path, reading: Reading, separator: str, *, skipped: int) -> str:
    """Return how quotation marks between these fields are read.

    Args:
        skipped: the number of lines above the rows.

    Raises:
        DataError: both meanings are likely and no setting chooses one, or white space cannot be
            quoted.
    """
    if separator == " " and reading.quotes not in (None, "none"):
        raise DataError(
            f"{flag_of('quotes')} is {reading.quotes}, but fields are separated by white space.",
            remedy=f"Omit {flag_of('quotes')}, or write the file with commas.",
            options={"quotes": None},
        )
    if reading.quotes is not None or separator not in UNQUOTED or separator == " ":
        return reading.quotes_between(separator)
    with open_text(path, reading.encoding) as file:
        lines = [line.rstrip("\r\n") for line in islice(file, _ASKED_ROWS + skipped)]
    if skipped:
        lines = [line for line in lines if line != lines[0]]
    end = re.escape(separator)
    quoted = re.compile(f'(?:^|(?<={end})) *"(?:[^"]|"")*" *(?={end}|$)')
    if not any(map(quoted.search, lines)):
        return "none"
    others = (field for line in lines for field in quoted.sub("", line).split(separator))
    if all(is_nothing(field) or is_value(field) for field in others):
        raise DataError(
            f"Every text in the first {len(lines)} rows of {path} is in quotation marks. Between "
            f"{separator_word(separator)}s, the marks may be part of the text.",
            remedy=f"Choose one: {flag_of('quotes')} = fields removes them, {flag_of('quotes')} = "
            "none keeps them.",
        )
    return "none"


def _header(path: Path, lines: Iterable[str], separator: str, quotes: str) -> tuple[list[str], int]:
    """Return the first row and the number of its last line, without reading further.

    Raises:
        DataError: a quotation mark in the row is not closed.
    """
    rows = _split((line.removeprefix(_MARK) for line in lines), separator, quotes)
    before = 0
    try:
        for fields in rows:
            if quotes == "fields" and (rows.line_num > before + 1 or _is_open(fields)):
                raise _unclosed(path, before + 1)
            before = rows.line_num
            if _is_row(fields):
                return fields, before
    except csv.Error as error:
        raise DataError(f"{path}, line {before + 1}, is not a header: {error}.") from error
    return [], before


def _is_row(fields: list[str]) -> bool:
    return len(fields) > 1 or bool(fields and fields[0].strip())


def _is_open(fields: list[str]) -> bool:
    """Return whether a file ends inside quotation marks."""
    return bool(fields) and fields[-1].endswith(("\n", "\r"))


def _unclosed(path: Path, line: int) -> DataError:
    return DataError(
        f"{path}, line {line}, has a quotation mark that is not closed. All lines after it would "
        "become part of one field.",
        remedy=f"Correct the line, or set how quotation marks are read: {flag_of('quotes')} = none "
        f"keeps them as text, {flag_of('quotes')} = lines allows line breaks in fields.",
    )


def _chunks(
    path: Path,
    reading: Reading,
    separator: str,
    places: Places,
    n_fields: int,
    quotes: str,
    *,
    skipped: int,
) -> Iterator[RowChunk]:
    wanted = [places.user, places.item]
    with_ratings = places.rating is not None and reading.minimum_rating is not None
    wanted += [places.rating] if places.rating is not None and with_ratings else []
    wanted += [places.timestamp] if places.timestamp is not None else []
    with open_text(path, reading.encoding) as file:
        source, before = iter(file), 0
        if skipped:
            before = _header(path, source, separator, quotes)[1]
        n_lines = -1
        while n_lines:
            lines, columns, bad, n_lines = _next_rows(
                path, source, before, separator, n_fields, wanted, quotes
            )
            before += n_lines
            further = iter(columns[2:])
            yield RowChunk(
                lines=lines,
                users=columns[0],
                items=columns[1],
                ratings=next(further) if with_ratings else None,
                times=next(further) if places.timestamp is not None else None,
                bad=bad,
            )


def _next_rows(
    path: Path,
    source: Iterator[str],
    before: int,
    separator: str,
    n_fields: int,
    wanted: Sequence[int],
    quotes: str,
) -> tuple[Sequence[int], list[list[str]], list[BadRow], int]:
    """Return the result of `_take` for the next rows, and the number of their lines."""
    if quotes == "lines":
        lines: Iterable[str] = _clean(path, source, before)
    else:
        lines = list(islice(source, CHUNK_ROWS))
        text = "".join(lines)
        if "\x00" in text or _MARK in text:
            lines = list(_clean(path, lines, before))
            text = "".join(lines)
        plain = _plain_columns(lines, text, separator, n_fields, wanted, quotes)
        if plain is not None:
            return range(before + 1, before + len(lines) + 1), plain, [], len(lines)
    rows = _split(lines, separator, quotes)
    numbers, columns, bad = _take(path, rows, wanted, n_fields, before, quotes)
    if len(separator.removesuffix(" ")) > 1 and quotes != "none":
        columns = [[field.replace(_UNIT, separator) for field in each] for each in columns]
    return numbers, columns, bad, rows.line_num


def _clean(path: Path, lines: Iterable[str], before: int) -> Iterator[str]:
    """Yield lines without the byte order marks that joined files contain.

    Raises:
        DataError: a line has a zero byte.
    """
    for number, line in enumerate(lines, start=before + 1):
        if "\x00" in line:
            raise zero_byte(path, number)
        yield line.removeprefix(_MARK)


def _plain_columns(
    lines: list[str],
    text: str,
    separator: str,
    n_fields: int,
    wanted: Sequence[int],
    quotes: str,
) -> list[list[str]] | None:
    """Return the columns of lines if each is a row without quotes, or None otherwise.

    `_take` gives the same result in four times the time, because it makes a list for each row.

    Args:
        text: the lines, joined.
    """
    if separator.endswith(" ") or (len(separator) > 1 and _UNIT in text):
        return None
    text = text.replace("\r\n", "\n")
    if (
        "\r" in text
        or (quotes != "none" and '"' in text)
        or set(map(str.count, lines, repeat(separator))) != {n_fields - 1}
        or (len(text) > csv.field_size_limit() < max(map(len, lines)))
    ):
        return None
    between = separator if len(separator) == 1 else _UNIT
    text = text.removesuffix("\n").replace(separator, between)
    fields = text.replace("\n", between).split(between)
    return [fields[place::n_fields] for place in wanted]


def _take(
    path: Path,
    rows: _Rows,
    wanted: Sequence[int],
    n_fields: int,
    skipped: int,
    quotes: str,
) -> tuple[list[int], list[list[str]], list[BadRow]]:
    """Return the columns of the next rows with their first lines, and the rows that cannot be read.

    Each row is dropped once its fields are in their columns: thousands of lists alive at a time
    cost more than splitting.

    Args:
        skipped: the number of lines before the first one.

    Raises:
        DataError: a quotation mark is not closed at the end of its field.
    """
    lines: list[int] = []
    columns: list[list[str]] = [[] for _ in wanted]
    bad: list[BadRow] = []
    adding = [(column.append, place) for column, place in zip(columns, wanted, strict=True)]
    fields: list[str] = []
    before, n_taken = skipped, 0
    while n_taken < CHUNK_ROWS:
        try:
            for fields in islice(rows, CHUNK_ROWS - n_taken):
                n_taken += 1
                if len(fields) == n_fields:
                    lines.append(before + 1)
                    for add, place in adding:
                        add(fields[place])
                elif _is_row(fields):
                    bad.append(BadRow(line=before + 1, reason=_misfit(fields, n_fields)))
                after = skipped + rows.line_num
                if after > before + 1 and quotes == "fields":
                    raise _unclosed(path, before + 1)
                before = after
            break
        except csv.Error as error:
            after = skipped + rows.line_num
            if after > before + 1 or "unexpected end" in str(error):
                raise _unclosed(path, before + 1) from error
            bad.append(BadRow(line=before + 1, reason=str(error)))
            before = after
            n_taken += 1
    if quotes == "fields" and _is_open(fields):
        raise _unclosed(path, before)
    return lines, columns, bad


def _misfit(fields: list[str], n_fields: int) -> str:
    hint = ""
    if any("\n" in field for field in fields):
        hint = ". A quotation mark is not closed, so the lines after it became part of the field"
    return f"{len(fields)} fields, expected {n_fields}{hint}"
