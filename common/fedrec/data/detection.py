"""Detect how a file is laid out, if only one reading is possible."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path

from fedrec.data.column_kinds import number_of
from fedrec.data.decoding import SAMPLE_ROWS, head_of, on_disk, open_text, plain_name
from fedrec.data.delimited import fields_of
from fedrec.data.guessing import find_places, is_header, is_value, no_header
from fedrec.data.reading import ROLES, Reading, flag_of, known_roles, separator_word
from fedrec.errors import DataError

_CANDIDATES = ("\t", ",", ";", "|", "::", " ")
_COMMENT = re.compile(r'#|%|"?sep=.', re.IGNORECASE)
"""The beginning of lines above the rows. Spreadsheets write ``sep=;``."""


def detect_layout(path: Path, reading: Reading) -> str:
    """Return the layout that fits a file's name and first lines.

    Raises:
        DataError: no layout fits. The message has what was found and a remedy.
    """
    suffix = plain_name(path).suffix.lower()
    source = on_disk(path)
    if source.is_dir():
        return "parquet"
    with source.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    if is_parquet or suffix in (".parquet", ".pq"):
        return "parquet"
    lines = _head(path, reading)
    first = lines[0] if lines else ""
    if first.lstrip().startswith(("{", "[")):
        return _json(path, lines)
    if reading.columns is not None:
        return "table"
    is_named = any(getattr(reading, f"{role}_column") for role in ROLES)
    if not is_named and reading.separator is None:
        tabs, spaces = first.split("\t"), first.split()
        if suffix == ".inter" and any(":" in field for field in tabs):
            return "inter"
        if suffix == ".dat" and len(first.split("::")) == 4:
            return "ratings.dat"
        if suffix == ".data" and len(tabs) == 4 and not known_roles(tabs):
            return "u.data"
        # A .txt file of three numbers may as well be user, item and time, so only its full name
        # decides.
        is_filmtrust = plain_name(path).name.lower() == "ratings.txt"
        if (
            is_filmtrust
            and len(spaces) == 3
            and all(number_of(field) is not None for field in spaces)
        ):
            return "ratings.txt"
    if suffix == ".inter" and any(":" in field for field in first.split("\t")):
        return "inter"
    if is_named or _header_separators(lines, reading):
        return "ratings.csv" if first.startswith("userId,movieId,") and not is_named else "csv"
    raise _unknown(path, lines, reading)


def header_separator(path: Path, reading: Reading) -> str:
    """Return the separator of a file with a header.

    Raises:
        DataError: no separator gives the wanted columns, or several do.
    """
    if reading.separating is not None:
        return reading.separating
    lines = _head(path, reading)
    found = _header_separators(lines, reading)
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise _several(path, found)
    possible = [separator for separator in _consistent(lines, reading) if separator != " "]
    if possible:
        # Missing columns are reported later, when columns are looked up.
        return possible[0]
    raise _unknown(path, lines, reading)


def table_separator(path: Path, reading: Reading, roles: Sequence[str]) -> str:
    """Return the separator of a file without a header, whose columns were named.

    Raises:
        DataError: no separator gives each line this number of fields, or several do, or the first
            line is a header.
    """
    lines = _head(path, reading)
    candidates = _CANDIDATES if reading.separating is None else (reading.separating,)
    fitting = [
        separator
        for separator in candidates
        if {len(row) for row in fields_of(lines, separator, reading)} == {len(roles)}
    ]
    fitting = _without_space(fitting)
    if len(fitting) > 1:
        raise _several(path, fitting)
    # If most lines fit, a line that does not is an ordinary bad row.
    separator = fitting[0] if fitting else _most_fitting(lines, candidates, len(roles))
    if separator is None:
        raise _misfit(path, lines, candidates, roles)
    first = fields_of(lines[:1], separator, reading)[0]
    named = known_roles(first)
    if {"user", "item"} <= named:
        raise DataError(
            f"{path}, line 1, is a header: {', '.join(first[:20])}. {flag_of('columns')} is "
            f"for files without a header.",
            remedy=f"Leave {flag_of('columns')} out.",
            options={"columns": None} | ({"layout": None} if reading.layout else {}),
        )
    return separator


def _head(path: Path, reading: Reading) -> list[str]:
    """Return a file's first lines.

    Raises:
        DataError: the file has lines above its rows.
    """
    lines = head_of(path, reading.encoding)
    if not lines or not _is_above(lines[0]) or 2 * sum(map(_is_above, lines)) > len(lines) > 1:
        return lines
    plain = plain_name(path)
    unpacked = "" if plain == path else f"Unpack it to {plain.name}. "
    target = shlex.quote(str(plain.with_name(f"rows-{plain.name}")))
    with open_text(path, reading.encoding) as file:
        n_above = sum(1 for _ in takewhile(_is_above, file))
    # The first line after the comments of a matrix file counts its rows and columns.
    n_above += lines[0].lower().startswith("%%matrixmarket")
    raise DataError(
        f"{path} begins with a comment, {lines[0][:60]!r}. Expected a header or rows.",
        remedy=f"{unpacked}Remove the lines above the rows: tail -n +{n_above + 1} "
        f"{shlex.quote(str(plain))} > {target}",
    )


def _is_above(line: str) -> bool:
    return not line.strip() or bool(_COMMENT.match(line.lstrip()))


def _json(path: Path, lines: list[str]) -> str:
    first = lines[0].lstrip()
    if first.startswith("{") and first.rstrip().endswith("}"):
        return "jsonl"
    name = shlex.quote(str(path))
    lines_name = shlex.quote(str(plain_name(path).with_suffix(".jsonl")))
    code = "import json,sys;[print(json.dumps(row)) for row in json.load(sys.stdin)]"
    raise DataError(
        f"{path}, line 1, begins with {first[:20]!r}. Expected JSON lines: one complete object on "
        "each line.",
        remedy=f"Convert a list of objects with: python3 -c {shlex.quote(code)} < {name} > "
        f"{lines_name}",
    )


def _header_separators(lines: Sequence[str], reading: Reading) -> list[str]:
    """Return the separators with which the first line names a user and an item column."""
    found = []
    for separator in _CANDIDATES if reading.separating is None else (reading.separating,):
        fields = [row for row in fields_of(lines[:1], separator, reading) if len(row) > 1]
        if not fields or (separator == " " and not _has_rows_of(len(fields[0]), lines)):
            continue
        named = known_roles(fields[0])
        for role in ("user", "item"):
            wanted = getattr(reading, f"{role}_column")
            if wanted is not None:
                named = named | {role} if wanted in fields[0] else named - {role}
        if {"user", "item"} <= named:
            found.append(separator)
    return _without_space(found)


def _has_rows_of(n_fields: int, lines: Sequence[str]) -> bool:
    """Return whether most lines have this number of words. Names in a header may contain blanks."""
    n_fitting = sum(len(line.split()) == n_fields for line in lines)
    return 2 * n_fitting > len(lines) or n_fitting == len(lines) - 1


def _consistent(lines: Sequence[str], reading: Reading) -> list[str]:
    """Return the separators that split every line into the same number of fields, at least 2.

    If there is none, return those that do so for most lines.
    """
    found: dict[str, float] = {}
    for separator in _CANDIDATES:
        sizes = [len(row) for row in fields_of(lines, separator, reading)]
        if sizes and sizes[0] > 1:
            found[separator] = sizes.count(sizes[0]) / len(sizes)
    least = 1.0 if 1.0 in found.values() else 0.5
    return _without_space([separator for separator, share in found.items() if share >= least])


def _without_space(found: list[str]) -> list[str]:
    """Drop white space if another separator fits, which blanks may follow."""
    return found if len(found) < 2 else [separator for separator in found if separator != " "]


def _most_fitting(lines: Sequence[str], candidates: Sequence[str], n_fields: int) -> str | None:
    for separator in candidates:
        fitting = sum(len(row) == n_fields for row in fields_of(lines, separator))
        if 2 * fitting > len(lines):
            return separator
    return None


def _several(path: Path, separators: Sequence[str]) -> DataError:
    words = list(map(separator_word, separators))
    return DataError(
        f"{path}, line 1, can be split in several ways: by {' or '.join(words)}.",
        remedy=f"Choose one with {flag_of('separator')}.",
        readings=[{"separator": word} for word in words],
    )


def _misfit(
    path: Path, lines: Sequence[str], candidates: Sequence[str], roles: Sequence[str]
) -> DataError:
    rows = [fields_of(lines[:1], separator) for separator in candidates]
    first = max((row[0] for row in rows if row), key=len, default=[])
    return DataError(
        f"{path}, line 1, has {len(first)} fields ({_shown(first)}), but {flag_of('columns')} "
        f"names {len(roles)}.",
        remedy="Name every column of the file, with - for any that is not one of "
        f"{', '.join(ROLES)}. Or set {flag_of('separator')} to the text between two fields.",
        options={"columns": None},
    )


def _unknown(path: Path, lines: list[str], reading: Reading) -> DataError:
    """Return the error for a file with unknown columns."""
    first = lines[0] if lines else ""
    possible = [reading.separating] if reading.separating else _consistent(lines, reading)
    errors: list[DataError] = []
    for separator in possible:
        fields, *rows = fields_of(head_of(path, reading.encoding, SAMPLE_ROWS), separator, reading)
        # Words separated by spaces may be ordinary text.
        if len(fields) < 2 or (separator == " " and not any(map(is_value, fields))):
            continue
        if not is_header(fields, rows):
            word = separator_word(separator) if len(possible) > 1 else ""
            errors.append(no_header(path, first, fields, rows, reading, word))
            continue
        try:
            find_places(path, fields, reading, partial(list, rows))
        except DataError as error:
            errors.append(error)
    if errors:
        ways = [way for error in errors for way in error.readings or [error.options] if way]
        return DataError(errors[0].message, remedy=errors[0].remedy, readings=ways)
    if reading.separator is not None:
        return DataError(
            f"{path}, line 1, is a single field with {flag_of('separator')} = {reading.separator}: "
            f"{first[:120]!r}.",
            remedy=f"Omit {flag_of('separator')}, or set it to the text between two fields.",
            options={"separator": None},
        )
    return DataError(
        f"The layout of {path} is unknown. Its first line is {first[:120]!r}. Expected a header "
        "with user and item, or one of the layouts in `fedrec data describe --help`.",
        remedy=f"Name it with {flag_of('layout')}, and the text between two fields with "
        f"{flag_of('separator')}.",
    )


def _shown(fields: Sequence[str]) -> str:
    return ", ".join(repr(field[:30]) for field in fields[:8])
