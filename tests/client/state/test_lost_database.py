"""A client that lost its database, holds a model or goes on elsewhere."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from client.state.test_private_store import PIN, header, publish, stage, store
from world.fake_federation import World
from world.fake_parties import USERS

from fedrec.arithmetic import arithmetic_of
from fedrec.data import Catalogue
from fedrec.errors import RefusedError, StateWentBack, StorageError
from fedrec.follower.database import STATE_FILE, StateDatabase, image_of
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState
from fedrec.model.tables import room_in
from fedrec.state_folder import FILE
from fedrec_authority.folder.opened_sums import OpeningState
from fedrec_client.own_recommender import Wanted, export_model, own_recommender, recommendations
from fedrec_client.round.participation import selection_secret
from fedrec_client.state import held_model
from fedrec_client.state.held_model import read_held_model
from fedrec_client.state.private_store import PrivateStore

__all__ = ["store"]


def contents(folder):
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
    with pytest.raises(StorageError, match=f"{path} is missing or records no run") as refused:
        PrivateStore(store.folder, read_only=read_only)
    assert "3 files" in refused.value.message and "private-" in refused.value.message
    assert "Nothing was changed or deleted" in refused.value.remedy
    assert "backup" in refused.value.remedy and "earlier counts" in refused.value.remedy
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
        assert "the newest copy of the whole folder" in refused.value.remedy
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


def check_every_cell(store):
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


def check_earlier_releases(store, others):
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
        with pytest.raises(StorageError, match=f"isn't a valid state: .'{name}'"):
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
    with pytest.raises(StorageError, match=r"-[0-9a-f]{32}\.bin is missing, but") as refused:
        PrivateStore(store.folder)
    assert "Nothing was changed or deleted" in refused.value.remedy
    assert contents(store.folder) == before
    for name in older:
        (store.folder / name).write_bytes(newest[name])
    with PrivateStore(store.folder) as again:
        assert again.state.version == 1


@pytest.fixture
def world(tmp_path):
    """A client that has the count and a round of training."""
    made = World(tmp_path)
    made.whole_round(1, "count")
    made.whole_round(2)
    made.app().run()
    return made


@pytest.mark.slow
def test_a_version_that_goes_meanwhile_is_followed_by_the_next(world, monkeypatch):
    begun = PrivateStore(world.state, read_only=True).state.shared
    assert begun is not None

    class Slow:
        """Its catalogue is read while the client takes the next version."""

        left = 1

        @classmethod
        def load(cls, path):
            if cls.left:
                cls.left -= 1
                with PrivateStore(world.state) as store:
                    following = store.read(begun)[:-4] + bytes(4)
                    store.change(best=None)
                    store.adopt(RoundId(3), following)
                assert not (world.state / begun.name).exists()
            return Catalogue.load(path)

    monkeypatch.setattr(held_model, "Catalogue", Slow)
    assert read_held_model(world.settings(), "latest").version == 3


@pytest.mark.slow
def test_what_is_missing_of_the_present_version_is_damage(world):
    shared = PrivateStore(world.state, read_only=True).state.shared
    (world.state / shared.name).unlink()
    with pytest.raises(StorageError, match=shared.name):
        read_held_model(world.settings(), "latest")


OTHER = "OPENBLAS_CORETYPE"
"""Part of the arithmetic; a process that has loaded the library does not look at it any more."""


@pytest.fixture(autouse=True)
def _absent(monkeypatch):
    """Some machines set it; the library is loaded already and does not look at it."""
    monkeypatch.delenv(OTHER, raising=False)


def state_of(world):
    return PrivateStore(world.state, read_only=True).state


def files_of(world):
    """The state folder byte by byte, but for the lock, which names the last process."""
    return {
        path.name: path.read_bytes()
        for path in world.state.iterdir()
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.slow
def test_the_state_says_what_trained_it(world):
    found = state_of(world).provenance
    assert found.arithmetic == arithmetic_of("cpu")
    assert found.path == "fedmf accelerator 1"
    assert found.accepted == ()


@pytest.mark.slow
def test_it_is_refused_at_once_and_nothing_is_touched(world, monkeypatch):
    before, calls = (
        files_of(world),
        list(world.link.calls),
    )
    with monkeypatch.context() as patched:
        patched.setenv(OTHER, "Prescott")
        with pytest.raises(RefusedError, match=f"{OTHER} is Prescott, not absent") as caught:
            world.app().run()
    assert str(world.state) in caught.value.message
    assert "--accept-other-arithmetic" in caught.value.remedy
    assert "as good" in caught.value.remedy
    # A coordinator that is away does not hide it.
    assert world.link.calls == [*calls, "close"]
    assert files_of(world) == before
    world.whole_round(3)
    assert world.app().run().version == 3


@pytest.mark.slow
def test_accepted_it_goes_on_and_says_so_for_good(world, monkeypatch):
    own = arithmetic_of("cpu").digest()
    monkeypatch.setenv(OTHER, "Prescott")
    world.whole_round(3)
    assert world.app(accept_other_arithmetic=True).run().version == 3
    found = state_of(world).provenance
    (change,) = found.accepted
    assert change.round == 2
    assert (change.before, change.after) == (own, arithmetic_of("cpu").digest())
    record = json.loads((world.state / "environment.json").read_text())
    assert record["accepted"][0]["before"] == own
    assert record["format"] == 11
    # From then on this arithmetic is the run's own.
    world.whole_round(4)
    assert world.app().run().version == 4
    assert state_of(world).provenance == found


@pytest.mark.slow
def test_another_release_is_refused_even_if_accepted(world, monkeypatch):
    """The coordinator would refuse each of its updates, and the way back would be closed."""
    before = files_of(world)
    world.whole_round(3)
    with monkeypatch.context() as patched:
        patched.setattr("fedrec.environment.training_path", lambda plan: "fedmf accelerator 2")
        with pytest.raises(RefusedError, match="began with fedmf accelerator 1") as caught:
            world.app(accept_other_arithmetic=True).run()
    assert "with the release that began it" in caught.value.remedy
    assert files_of(world) == before
    assert world.app().run().version == 3


@pytest.mark.slow
def test_before_the_first_answer_there_is_nothing_to_refuse(tmp_path, monkeypatch):
    world = World(tmp_path)
    world.app().run()
    monkeypatch.setenv(OTHER, "Prescott")
    world.whole_round(1, "count")
    assert world.app().run().version == 1
    found = state_of(world).provenance
    assert found.arithmetic == arithmetic_of("cpu")
    assert found.accepted == ()


@pytest.mark.slow
def test_another_run_begins_under_whatever_there_is(world, monkeypatch):
    monkeypatch.setenv(OTHER, "Prescott")
    # The coordinator still has the run that was answered.
    with pytest.raises(RefusedError, match=OTHER):
        world.app().run(new_run=True)
    world.run = "run-2"
    world.rounds.clear()
    world.published_round = RoundId(0)
    world.app().run(new_run=True)
    found = state_of(world).provenance
    assert found.arithmetic == arithmetic_of("cpu")
    assert found.accepted == ()


@pytest.mark.slow
def test_reading_is_not_asked_where(world, tmp_path, monkeypatch):
    def recommended():
        own = own_recommender(world.settings())
        return recommendations(own, Wanted(n=3).for_users(own, USERS[0]))

    here = recommended()
    monkeypatch.setenv(OTHER, "Prescott")
    assert recommended() == here
    assert export_model(world.settings(), tmp_path / "exported").version == here.version
