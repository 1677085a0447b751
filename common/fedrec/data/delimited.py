"""Rows of text with something between their fields, with and without a header."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol, TextIO

from fedrec.data.chunks import CHUNK_ROWS, BadRow, Chunk, Table
from fedrec.data.columns import Places, find_places, places_of_roles
from fedrec.data.opening import open_text
from fedrec.data.reading import Reading

__all__ = ["fields_of", "read_headed", "read_headless"]


class _Rows(Protocol):
    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


class _Split:
    """Lines split at a separator of several characters or at white space; without quotes."""

    def __init__(self, file: TextIO, separator: str | None) -> None:
        self.line_num = 0
        self._file, self._separator = file, separator

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        line = next(self._file)
        self.line_num += 1
        text = line.rstrip("\r\n")
        return text.split(self._separator) if text and not text.isspace() else []


def _split(file: TextIO, separator: str, *, quotes: bool) -> _Rows:
    if len(separator) > 1 or separator == " ":
        return _Split(file, None if separator == " " else separator)
    if quotes:
        return csv.reader(file, delimiter=separator)
    return csv.reader(file, delimiter=separator, quoting=csv.QUOTE_NONE)


def fields_of(lines: Sequence[str], separator: str) -> list[list[str]]:
    """Return the fields of some lines, as the readers here split them."""
    if len(separator) > 1 or separator == " ":
        return [line.split(None if separator == " " else separator) for line in lines]
    try:
        return [[field.strip() for field in row] for row in csv.reader(lines, delimiter=separator)]
    except csv.Error:
        return [line.split(separator) for line in lines]


def read_headed(
    path: Path, reading: Reading, *, separator: str, typed: bool = False, quotes: bool = True
) -> Table:
    """Read rows under a header.

    Args:
        separator: what is between two fields.
        typed: the header's names are ``name:type``, as RecBole's.
        quotes: fields may stand in quotation marks.

    Raises:
        DataError: the header lacks a column.
    """
    with open_text(path, reading.encoding) as file:
        header = next(filter(_is_row, _split(file, separator, quotes=quotes)), [])
    names = [name.partition(":")[0] for name in header] if typed else header
    places = find_places(path, names, reading)
    chunks = _chunks(path, reading, separator, places, len(names), skipped=1, quotes=quotes)
    return _table(chunks, places, separator)


def read_headless(
    path: Path, reading: Reading, *, separator: str, roles: Sequence[str], quotes: bool = True
) -> Table:
    """Read rows without a header, whose columns have these roles in order."""
    places = places_of_roles(roles)
    chunks = _chunks(path, reading, separator, places, len(roles), skipped=0, quotes=quotes)
    return _table(chunks, places, separator)


def _table(chunks: Iterator[Chunk], places: Places, separator: str) -> Table:
    return Table(
        has_timestamps=places.timestamp is not None,
        has_ratings=places.rating is not None,
        chunks=chunks,
        decimal_comma=separator != ",",
    )


def _is_row(fields: list[str]) -> bool:
    return len(fields) > 1 or bool(fields and fields[0].strip())


def _chunks(
    path: Path,
    reading: Reading,
    separator: str,
    places: Places,
    n_fields: int,
    *,
    skipped: int,
    quotes: bool,
) -> Iterator[Chunk]:
    wanted = [places.user, places.item]
    with_ratings = places.rating is not None and reading.minimum_rating is not None
    with_times = places.timestamp is not None and reading.timestamp_format != "none"
    wanted += [places.rating] if places.rating is not None and with_ratings else []
    wanted += [places.timestamp] if places.timestamp is not None and with_times else []
    with open_text(path, reading.encoding) as file:
        rows = _split(file, separator, quotes=quotes)
        if skipped:
            next(filter(_is_row, rows), None)
        before = -1
        while before != rows.line_num:
            before = rows.line_num
            lines, columns, bad = _take(rows, wanted, n_fields)
            further = iter(columns[2:])
            yield Chunk(
                lines=lines,
                users=columns[0],
                items=columns[1],
                ratings=next(further) if with_ratings else None,
                times=next(further) if with_times else None,
                bad=bad,
            )


def _take(
    rows: _Rows, wanted: Sequence[int], n_fields: int
) -> tuple[list[int], list[list[str]], list[BadRow]]:
    """Return the columns of the next rows with their first lines, and what has no such columns.

    A row goes as soon as its fields are in their columns: thousands of lists alive at a time cost
    more than splitting does.
    """
    lines: list[int] = []
    columns: list[list[str]] = [[] for _ in wanted]
    bad: list[BadRow] = []
    adding = [(column.append, place) for column, place in zip(columns, wanted, strict=True)]
    before = rows.line_num
    n_taken = 0
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
                before = rows.line_num
            break
        except csv.Error as error:
            bad.append(BadRow(line=before + 1, reason=str(error)))
            before = rows.line_num
            n_taken += 1
    return lines, columns, bad


def _misfit(fields: list[str], n_fields: int) -> str:
    hint = ""
    if any("\n" in field for field in fields):
        hint = "; a quotation mark is not closed, so that lines after it were swallowed"
    return f"{len(fields)} fields, expected {n_fields}{hint}"
