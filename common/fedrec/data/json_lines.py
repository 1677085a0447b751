"""JSON lines: one object on each line, its keys the columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from fedrec.data.chunks import CHUNK_ROWS, BadRow, Chunk, Table
from fedrec.data.columns import find_places
from fedrec.data.opening import open_text
from fedrec.data.reading import ROLES, Reading, flag_of
from fedrec.errors import DataError

__all__ = ["read_json_lines"]

_FIRST_ROWS = 100
"""Objects in which keys are looked for: a key may be missing where it has no value."""


def read_json_lines(path: Path, reading: Reading) -> Table:
    """Read objects one a line; a number is the id that its digits spell.

    Raises:
        DataError: the first objects lack a key.
    """
    reading.refuse_beyond("jsonl", "encoding", *(f"{role}_column" for role in ROLES))
    with open_text(path, reading.encoding) as file:
        first = [_object(line) for line in islice(file, _FIRST_ROWS) if line.strip()]
    objects = [found for found in first if isinstance(found, dict)]
    if first and not objects:
        raise DataError(
            f"{path}, line 1, is no JSON line: {first[0]}.",
            remedy=f"Leave {flag_of('layout')} out, or write one object on each line.",
            options={"layout": None},
        )
    names = list(dict.fromkeys(key for found in objects for key in found))
    rows = [[str(found.get(name, "")) for name in names] for found in objects]
    columns = find_places(path, names, reading, rows).columns(names)
    chunks = _chunks(path, reading, [*columns.by_role().values()])
    return Table(columns=columns, chunks=chunks, header=columns)


def _chunks(path: Path, reading: Reading, keys: list[str | None]) -> Iterator[Chunk]:
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
            yield Chunk(
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
