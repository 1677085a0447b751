"""The SQLite store: the suite of all stores, and what is its own."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest
from conformance.store_suite import IDENTITY, StoreSuite, entry
from server.support.chaos import random_rules

from fedrec.errors import DamagedFile, SettingsError, StorageError
from fedrec.ids import ClientId
from fedrec_server.store.durable_files import DurabilityLost, Failpoint, no_failpoint
from fedrec_server.store.sqlite import SqliteStore
from fedrec_server.store.store import RunIdentity
from fedrec_server.store.tables import prepare


class TestSqliteStore(StoreSuite):
    module = "server.store.test_sqlite"

    def open(
        self, folder: Path, identity: RunIdentity, failpoint: Failpoint = no_failpoint
    ) -> SqliteStore:
        return SqliteStore(folder, identity, failpoint=failpoint)


def rows(folder: Path) -> sqlite3.Connection:
    found = sqlite3.connect(folder / "coordinator.sqlite", isolation_level=None)
    prepare(found)
    return found


def test_is_durable_at_every_commit(tmp_path):
    store = SqliteStore(tmp_path, IDENTITY)
    found = {
        name: store._connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "busy_timeout")
    }
    assert found == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 5000}
    store.close()


def test_newer_schema_is_refused(tmp_path):
    SqliteStore(tmp_path, IDENTITY).close()
    connection = rows(tmp_path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StorageError, match="schema 99"):
        SqliteStore(tmp_path, IDENTITY)


def test_older_schema_is_refused(tmp_path):
    SqliteStore(tmp_path, IDENTITY).close()
    connection = rows(tmp_path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(StorageError, match=r"schema 1, this fedrec reads 11\..*version that began"):
        SqliteStore(tmp_path, IDENTITY)


def test_a_folder_that_cannot_be_written_is_a_setting(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError, match=r"coordinator\.state: .*file/state' cannot be created"):
        SqliteStore(tmp_path / "file" / "state", IDENTITY)
    folder = tmp_path / "state"
    SqliteStore(folder, IDENTITY).close()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    # Permissions bind nobody who is root.
    with monkeypatch.context() as changed:
        changed.setattr("os.access", lambda path, _: path.name != "coordinator.sqlite")
        with pytest.raises(SettingsError, match=r"state: .*coordinator.sqlite' cannot be written"):
            SqliteStore(folder, IDENTITY)
    for number in (errno.EROFS, errno.EACCES, errno.EPERM):

        def refuse(path: Path, *_: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as changed:
            changed.setattr("os.open", refuse)
            with pytest.raises(
                SettingsError, match=r"coordinator\.state: .*state' cannot be writt"
            ):
                SqliteStore(folder, IDENTITY)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_rows_that_say_nothing_are_refused(tmp_path):
    SqliteStore(tmp_path, IDENTITY).close()
    connection = rows(tmp_path)
    connection.execute("REPLACE INTO meta (name, value) VALUES ('resumed_after', 'soon')")
    connection.close()
    store = SqliteStore(tmp_path, IDENTITY)
    try:
        with pytest.raises(StorageError, match="rows cannot be read"):
            store.load(random_rules(0)[0], frozenset({ClientId("a" * 64)}))
    finally:
        store.close()


def test_no_database_and_torn_pages_are_refused(tmp_path):
    SqliteStore(tmp_path, IDENTITY).close()
    path = tmp_path / "coordinator.sqlite"
    whole = path.read_bytes()
    path.write_bytes(b"no database" * 100)
    with pytest.raises(DamagedFile, match=f"{path} is damaged: file is not a database"):
        SqliteStore(tmp_path, IDENTITY)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedFile, match=f"{path} is damaged"):
        SqliteStore(tmp_path, IDENTITY)
    path.write_bytes(whole)
    SqliteStore(tmp_path, IDENTITY).close()


def test_stale_coordinator_is_fenced_off(tmp_path):
    store = SqliteStore(tmp_path, IDENTITY)
    # As if the folder's lock had not worked: another coordinator began and ended meanwhile.
    connection = rows(tmp_path)
    connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'fence'")
    connection.close()
    with pytest.raises(DurabilityLost, match="took over"):
        store.commit([], [entry(1)])
    store.close()


@pytest.mark.parametrize("kind", [sqlite3.ProgrammingError, sqlite3.IntegrityError])
def test_what_is_not_for_want_of_space_is_no_full_disk(tmp_path, kind):
    """Errors that Python makes have no code of SQLite's."""
    broken: list[sqlite3.Error] = []

    def failpoint(name: str) -> None:
        if broken and name == "rows.commit":
            raise broken.pop()

    store = SqliteStore(tmp_path, IDENTITY, failpoint=failpoint)
    broken.append(kind("out of order"))
    with pytest.raises(StorageError, match="rejected the change") as refused:
        store.commit([], [entry(1)])
    assert type(refused.value) is StorageError
    store.commit([], [entry(1)])
    assert store.last_entry() == 1
    store.close()
