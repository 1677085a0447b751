"""JSON lines: one object on each line, its keys the columns."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from fedrec.data.chunks import CHUNK_ROWS, BadRow, RowChunk, Table
from fedrec.data.columns import find_places
from fedrec.data.opening import SAMPLE_ROWS, head_of, open_text, plain_name
from fedrec.data.reading import ROLES, Reading, flag_of
from fedrec.errors import DataError

_FIRST_ROWS = 100
"""Objects in which keys are looked for: a key may be missing where it has no value."""
_PYTHON = re.compile(r"\{\s*u?'")


def read_json_lines(path: Path, reading: Reading) -> Table:
    """Read objects one a line; a number is the id that its digits spell.

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
        leave = f"Leave {flag_of('layout')} out, or write" if reading.layout else "Write"
        raise DataError(
            f"{path}, line 1, is no JSON line: {first[0]}.",
            remedy=f"{leave} one object on each line.",
            options={"layout": None} if reading.layout else None,
        )
    names = list(dict.fromkeys(key for found in objects for key in found))

    def rows() -> list[list[str]]:
        some = _objects(head_of(path, reading.encoding, SAMPLE_ROWS))
        return [[_field(found.get(name)) for name in names] for found in some]

    columns = find_places(path, names, reading, rows).columns(names)
    chunks = _chunks(path, reading, [*columns.by_role().values()])
    return Table(columns=columns, chunks=chunks, header=columns)


def _objects(lines: list[str]) -> list[dict[str, Any]]:
    return [found for found in map(_object, lines) if isinstance(found, dict)]


def _field(value: Any) -> str:
    return "" if value is None else str(value)


def _python(path: Path, line: str) -> DataError:
    """Return what to say of a file of dictionaries as Python prints them."""
    plain = plain_name(path)
    unpacked = "" if plain == path else f"Unpack it to {plain.name}. "
    code = (
        "import ast, json, sys; [print(json.dumps(ast.literal_eval(line))) for line in sys.stdin "
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


def _chunks(path: Path, reading: Reading, keys: list[str | None]) -> Iterator[RowChunk]:
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
    """Return a line's object, or why it has none."""
    try:
        found = json.loads(text.removeprefix("\ufeff"))
    except ValueError as error:
        return f"no JSON: {error}"
    except RecursionError:
        return "no JSON: too deeply nested"
    return found if isinstance(found, dict) else f"{text.strip()[:40]!r}, expected a JSON object"
