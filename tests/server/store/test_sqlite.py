"""The coordinator's store: its tables, its backup and its highest round."""

import errno
import os
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest
from conformance.store_suite import IDENTITY, StoreSuite, durable, entry
from world.engine import Bench
from world.machine import blob
from world.machine import rules as rules_of
from world.serving import serving
from world.traffic import Chaos, volatile_free

from fedrec.errors import DamagedFile, SettingsError, StateWentBack, StorageError
from fedrec.ids import ClientId, RoundId
from fedrec.state_folder import FILE, record
from fedrec_server.store.durable_files import (
    DurabilityLost,
    Spool,
    no_failpoint,
    snapshot_name,
    sum_name,
)
from fedrec_server.store.sqlite import SqliteStore
from fedrec_server.store.state_folder import back_up
from fedrec_server.store.store import SnapshotRecord
from fedrec_server.store.tables import prepare


class TestSqliteStore(StoreSuite):
    module = "server.store.test_sqlite"

    def open(self, folder, identity, failpoint=no_failpoint):
        return SqliteStore(folder, identity, failpoint=failpoint)


def rows(folder):
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


@pytest.mark.parametrize(
    ("schema", "words"),
    [(99, "schema 99"), (1, r"schema 1, this fedrec reads 11\..*version that began")],
)
def test_another_schema_is_refused(tmp_path, schema, words):
    SqliteStore(tmp_path, IDENTITY).close()
    connection = rows(tmp_path)
    connection.execute(f"PRAGMA user_version = {schema}")
    connection.close()
    with pytest.raises(StorageError, match=words):
        SqliteStore(tmp_path, IDENTITY)


def test_a_folder_that_cannot_be_written_is_a_setting(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError, match=r"coordinator\.state: .*file/state' cannot be created"):
        SqliteStore(tmp_path / "file" / "state", IDENTITY)
    folder = tmp_path / "state"
    SqliteStore(folder, IDENTITY).close()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    # Permissions do not bind root.
    with monkeypatch.context() as changed:
        changed.setattr("os.access", lambda path, _: path.name != "coordinator.sqlite")
        with pytest.raises(SettingsError, match=r"state: .*coordinator.sqlite' cannot be written"):
            SqliteStore(folder, IDENTITY)
    for number in (errno.EROFS, errno.EACCES, errno.EPERM):

        def refuse(path, *_, number=number):
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
            store.load(rules_of(), frozenset({ClientId("a" * 64)}))
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


def test_a_draft_is_read_from_its_beginning_however_often(tmp_path):
    with closing(Spool(tmp_path).draft()) as draft:
        draft.append(b"update")
        for _ in range(2):
            with draft.opened() as content:
                assert content.read() == b"update"


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

    def failpoint(name):
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


EVERYBODY = range(3)


def in_the_second_round(found):
    """Publish a round, and count one update of the next."""
    found.come(EVERYBODY)
    for number in EVERYBODY:
        found.upload(number)
    found.do(found.coordinator.engine.run.work.settled())
    found.come(EVERYBODY)
    found.upload(0, 2)


def test_a_coordinator_goes_on_from_a_copy_made_while_it_ran(tmp_path):
    bench = Bench.of(3)
    copy = tmp_path / "copy" / "state"
    with serving(bench, tmp_path) as found:
        in_the_second_round(found)
        report = back_up(tmp_path / "state", copy)
        assert (report.last_round, report.n_files) == (2, 2)
        state, run = found.coordinator.engine.run.state, found.run
        with pytest.raises(SettingsError, match="already exists"):
            back_up(tmp_path / "state", copy)
        for number in (1, 2):
            found.upload(number, 2)
        found.do(found.coordinator.engine.run.work.settled())
        undisturbed = (tmp_path / "state" / sum_name(RoundId(2))).read_bytes()
    with serving(bench, tmp_path / "copy") as restored:
        assert restored.run == run
        assert volatile_free(restored.coordinator.engine.run.state) == volatile_free(state)
        restored.come(EVERYBODY)
        assert restored.upload(0, 2), "what was acknowledged is a duplicate"
        for number in (1, 2):
            restored.upload(number, 2)
        restored.do(restored.coordinator.engine.run.work.settled())
        assert restored.coordinator.engine.run.state.published == 2
    assert (copy / sum_name(RoundId(2))).read_bytes() == undisturbed


def test_a_damaged_file_is_not_copied(tmp_path):
    with serving(Bench.of(3), tmp_path) as found:
        in_the_second_round(found)
        (tmp_path / "state" / sum_name(RoundId(1))).write_bytes(b"something else")
        with pytest.raises(DamagedFile, match="Restore blobs/00000001-sum"):
            back_up(tmp_path / "state", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".copy")]


def test_no_state_and_an_older_one(tmp_path):
    with pytest.raises(SettingsError, match=r"holds no coordinator\.sqlite"):
        back_up(tmp_path, tmp_path / "copy")
    store = SqliteStore(tmp_path / "state", IDENTITY)
    store._connection.execute("PRAGMA user_version = 7")
    with pytest.raises(StorageError, match="schema 7"):
        back_up(tmp_path / "state", tmp_path / "copy")
    store.close()


