"""The tables of the SQLite store, and the conversion between rows and values.

SQLite detects a malformed page but not a value that was flipped on the disk. So each row has a
checksum of its other columns, which SQLite computes while writing and the reader compares.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import fields
from typing import Any, TypeVar
from zlib import crc32

from fedrec.formats import COORDINATOR
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import RevealStatement, Signed

DATABASE = "coordinator.sqlite"
SCHEMA_VERSION = COORDINATOR.own

_CHECKSUM = "checksum"
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE rounds (
  round INTEGER PRIMARY KEY, kind TEXT NOT NULL, base_round INTEGER NOT NULL,
  epoch INTEGER NOT NULL, phase TEXT NOT NULL, opened_at REAL NOT NULL,
  deadline_at REAL NOT NULL, reason TEXT NOT NULL DEFAULT '',
  n_rows INTEGER, rows_digest BLOB, sum_length INTEGER, sum_digest BLOB,
  blob_name TEXT, blob_length INTEGER, blob_digest BLOB,
  known_epoch INTEGER, known_tag BLOB, reports_until REAL
) STRICT;
CREATE TABLE asked (
  round INTEGER NOT NULL, client_id TEXT NOT NULL, PRIMARY KEY (round, client_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE contributions (
  round INTEGER NOT NULL, client_id TEXT NOT NULL, protocol_version TEXT NOT NULL,
  federation TEXT NOT NULL, run TEXT NOT NULL, kind TEXT NOT NULL,
  base_round INTEGER NOT NULL, base_state BLOB NOT NULL, key_list BLOB NOT NULL,
  nonce BLOB NOT NULL,
  epoch INTEGER NOT NULL, catalogue_fingerprint TEXT NOT NULL, plan_fingerprint TEXT NOT NULL,
  length INTEGER NOT NULL, digest BLOB NOT NULL, n_rows INTEGER NOT NULL,
  rows_digest BLOB NOT NULL, signature BLOB NOT NULL,
  PRIMARY KEY (round, client_id)
) STRICT;
CREATE TABLE latest (
  client_id TEXT PRIMARY KEY, round INTEGER NOT NULL, protocol_version TEXT NOT NULL,
  federation TEXT NOT NULL, run TEXT NOT NULL, kind TEXT NOT NULL,
  base_round INTEGER NOT NULL, base_state BLOB NOT NULL, key_list BLOB NOT NULL,
  nonce BLOB NOT NULL,
  epoch INTEGER NOT NULL, catalogue_fingerprint TEXT NOT NULL, plan_fingerprint TEXT NOT NULL,
  length INTEGER NOT NULL, digest BLOB NOT NULL, n_rows INTEGER NOT NULL,
  rows_digest BLOB NOT NULL, signature BLOB NOT NULL
) STRICT;
CREATE TABLE statements (
  round INTEGER PRIMARY KEY, client_id TEXT NOT NULL, federation TEXT NOT NULL,
  run TEXT NOT NULL, epoch INTEGER NOT NULL, manifest_digest BLOB NOT NULL,
  state_tag BLOB NOT NULL, published_digest BLOB NOT NULL, metrics BLOB NOT NULL,
  n_rows INTEGER NOT NULL, rows_digest BLOB NOT NULL, refused TEXT NOT NULL,
  paused TEXT NOT NULL, signature BLOB NOT NULL,
  sequence INTEGER NOT NULL, previous BLOB NOT NULL,
  kind TEXT NOT NULL, trained INTEGER NOT NULL, charged INTEGER NOT NULL
) STRICT;
CREATE TABLE paused (
  epoch INTEGER NOT NULL, cell INTEGER NOT NULL, round INTEGER NOT NULL,
  PRIMARY KEY (epoch, cell)
) STRICT, WITHOUT ROWID;
CREATE TABLE reports (
  round INTEGER NOT NULL, client_id TEXT NOT NULL, federation TEXT NOT NULL,
  run TEXT NOT NULL, epoch INTEGER NOT NULL, state_tag BLOB NOT NULL, metrics BLOB NOT NULL,
  n_rows INTEGER NOT NULL, rows_digest BLOB NOT NULL, signature BLOB NOT NULL,
  PRIMARY KEY (round, client_id)
) STRICT;
CREATE TABLE mask_messages (
  round INTEGER NOT NULL, client_id TEXT NOT NULL, step TEXT NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY (round, step, client_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE snapshots (
  round INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, length INTEGER NOT NULL,
  digest BLOB NOT NULL
) STRICT;
CREATE TABLE attestations (
  round INTEGER NOT NULL, client_id TEXT NOT NULL, federation TEXT NOT NULL,
  run TEXT NOT NULL, epoch INTEGER NOT NULL, state_tag BLOB NOT NULL, metrics BLOB NOT NULL,
  n_rows INTEGER NOT NULL, rows_digest BLOB NOT NULL, signature BLOB NOT NULL,
  PRIMARY KEY (round, client_id)
) STRICT;
CREATE TABLE epochs (
  epoch INTEGER PRIMARY KEY, length INTEGER NOT NULL, digest BLOB NOT NULL
) STRICT;
CREATE TABLE applicants (
  invitation BLOB PRIMARY KEY, client_id TEXT NOT NULL, application BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE ledger (round INTEGER PRIMARY KEY, at REAL NOT NULL) STRICT;
CREATE TABLE journal (
  sequence INTEGER PRIMARY KEY, unix_seconds REAL NOT NULL, kind TEXT NOT NULL,
  round INTEGER NOT NULL, fields_json TEXT NOT NULL
) STRICT;
"""

