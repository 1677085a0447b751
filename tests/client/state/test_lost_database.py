"""A state folder whose database, or list of private tables, is gone keeps what is still there."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from client.state.test_private_store import PIN, header, publish, stage, store

from fedrec.errors import StateWentBack, StorageError
from fedrec.follower.database import STATE_FILE, StateDatabase, image_of
from fedrec.follower.follower_store import FollowerStore
from fedrec.follower.stored_state import StoredState
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState
from fedrec.model.tables import room_in
from fedrec.state_folder import FILE
from fedrec_authority.folder.opened_sums import OpeningState
from fedrec_client.round.participation import selection_secret
from fedrec_client.state.private_store import PrivateStore

__all__ = ["store"]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    "left", [None, image_of({}), image_of({"client": {"selection_secret": b"1"}})]
)
def test_files_without_the_database_that_names_them_are_kept(store, left, read_only):
    stage(store)
    publish(store, counted=True)
    stage(store, 2)
    store.close()
    path = store.folder / STATE_FILE
    path.unlink() if left is None else path.write_bytes(left)
    # As earlier releases left it, or lost with the database.
    (store.folder / FILE).unlink()
    before = contents(store.folder)
    with pytest.raises(StorageError, match=f"{path} is missing, or knows of no run") as refused:
        PrivateStore(store.folder, read_only=read_only)
    assert "3 files" in refused.value.message and "private-" in refused.value.message
    assert "Nothing was changed or deleted" in refused.value.remedy
    assert "backup" in refused.value.remedy and "new state folder" in refused.value.remedy
    assert contents(store.folder) == before


def test_what_a_kill_before_the_first_commit_leaves_is_swept(tmp_path):
    (tmp_path / ".state.sqlite.0123.new").write_bytes(b"half")
    PrivateStore(tmp_path).close()
    assert not list(tmp_path.glob(".*.new"))


@pytest.mark.parametrize("damage", ["gone", "flipped", "list flipped"])
def test_tables_stay_where_their_list_is_damaged(store, monkeypatch, damage):
    monkeypatch.setattr("fedrec.model.blocked_table.BLOCK_BYTES", 64)
    with closing(store):
        room = room_in(store.folder, 0)
        table = np.arange(48, dtype=np.float32).reshape(12, 4)
        private = PrivateState.of({"table": table}).in_room(room)
        store.stage(header(1), b"update 1", private.parts())
        publish(store, counted=True)
        del private, room
    path = next(store.folder.glob("private-*.bin"))
    raw = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        raw[2 if damage == "flipped" else len(raw) // 2] ^= 1
        path.write_bytes(raw)
    before = contents(store.folder)
    assert sum(name.startswith("blocks/") for name in before) == 3
    with pytest.raises(StorageError, match=str(path)):
        PrivateStore(store.folder)
    assert contents(store.folder) == before
    path.write_bytes(raw)
    if damage == "gone":
        with PrivateStore(store.folder) as again:
            assert again.state.pin == PIN


@pytest.mark.parametrize("journal", [False, True])
def test_an_older_copy_of_the_database_alone_is_refused(store, journal):
    path = store.folder / STATE_FILE
    for number in (1, 2, 3, 4):
        stage(store, number)
        publish(store, number, counted=True)
        if number == 1:
            older = path.read_bytes()
    newest, state = path.read_bytes(), store.state
    store.close()
    path.write_bytes(older)
    if journal:
        # Of the newer database, interrupted: applied to this one, it would mix the two.
        path.with_name(f"{STATE_FILE}-journal").write_bytes(b"of another database")
    before = contents(store.folder)
    for _ in range(2):
        with pytest.raises(StateWentBack, match="is an older copy") as refused:
            PrivateStore(store.folder)
        assert str(store.folder) in refused.value.message
        assert "newest folder back as a whole" in refused.value.remedy
        assert "keys replace" in refused.value.remedy
        assert contents(store.folder) == before
    path.with_name(f"{STATE_FILE}-journal").unlink(missing_ok=True)
    path.write_bytes(newest)
    with PrivateStore(store.folder) as again:
        assert again.state == state
        assert state.private is not None and again.read(state.private) == b"private after"


def test_a_whole_older_folder_and_one_without_a_mark_are_opened(store):
    stage(store)
    older = contents(store.folder)
    publish(store, counted=True)
    store.close()
    for path in store.folder.iterdir():
        path.unlink()
    for name, raw in older.items():
        (store.folder / name).write_bytes(raw)
    with PrivateStore(store.folder) as again:
        assert again.state.staged is not None
        publish(again, counted=True)
    (store.folder / FILE).unlink()
    with PrivateStore(store.folder) as again:
        stage(again, 2)
    assert (store.folder / FILE).exists()


def test_a_damaged_mark_names_the_folder(store):
    store.close()
    (store.folder / FILE).write_bytes(b"fedrec highwater 1 0")
    with pytest.raises(StorageError, match=f"'{FILE}' of client.state '{store.folder}' is damaged"):
        PrivateStore(store.folder)


def check_every_cell(store: FollowerStore[StoredState]) -> None:
    """Change each value of each column of a folder's database in turn: none may be believed."""
    store.close()
    path, flipped = store.folder / STATE_FILE, 0
    raw, before = path.read_bytes(), contents(store.folder)
    with closing(sqlite3.connect(path)) as rows:
        query = (
            "SELECT s.name, i.name FROM sqlite_schema s, pragma_table_info(s.name) i "
            "WHERE s.type = 'table'"
        )
        cells = [
            (table, column, name)
            for table, column in rows.execute(query).fetchall()
            for (name,) in rows.execute(f"SELECT name FROM {table}").fetchall()
        ]
    assert {(table, column) for table, column, _ in cells} == {
        (table, column) for table in ("run", "client") for column in ("name", "value", "sha256")
    }
    for table, column, name in cells:
        first = f"CASE hex(substr({column}, 1, 1)) WHEN '7E' THEN '!' ELSE '~' END"
        other = f"{first} || substr({column}, 2)"
        other = other if column == "name" else f"CAST({other} AS BLOB)"
        with closing(sqlite3.connect(path)) as rows, rows:
            flipped += rows.execute(
                f"UPDATE {table} SET {column} = {other} WHERE name = ?", (name,)
            ).rowcount
        with pytest.raises(StorageError, match=str(path)) as refused:
            type(store)(store.folder)
        assert "Restore the state folder" in refused.value.remedy, refused.value
        path.write_bytes(raw)
    assert flipped == len(cells) and contents(store.folder) == before
    type(store)(store.folder).close()


