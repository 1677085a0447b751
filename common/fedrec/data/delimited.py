"""Rows of text with something between their fields, with and without a header."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Literal, Protocol

from fedrec.data.chunks import CHUNK_ROWS, BadRow, Chunk, Columns, Table
from fedrec.data.columns import Places, find_places, places_of_roles
from fedrec.data.guessing import Rows, is_header, no_header
from fedrec.data.opening import SAMPLE_ROWS, head_of, open_text
from fedrec.data.reading import Reading
from fedrec.errors import DataError

__all__ = ["fields_of", "read_headed", "read_headless"]


class _Rows(Protocol):
    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


class _Lines:
    """A file's lines, some of which can be put back."""

    def __init__(self, file: Iterable[str]) -> None:
        self._back: Iterator[str] = iter(())
        self._file = iter(file)

    def rest(self) -> Iterator[str]:
        """Return what takes lines one after the other."""
        return chain(self._back, self._file)

    def take(self, n: int) -> list[str]:
        """Return the next lines, n at most."""
        return list(islice(self.rest(), n))

    def put_back(self, lines: list[str]) -> None:
        """Have lines that were just taken come once more."""
        self._back = iter([*lines, *self._back])


class _Split:
    """Lines split at a separator of several characters or at white space; without quotes."""

    def __init__(self, lines: Iterable[str], separator: str | None) -> None:
        self.line_num = 0
        self._lines, self._separator = iter(lines), separator

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        line = next(self._lines)
        self.line_num += 1
        text = line.rstrip("\r\n")
        return text.split(self._separator) if text and not text.isspace() else []


def _split(lines: Iterable[str], separator: str, *, quotes: bool) -> _Rows:
    mark = separator.removesuffix(" ")
    if len(mark) != 1:
        return _Split(lines, mark or None)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=mark, quoting=quoting, skipinitialspace=mark != separator)


def _with_blank(path: Path, reading: Reading, separator: str) -> str:
    """Return a separator and the blank that belongs to it, if it follows each of the first line."""
    if len(separator) > 1 or separator == " ":
        return separator
    _, *after = "".join(head_of(path, reading.encoding, 1)).split(separator)
    return f"{separator} " if after and all(text.startswith(" ") for text in after) else separator


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
    between = _with_blank(path, reading, separator)
    with open_text(path, reading.encoding) as file:
        header = next(filter(_is_row, _split(file, between, quotes=quotes)), [])
    names = [name.partition(":")[0] for name in header] if typed else header

    def rows() -> Rows:
        return fields_of(head_of(path, reading.encoding, SAMPLE_ROWS)[1:], separator)

    try:
        places = find_places(path, names, reading, rows)
    except DataError as error:
        lines = head_of(path, reading.encoding)
        if lines and not typed and not is_header(header, rows()):
            raise no_header(path, lines[0], header, rows(), reading) from error
        raise
    chunks = _chunks(path, reading, between, places, len(names), skipped=1, quotes=quotes)
    return _table(chunks, places.columns([name.strip() for name in names]), separator)


def read_headless(
    path: Path, reading: Reading, *, separator: str, roles: Sequence[str], quotes: bool = True
) -> Table:
    """Read rows without a header, whose columns have these roles in order."""
    places = places_of_roles(roles, reading)
    between = _with_blank(path, reading, separator)
    chunks = _chunks(path, reading, between, places, len(roles), skipped=0, quotes=quotes)
    names = [f"column {number}" for number in range(1, len(roles) + 1)]
    return _table(chunks, places.columns(names), separator)


def _table(chunks: Iterator[Chunk], columns: Columns, separator: str) -> Table:
    return Table(
        columns=columns, chunks=chunks, separator=separator, decimal_comma=separator != ","
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
    wanted += [places.rating] if places.rating is not None and with_ratings else []
    wanted += [places.timestamp] if places.timestamp is not None else []
    with open_text(path, reading.encoding) as file:
        source, before = _Lines(file), 0
        if skipped:
            header = _split(source.rest(), separator, quotes=quotes)
            next(filter(_is_row, header), None)
            before = header.line_num
        n_lines = -1
        while n_lines:
            lines: Sequence[int]
            bad: list[BadRow] = []
            columns, n_lines = _plain_columns(source, separator, n_fields, wanted, quotes=quotes)
            lines = range(before + 1, before + n_lines + 1)
            if not n_lines:
                rows = _split(source.rest(), separator, quotes=quotes)
                lines, columns, bad = _take(rows, wanted, n_fields, before)
                n_lines = rows.line_num
            before += n_lines
            further = iter(columns[2:])
            yield Chunk(
                lines=lines,
                users=columns[0],
                items=columns[1],
                ratings=next(further) if with_ratings else None,
                times=next(further) if places.timestamp is not None else None,
                bad=bad,
            )


def _plain_columns(
    source: _Lines, separator: str, n_fields: int, wanted: Sequence[int], *, quotes: bool
) -> tuple[list[list[str]], int]:
    """Return the columns of the next lines, and how many, where each is a row without quotes.

    Where one is not, no line is taken. What `_take` makes of such lines is the same, in four times
    the time: a list for each row costs more than splitting does.
    """
    if len(separator) > 1 or separator == " ":
        return [], 0
    lines = source.take(CHUNK_ROWS)
    text = "".join(lines).replace("\r\n", "\n")
    if (
        "\r" in text
        or (quotes and '"' in text)
        or set(map(str.count, lines, repeat(separator))) != {n_fields - 1}
        or (len(text) > csv.field_size_limit() < max(map(len, lines)))
    ):
        source.put_back(lines)
        return [], 0
    fields = text.removesuffix("\n").replace("\n", separator).split(separator)
    return [fields[place::n_fields] for place in wanted], len(lines)


def _take(
    rows: _Rows, wanted: Sequence[int], n_fields: int, skipped: int
) -> tuple[list[int], list[list[str]], list[BadRow]]:
    """Return the columns of the next rows with their first lines, and what has no such columns.

    A row goes as soon as its fields are in their columns: thousands of lists alive at a time cost
    more than splitting does.

    Args:
        skipped: lines before the first one.
    """
    lines: list[int] = []
    columns: list[list[str]] = [[] for _ in wanted]
    bad: list[BadRow] = []
    adding = [(column.append, place) for column, place in zip(columns, wanted, strict=True)]
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
                before = skipped + rows.line_num
            break
        except csv.Error as error:
            bad.append(BadRow(line=before + 1, reason=str(error)))
            before = skipped + rows.line_num
            n_taken += 1
    return lines, columns, bad


def _misfit(fields: list[str], n_fields: int) -> str:
    hint = ""
    if any("\n" in field for field in fields):
        hint = "; a quotation mark is not closed, so that lines after it were swallowed"
    return f"{len(fields)} fields, expected {n_fields}{hint}"
