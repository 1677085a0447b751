"""The coordinator's folder: every column of every table, and every file."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from fedrec.errors import StorageError
from fedrec_lab.audit.wire.declared import file_kind, undeclared_event_keys
from fedrec_lab.audit.wire.known import Known
from fedrec_lab.audit.wire.reading import BlobTally, FieldTally
from fedrec_lab.audit.wire.truth import Search

UPDATES = ("update", "unfinished update")
"""Kinds of files that belong to one client."""

_READ_BYTES = 4 << 20
_CLIENT_COLUMN = "client_id"
_DATABASES = (".sqlite", ".db")
_TESTED_BYTES = 1 << 30


@dataclass(slots=True)
class Storage:
    """The content of a state folder.

    Attributes:
        columns: the counts, by `table.column`.
        files: sizes by kind, or by path if the kind is not declared.
        blobs: the files' content, by kind.
        undeclared: files that must not exist.
        problems: sentences about broken promises that are not about one column.
    """

    known: Known
    search: Search | None = None
    columns: dict[str, FieldTally] = field(default_factory=dict)
    files: dict[str, FieldTally] = field(default_factory=dict)
    blobs: dict[str, BlobTally] = field(default_factory=dict)
    undeclared: list[str] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    _over: frozenset[int] = frozenset()

    def read(self) -> None:
        """Read the folder and its database.

        Raises:
            StorageError: if the folder does not exist, or its database cannot be read.
        """
        folder = self.known.state
        if not folder.is_dir():
            raise StorageError(
                f"The coordinator's folder {folder} does not exist.",
                remedy="Run the audit where the coordinator ran, with its settings.",
            )
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            if path.suffix in _DATABASES:
                self._read_database(path)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            # A running coordinator deletes what a round leaves.
            with suppress(FileNotFoundError):
                self._read_file(path, path.relative_to(folder).as_posix())

    def _read_database(self, path: Path) -> None:
        try:
            with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as rows:
                tables = rows.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                for (table,) in tables.fetchall():
                    self._read_table(rows, str(table))
                self._over = self._rounds_over(rows)
            rows.close()
        except sqlite3.Error as error:
            raise StorageError(
                f"{path} cannot be read: {error}.", remedy="Stop the coordinator, then try again."
            ) from error

    def _read_table(self, rows: sqlite3.Connection, table: str) -> None:
        quoted = table.replace('"', '""')
        cursor = rows.execute(f'SELECT * FROM "{quoted}"')
        names = [str(column[0]) for column in cursor.description]
        for row in cursor:
            values = dict(zip(names, row, strict=True))
            client = str(values.get(_CLIENT_COLUMN) or "")
            for name, value in values.items():
                if value is not None:
                    self._count(f"{table}.{name}", value, client)

    def _count(self, name: str, value: bytes | str | int | float, client: str) -> None:
        self.columns.setdefault(name, FieldTally()).add(value, client)
        if isinstance(value, str) and self.search is not None:
            self.search.look_at_text(value, f"table {name}")
        if name == "journal.fields_json":
            foreign = undeclared_event_keys(str(value))
            if foreign:
                self.problems[f"{name} has keys that are not declared: {foreign}."] += 1

    def _rounds_over(self, rows: sqlite3.Connection) -> frozenset[int]:
        """Return the rounds whose updates must have been deleted."""
        if not {"rounds.round", "rounds.phase"} <= set(self.columns):
            return frozenset()
        found = rows.execute("SELECT round FROM rounds WHERE phase IN ('published', 'abandoned')")
        return frozenset(int(row[0]) for row in found)

    def _read_file(self, path: Path, name: str) -> None:
        kind = file_kind(name)
        if kind is None:
            self.undeclared.append(name)
        size = 0
        with path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                size += len(data)
                if self.search is not None:
                    self.search.look(data, f"file {name}" if kind is None else f"files: {kind}")
        client = name.rpartition("/")[2][9:73] if kind in UPDATES else ""
        tally = self.files.setdefault(kind or name, FieldTally())
        tally.add_blob(size, blake3(name.encode()).digest(), client)
        if kind not in (None, "bookkeeping") and size <= _TESTED_BYTES:
            self.blobs.setdefault(str(kind), BlobTally()).add(
                path.read_bytes(), client, self.known.reader
            )
        if kind in UPDATES and _round_of(name) in self._over:
            self.problems["An update is kept after its round was over."] += 1


def _round_of(name: str) -> int:
    return int(name.rpartition("/")[2][:8])