def test_another_value_in_any_column_of_any_table_is_noticed(store):
    stage(store)
    selection_secret(store)
    store.keep_own("roster", b"a roster")
    check_every_cell(store)


def check_earlier_releases(store: FollowerStore[StoredState], others: StoredState) -> None:
    """Check a folder with empty records of the other kind of follower, as earlier releases wrote.

    What is not empty there says whose folder it is.
    """
    store.close()
    state = store.state
    foreign = {
        name: value for name, value in others.records().items() if name not in state.records()
    }
    database = StateDatabase(store.folder)
    database.write("run", foreign)
    database.close()
    for read_only in (True, False):
        with type(store)(store.folder, read_only=read_only) as again:
            assert again.state == state
    with type(store)(store.folder) as again:
        again.publish(RoundId(state.version + 1), b"newer", metrics=b"\xff\x00")
    with type(store)(store.folder) as again:
        assert again.state.version == state.version + 1 and foreign
    for name, value in foreign.items():
        database.write("run", {name: b'"something"'})
        with pytest.raises(StorageError, match=f"cannot be understood: .'{name}'"):
            type(store)(store.folder, read_only=True)
        database.write("run", {name: value})
    database.close()


def test_a_folder_of_earlier_releases_is_opened(store):
    stage(store)
    publish(store, counted=True)
    check_earlier_releases(store, OpeningState(pin=PIN, epoch=1))


def test_an_older_database_with_its_mark_deletes_nothing(store):
    """A part of an older folder in the newest one: what the database names is gone by now."""
    stage(store)
    older = {name: contents(store.folder)[name] for name in (STATE_FILE, FILE)}
    store.publish(RoundId(1), b"shared", metrics=b"", counted=False)
    store.close()
    newest = contents(store.folder)
    for name, raw in older.items():
        (store.folder / name).write_bytes(raw)
    before = contents(store.folder)
    with pytest.raises(StorageError, match=r"-[0-9a-f]{32}\.bin is missing, which") as refused:
        PrivateStore(store.folder)
    assert "Nothing was changed or deleted" in refused.value.remedy
    assert contents(store.folder) == before
    for name in older:
        (store.folder / name).write_bytes(newest[name])
    with PrivateStore(store.folder) as again:
        assert again.state.version == 1
