"""What is stored of a private state that lies in files: a list of them.

The list is a version of the state. It is kept like the file of a state that fits memory; the
blocks lie in the folder `blocks` beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrec.errors import StorageError
from fedrec.model.blocked_table import BlockedTable

__all__ = ["BLOCKS", "manifest_of", "names_in", "read_manifest"]

BLOCKS = "blocks"
"""The folder of the blocks, beside the versions that name them."""

_FORMAT = "fedrec private blocks"
_VERSION = 1
_BEGIN = b'{"format": "' + _FORMAT.encode() + b'"'
_NAME = re.compile(r"block-[0-9a-f]{64}\.bin")


def manifest_of(tables: Mapping[str, BlockedTable]) -> bytes:
    """Return the list of a state's files."""
    record = {
        "format": _FORMAT,
        "version": _VERSION,
        "tables": {name: table.stored() for name, table in sorted(tables.items())},
    }
    return json.dumps(record).encode()


def read_manifest(path: Path) -> dict[str, dict[str, Any]] | None:
    """Return what a stored state says of its tables, or None where it holds them itself.

    Returns:
        by table: shape, users_per_block and names, as `BlockedTable.stored` has them.

    Raises:
        StorageError: it begins like a list, and is none.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_BEGIN)) != _BEGIN:
                return None
        record = json.loads(path.read_bytes())
        if record["version"] != _VERSION:
            raise ValueError(f"its version is {record['version']!r}, expected {_VERSION}")
        tables: dict[str, dict[str, Any]] = record["tables"]
        for table in tables.values():
            _check(table)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{path} is not a stored private state: {error}.",
            remedy="Restore the file from a backup, or start with an empty state folder.",
        ) from None
    return tables


def names_in(tables: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the files of all tables."""
    return {name for table in tables.values() for name in table["names"]}


def _check(table: Mapping[str, Any]) -> None:
    numbers = [*table["shape"], table["users_per_block"]]
    if not table["shape"] or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"it has a table of the shape {table['shape']}")
    wanted = -(-table["shape"][0] // max(1, table["users_per_block"]))
    if len(table["names"]) != wanted or not all(map(_NAME.fullmatch, table["names"])):
        raise ValueError(f"it has a table of {len(table['names'])} blocks, expected {wanted}")