WAL = "coordinator.sqlite-wal"
COMMITS = 30


def committed(folder, n_commits=COMMITS):
    """Return an open store in which so much was committed that nothing was checkpointed since."""
    store = SqliteStore(folder, IDENTITY)
    for number in range(n_commits):
        store.commit([], [entry(number)])
    return store


@pytest.fixture
def killed(tmp_path):
    """A folder as `kill -9` leaves it: with everything in the write-ahead log."""
    store = committed(tmp_path / "running")
    shutil.copytree(tmp_path / "running", tmp_path / "killed")
    store.close()
    yield tmp_path / "killed"


def contents(folder):
    """Return all files but the index of the log, which is made anew at will."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm") and path.name != "lock"
        if path.name != WAL or path.stat().st_size
    }


@pytest.mark.parametrize("position", range(7))
def test_wal_bit_flip(killed, position):
    path = killed / WAL
    raw = bytearray(path.read_bytes())
    # Spread over the log, its last frame included; bytes behind the last commit there are none.
    raw[min(len(raw) - 1, 40 + position * len(raw) // 6)] ^= 0x10
    path.write_bytes(raw)
    before = contents(killed)
    for _ in range(2):
        with pytest.raises(StorageError, match="Nothing was changed or deleted") as caught:
            SqliteStore(killed, IDENTITY)
        assert type(caught.value) is StateWentBack
        assert contents(killed) == before


def test_after_settling_the_log_holds_nothing_that_is_missed(tmp_path):
    store = committed(tmp_path / "running")
    store.settle()
    shutil.copytree(tmp_path / "running", tmp_path / "killed")
    store.close()
    (tmp_path / "killed" / WAL).write_bytes(b"")
    store = SqliteStore(tmp_path / "killed", IDENTITY)
    assert store.last_entry() == COMMITS
    store.close()


def test_settling_beside_commits(tmp_path):
    store = committed(tmp_path / "running", 0)
    with ThreadPoolExecutor(1) as other:
        settled = [other.submit(store.settle) for _ in range(20)]
        for number in range(COMMITS):
            store.commit([], [entry(number)])
        for one in settled:
            one.result()
    shutil.copytree(tmp_path / "running", tmp_path / "killed")
    store.close()
    store = SqliteStore(tmp_path / "killed", IDENTITY)
    assert store.last_entry() == COMMITS
    store.close()


def test_a_mark_that_is_gone_or_damaged(killed):
    mark = killed / FILE
    raw = bytearray(mark.read_bytes())
    raw[30] ^= 1
    mark.write_bytes(raw)
    with pytest.raises(StorageError, match=f"'{FILE}' of coordinator.state is damaged"):
        SqliteStore(killed, IDENTITY)
    mark.unlink()
    with pytest.raises(StateWentBack, match="the folder is incomplete"):
        SqliteStore(killed, IDENTITY)


@pytest.mark.parametrize("behind", [0, 1, 5])
def test_killed_before_the_mark_is_written(killed, behind):
    # A power cut may take unsynced marks along; the log is synced with each commit.
    (killed / FILE).write_bytes(record(COMMITS + 1 - behind))
    store = SqliteStore(killed, IDENTITY)
    assert store.last_entry() == COMMITS
    store.close()
    assert (killed / FILE).read_bytes() == record(COMMITS + 2)


@pytest.mark.parametrize("content", [None, b"", record(0)])
def test_killed_while_the_folder_was_made(tmp_path, content):
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
        (tmp_path / "coordinator.sqlite").touch()
    store = SqliteStore(tmp_path, IDENTITY)
    assert store.last_entry() == 0
    store.close()


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_damaged_file_stops_the_sweep_before_anything_is_deleted(tmp_path, damage):
    store = committed(tmp_path)
    kept = blob("a copy of the model")
    name = snapshot_name(RoundId(1), kept)
    store.keep_snapshot(SnapshotRecord(round=RoundId(1), epoch=1, blob=kept))
    if damage == "flipped":
        (tmp_path / name).write_bytes(b"another")
    orphan = tmp_path / "updates" / "00000000-nobody"
    orphan.touch()
    with pytest.raises(DamagedFile, match=f"Restore {name} of coordinator.state"):
        store.sweep()
    assert orphan.exists()
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_whole_runs_open_again_after_every_step(tmp_path, seed):
    chaos, folder = Chaos(seed), tmp_path / "running"
    store = SqliteStore(folder, IDENTITY)
    chaos.world.commit = lambda changes: store.commit(durable(changes), [])
    for number in range(60):
        chaos.act()
        if number % 6 == 0:
            copy = tmp_path / f"copy-{number}"
            shutil.copytree(folder, copy)
            identity = replace(IDENTITY, epoch=chaos.world.state.rules.epoch)
            SqliteStore(copy, identity).close()
    store.close()
