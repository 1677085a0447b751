"""The tables of the SQLite store, and rows as the values that they stand for."""

from __future__ import annotations

import sqlite3
from dataclasses import fields
from typing import Any, TypeVar

from fedrec.wire.chunks import Blob
from fedrec.wire.messages import RevealStatement, Signed

__all__ = ["DATABASE", "SCHEMA", "SCHEMA_VERSION", "Row", "blob_of", "from_row", "insert", "row_of"]

DATABASE = "coordinator.sqlite"
SCHEMA_VERSION = 10

SCHEMA = """
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
  sequence INTEGER PRIMARY KEY AUTOINCREMENT, unix_seconds REAL NOT NULL, kind TEXT NOT NULL,
  round INTEGER NOT NULL, fields_json TEXT NOT NULL
) STRICT;
"""

Value = str | int | float | bytes | None
Row = dict[str, Value]
Said = TypeVar("Said", bound=Signed)


def insert(rows: sqlite3.Connection, table: str, row: Row, *, verb: str = "INSERT") -> None:
    """Insert one row; `table` and the columns are names from this module."""
    columns = ", ".join(row)
    marks = ", ".join("?" * len(row))
    rows.execute(f"{verb} INTO {table} ({columns}) VALUES ({marks})", tuple(row.values()))


def row_of(said: Signed) -> Row:
    """Return what somebody signed as a row; the columns have its fields' names."""
    row: Row = {name: getattr(said, name) for name in _names(type(said))}
    if isinstance(said, RevealStatement):
        row["paused"] = " ".join(map(str, said.paused))
    return row


def from_row(kind: type[Said], row: sqlite3.Row) -> Said:
    """Return the header, statement or report that a row stands for."""
    values = {name: row[name] for name in _names(kind)}
    if kind is RevealStatement:
        values["paused"] = tuple(int(cell) for cell in values["paused"].split())
    return kind(**values)


def _names(kind: type[Signed]) -> list[str]:
    return [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass


def blob_of(length: Any, digest: Any) -> Blob | None:
    """Return a blob from two columns that are both NULL or both set."""
    return None if length is None else Blob(length=length, digest=digest)
