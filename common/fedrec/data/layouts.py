"""How the supported files lay out their rows: one line for each layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fedrec.data.chunks import Table
from fedrec.data.delimited import read_headed, read_headless
from fedrec.data.detection import header_separator, table_separator
from fedrec.data.json_lines import read_json_lines
from fedrec.data.parquet_table import read_parquet
from fedrec.data.reading import ROLES, Reading, flag_of
from fedrec.errors import DataError

_TEXT = ("encoding", "quotes")
_NAMED = (*_TEXT, *(f"{role}_column" for role in ROLES))


def _read_fixed(
    path: Path, reading: Reading, *, layout: str, separator: str, roles: Sequence[str]
) -> Table:
    """Read a layout that has no header and always the same columns."""
    reading.refuse_beyond(layout, *_TEXT)
    return read_headless(path, reading, separator=separator, roles=roles)


def _read_movielens_csv(path: Path, reading: Reading) -> Table:
    reading.refuse_beyond("ratings.csv", *_NAMED)
    return read_headed(path, reading, separator=",")


def _read_csv(path: Path, reading: Reading) -> Table:
    """Read fields under a header, whatever is between them."""
    reading.refuse_beyond("csv", "separator", *_NAMED)
    return read_headed(path, reading, separator=header_separator(path, reading))


def _read_table(path: Path, reading: Reading) -> Table:
    """Read fields without a header, whose columns were named."""
    reading.refuse_beyond("table", "columns", "separator", *_TEXT)
    if reading.roles is None:
        raise DataError(
            "The layout table has no header, and nothing says what its columns are.",
            remedy=f"Name them in order with {flag_of('columns')}.",
            options={"layout": None},
        )
    separator = table_separator(path, reading, reading.roles)
    return read_headless(path, reading, separator=separator, roles=reading.roles)


def _read_inter(path: Path, reading: Reading) -> Table:
    """Read a RecBole `.inter` file: tab separated under a header of ``name:type``."""
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
"""One reader for each layout; ``amazon`` and ``table`` are never found out, only named."""