Value = str | int | float | bytes | None
Row = dict[str, Value]
Said = TypeVar("Said", bound=Signed)


def tables() -> dict[str, str]:
    """Return the statements that create the tables, by name."""
    with closing(sqlite3.connect(":memory:")) as rows:
        rows.executescript(_SCHEMA)
        plain = dict(rows.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'"))
        return {
            name: sql.replace("(", f"(\n  {_checksum_column(rows, name)},", 1)
            for name, sql in plain.items()
        }


def _checksum_column(rows: sqlite3.Connection, table: str) -> str:
    query = "SELECT name FROM pragma_table_info(?) ORDER BY cid"
    columns = ", ".join(name for (name,) in rows.execute(query, (table,)))
    return f"{_CHECKSUM} INTEGER AS (row_checksum({columns})) STORED"


def prepare(rows: sqlite3.Connection) -> None:
    """Make a connection compute checksums, and compare them in every row that is read in full."""
    rows.create_function("row_checksum", -1, _row_checksum, deterministic=True)
    rows.row_factory = _checked


def _row_checksum(*values: Value) -> int:
    pieces = [one if isinstance(one, bytes) else ascii(one).encode() for one in values]
    return crc32(b" ".join(pieces))


def _checked(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> sqlite3.Row:
    if cursor.description[0][0] == _CHECKSUM and values[0] != _row_checksum(*values[1:]):
        raise ValueError(f"the row that begins with {values[1]!r} does not match its checksum")
    return sqlite3.Row(cursor, values)


def table_names(rows: sqlite3.Connection) -> list[str]:
    """Return a database's tables, without SQLite's own."""
    query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND NOT name GLOB 'sqlite_*'"
    return [row[0] for row in rows.execute(query)]


def _add_checksums(rows: sqlite3.Connection) -> None:
    """Add checksums to the rows of version 10."""
    for name, sql in tables().items():
        query = "SELECT name FROM pragma_table_info(?) ORDER BY cid"
        columns = ", ".join(row[0] for row in rows.execute(query, (name,)))
        rows.execute(f"ALTER TABLE {name} RENAME TO unchecked")
        rows.execute(sql)
        rows.execute(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM unchecked")
        rows.execute("DROP TABLE unchecked")


_STEPS: Mapping[int, Callable[[sqlite3.Connection], None]] = {10: _add_checksums}
"""Conversions by the version that each begins with. Each ends with the next one."""


def convert(rows: sqlite3.Connection, version: int) -> None:
    """Convert a former version's tables, within one transaction."""
    for number in range(version, SCHEMA_VERSION):
        _STEPS[number](rows)
    rows.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def backup_of(rows: sqlite3.Connection) -> bytes:
    """Return a database's content for a backup, without shares of keys and freed pages."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
        prepare(copy)
        rows.backup(copy)
        copy.execute("DELETE FROM mask_messages")
        copy.execute("VACUUM")
        return copy.serialize()


def insert(rows: sqlite3.Connection, table: str, row: Row, *, verb: str = "INSERT") -> None:
    """Insert one row. `table` and the columns are names from this module."""
    columns = ", ".join(row)
    marks = ", ".join("?" * len(row))
    rows.execute(f"{verb} INTO {table} ({columns}) VALUES ({marks})", tuple(row.values()))


def row_of(signed: Signed) -> Row:
    """Return a signed message as a row, whose columns are named after its fields."""
    row: Row = {name: getattr(signed, name) for name in _names(type(signed))}
    if isinstance(signed, RevealStatement):
        row["paused"] = " ".join(map(str, signed.paused))
    return row


def from_row(kind: type[Said], row: sqlite3.Row) -> Said:
    """Return the header, statement or report that a row contains."""
    values = {name: row[name] for name in _names(kind)}
    if kind is RevealStatement:
        values["paused"] = tuple(int(cell) for cell in values["paused"].split())
    return kind(**values)


def _names(kind: type[Signed]) -> list[str]:
    return [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass


def blob_of(length: Any, digest: Any) -> Blob | None:
    """Return a blob from two columns that are either both NULL or both set."""
    return None if length is None else Blob(length=length, digest=digest)
