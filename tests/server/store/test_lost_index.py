"""A folder whose database is gone or damaged is refused; its files stay; the way back works."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import sqlite3
from contextlib import closing

import pytest
from server.store.test_sqlite import contents
from world.engine import Bench, files, gather, play, running, upload

from fedrec.errors import DamagedFile, SettingsError, StateWentBack, StorageError
from fedrec.formats import BACKUP_FILE
from fedrec.ids import RoundId
from fedrec_server.store import reading
from fedrec_server.store.durable_files import DurabilityLost
from fedrec_server.store.sqlite import SqliteStore
from fedrec_server.store.state_folder import back_up
from fedrec_server.store.tables import Value, prepare, table_names, tables

DATABASE, WAL, SHM, MARK = (
    "coordinator.sqlite",
    "coordinator.sqlite-wal",
    "coordinator.sqlite-shm",
    "highwater",
)
INDEX = (DATABASE, WAL, SHM, MARK)
BENCH = Bench.of(3)
SUBSETS = [one for n in range(5) for one in itertools.combinations(INDEX, n)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder as `kill -9` leaves it: published sums, a counted update and one under way."""
    folder = tmp_path_factory.mktemp("killed")

    async def scenario():
        async with running(BENCH, folder / "running") as engine:
            await gather(engine, range(3))
            for _ in range(2):
                for number in range(3):
                    await upload(engine, BENCH, number)
                await engine.run.work.settled()
            await upload(engine, BENCH, 0)
            await engine.run.work.settled()
            shutil.copytree(folder / "running" / "state", folder / "state")
        (folder / "state" / "partial" / "00000003-part").write_bytes(b"half")

    asyncio.run(scenario())
    return folder


@pytest.fixture
def copied(killed, tmp_path):
    shutil.copytree(killed / "state", tmp_path / "state")
    back_up(tmp_path / "state", tmp_path / "backup")
    yield tmp_path


def plays_on(folder):
    """Start on a folder, to the run's end."""

    async def scenario():
        async with running(BENCH, folder) as engine:
            assert engine.run.state.published == 2
            await play(engine, BENCH, range(3))

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["gone", "empty"])
@pytest.mark.parametrize("lost", SUBSETS, ids="+".join)
def test_every_part_of_the_index_missing(copied, lost, how):
    """The folder opens with all that it knew, or is refused with all that it holds."""
    state = copied / "state"
    for name in lost:
        (state / name).unlink() if how == "gone" else (state / name).write_bytes(b"")
    kept, before = files(copied), contents(state)
    if set(lost) <= {SHM}:
        # SQLite makes its index of the log anew.
        plays_on(copied)
        return
    with pytest.raises(StorageError, match="Nothing was changed or deleted") as refused:
        SqliteStore(state, BENCH.federation.identity)
    assert "coordinator recover" in refused.value.remedy and "empty folder" in refused.value.remedy
    assert files(copied) == kept and contents(state) == before
    if DATABASE in lost or MARK not in lost:
        assert type(refused.value) is StateWentBack
    if DATABASE in lost:
        assert "1 in partial/, 1 in updates/, 2 in blobs/" in refused.value.message
        assert str(state) in refused.value.message
    shutil.rmtree(state)
    (copied / "backup").rename(state)
    plays_on(copied)


def test_a_backup_is_tried_again_if_a_round_deletes_a_model_meanwhile(copied, monkeypatch):
    state, copy = copied / "state", shutil.copyfile
    with closing(sqlite3.connect(state / DATABASE)) as rows:
        prepare(rows)
        name = f"{next(reading.own_models(rows))}-0"
    (state / name).write_bytes(b"model")
    back_up(state, copied / "with")
    assert (copied / "with" / name).read_bytes() == b"model"

    def copied_too_late(source, target):
        if source == state / name:
            source.unlink()
        return copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", copied_too_late)
    back_up(state, copied / "without")
    assert not (copied / "without" / name).exists()


@pytest.mark.parametrize("kind", ["blobs", "updates", "snapshots", "epochs", "partial"])
def test_files_of_one_kind_are_enough(tmp_path, kind):
    (tmp_path / kind).mkdir()
    (tmp_path / kind / "00000001-sum").write_bytes(b"sum")
    with pytest.raises(StateWentBack, match=f"1 in {kind}/"):
        SqliteStore(tmp_path, BENCH.federation.identity)
    assert (tmp_path / kind / "00000001-sum").exists()
    assert not (tmp_path / DATABASE).exists() and not (tmp_path / MARK).exists()


@pytest.mark.parametrize("kind", ["blobs", "updates", "snapshots", "partial"])
def test_files_of_a_later_round(copied, kind):
    later = copied / "state" / kind / "00000007-sum"
    later.write_bytes(b"later")
    before = contents(copied / "state")
    with pytest.raises(StateWentBack, match=r"files of round 7.*ends with round 3"):
        SqliteStore(copied / "state", BENCH.federation.identity)
    assert contents(copied / "state") == before


def test_what_the_coordinator_did_not_write_is_left(copied):
    state = copied / "state"
    strange = [state / "blobs" / "lost+found", state / "updates" / "notes.txt"]
    strange[0].mkdir()
    strange[1].write_bytes(b"an operator's")
    orphan = state / "updates" / f"{3:08d}-{'ab' * 32}"
    orphan.write_bytes(b"orphan")
    plays_on(copied)
    assert all(path.exists() for path in strange) and not orphan.exists()


@pytest.mark.slow
def test_bit_flips_all_over_the_database(copied):
    """Each is refused, with the file and the way back, or hits a value that nothing checks."""
    state, draw = copied / "state", random.Random(0)
    SqliteStore(state, BENCH.federation.identity).close()
    assert not (state / WAL).exists(), "all is in the database now"
    whole, kept = (state / DATABASE).read_bytes(), files(copied)
    shutil.copytree(state, copied / "whole")
    refused = 0

    async def start():
        async with running(BENCH, copied):
            pass

    for _ in range(200):
        raw = bytearray(whole)
        # Most of the pages of so young a database is zeros that are never read.
        raw[draw.choice([at for at, byte in enumerate(whole) if byte])] ^= 1 << draw.randrange(8)
        (state / DATABASE).write_bytes(raw)
        try:
            asyncio.run(start())
        except SettingsError as error:
            assert "belongs to a different run" in error.message
        except (StorageError, DurabilityLost) as error:
            refused += 1
            # A digest that was flipped looks like the damage of its file.
            assert str(state / DATABASE) in str(error) or "blobs/0000000" in str(error)
            assert "coordinator recover" in str(error)
            assert files(copied) == kept
        assert set(files(copied)) >= {name for name in kept if name.startswith("blobs/")}
        shutil.rmtree(state)
        shutil.copytree(copied / "whole", state)
    assert refused > 30


def test_what_quick_check_finds_names_the_file(copied):
    state = copied / "state"
    SqliteStore(state, BENCH.federation.identity).close()
    rows = sqlite3.connect(state / DATABASE)
    root, size = (
        rows.execute(f"SELECT {what}").fetchone()[0]
        for what in (
            "rootpage FROM sqlite_schema WHERE name = 'journal'",
            "page_size FROM pragma_page_size",
        )
    )
    rows.close()
    with (state / DATABASE).open("r+b") as file:
        # The number of cells in a page, and where they begin.
        file.seek((root - 1) * size + 3)
        file.write(b"\xff\xff")
    before = contents(state)
    with pytest.raises(DamagedFile, match=f"{state / DATABASE} is damaged") as refused:
        SqliteStore(state, BENCH.federation.identity)
    assert "coordinator recover" in refused.value.remedy
    assert contents(state) == before


@pytest.mark.parametrize(
    "fields",
    ['{"metrics": [1, ', "[1]", '{"metrics": ["x"]}', '{"metrics": [99999999999999999999]}', "7"],
)
def test_a_damaged_journal_row_names_the_file(copied, fields):
    state = copied / "state"
    rows = sqlite3.connect(state / DATABASE)
    prepare(rows)
    rows.execute("UPDATE journal SET fields_json = ? WHERE sequence = 2", (fields,))
    rows.commit()
    rows.close()
    with pytest.raises(DamagedFile, match=f"{state / DATABASE} is damaged.*line 2") as refused:
        plays_on(copied)
    assert "coordinator recover" in refused.value.remedy


async def test_damage_that_shows_while_the_run_goes_on_ends_the_process(copied):
    async with running(BENCH, copied) as engine:
        run = engine.run
        path = copied / "state" / DATABASE
        rows = sqlite3.connect(path)
        rows.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        rows.close()
        raw = path.read_bytes()
        path.write_bytes(raw[:4096] + b"\xee" * (len(raw) - 4096))
        with pytest.raises(DurabilityLost, match=f"{path} is damaged"):
            await run.work.in_thread(run.store.entries, 0, 500)
        assert run.work.lost.is_set()


OTHER: dict[str, tuple[Value, Value]] = {
    "INTEGER": (1, 2),
    "REAL": (1.5, 2.5),
    "TEXT": ("1", "2"),
    "BLOB": (b"1", b"2"),
}
"""Two values that a column of each type may hold."""


def columns_of(rows, table):
    """Return the types of a table's columns, without the one that SQLite computes."""
    return dict(rows.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall())


def flip_quietly(rows, checksum):
    """Let rows keep a checksum, whatever is written into them: as a disk does that flips bits."""
    rows.create_function("row_checksum", -1, lambda *_: checksum, deterministic=True)


@pytest.mark.slow
def test_another_value_in_any_column_of_any_table_is_noticed(tmp_path):
    path = tmp_path / DATABASE
    SqliteStore(tmp_path, BENCH.federation.identity).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as rows:
        prepare(rows)
        every = {table: columns_of(rows, table) for table in table_names(rows)}
        for table, columns in every.items():
            marks = ", ".join("?" * len(columns))
            values = [OTHER[kind][0] for kind in columns.values()]
            rows.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", values)
    SqliteStore(tmp_path, BENCH.federation.identity).close()
    whole = path.read_bytes()
    assert set(every) == set(tables()) and sum(map(len, every.values())) > 90
    for table, columns in every.items():
        first = next(iter(columns))
        where = f"WHERE {first} = ?2"
        for column in (*columns, "checksum"):
            computed = column == "checksum"
            change = f"{first} = ?2" if computed else f"{column} = ?1"
            value = None if computed else OTHER[columns[column]][1]
            with closing(sqlite3.connect(path, isolation_level=None)) as rows:
                key = OTHER[columns[first]][0]
                query = f"SELECT checksum, ?1 FROM {table} {where}"
                ((kept, _),) = rows.execute(query, (None, key)).fetchall()
                flip_quietly(rows, 0 if computed else kept)
                assert rows.execute(f"UPDATE {table} SET {change} {where}", (value, key)).rowcount
            with pytest.raises(DamagedFile, match=f"{path} is .* table '{table}'") as refused:
                SqliteStore(tmp_path, BENCH.federation.identity)
            assert "coordinator recover" in refused.value.remedy
            path.write_bytes(whole)
    SqliteStore(tmp_path, BENCH.federation.identity).close()


async def test_a_row_that_is_damaged_while_the_run_goes_on_names_the_file(copied):
    path = copied / "state" / DATABASE

    async with running(BENCH, copied) as engine:
        run = engine.run
        with closing(sqlite3.connect(path, isolation_level=None)) as rows:
            flip_quietly(rows, 0)
            rows.execute("UPDATE rounds SET base_round = base_round + 1 WHERE round = 1")
        with pytest.raises(DamagedFile, match=f"{path} is damaged: the row that begins with 1"):
            await run.work.in_thread(run.store.published, RoundId(1))


def made_former(copied):
    """Make the database one of release 0.1, without checksums; return its rows."""
    path = copied / "state" / DATABASE
    with closing(sqlite3.connect(path, isolation_level=None)) as rows:
        before = {}
        for table, sql in tables().items():
            names = ", ".join(columns_of(rows, table))
            plain = sql.replace(sql[sql.index("\n  checksum") : sql.index("STORED,") + 7], "")
            rows.execute(f"ALTER TABLE {table} RENAME TO checked")
            rows.execute(
                plain.replace(
                    "sequence INTEGER PRIMARY KEY", "sequence INTEGER PRIMARY KEY AUTOINCREMENT"
                )
            )
            rows.execute(f"INSERT INTO {table} SELECT {names} FROM checked")
            rows.execute("DROP TABLE checked")
            before[table] = rows.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
        rows.execute("PRAGMA user_version = 10")
        rows.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path, before


def test_a_database_without_checksums_is_given_them(copied):
    path, before = made_former(copied)
    SqliteStore(copied / "state", BENCH.federation.identity).close()
    with closing(sqlite3.connect(path)) as rows:
        assert rows.execute("PRAGMA user_version").fetchone() == (11,)
        for table, were in before.items():
            found = rows.execute(f"SELECT * FROM {table} ORDER BY 2, 3").fetchall()
            assert len(found) == len(were) and None not in [row[0] for row in found]
            assert table == "meta" or [row[1:] for row in found] == were
    assert (copied / "state" / BACKUP_FILE).exists()
    plays_on(copied)
    # It goes once the converted folder has published a round.
    assert not (copied / "state" / BACKUP_FILE).exists()


def test_the_backup_before_a_conversion_is_no_database(copied):
    path, _ = made_former(copied)
    with closing(sqlite3.connect(path, isolation_level=None)) as rows:
        rows.execute("INSERT INTO mask_messages VALUES (1, 'ab', 'share', ?)", (b"a key's share",))
        rows.execute("INSERT INTO ledger VALUES (3, 1.5)")
    SqliteStore(copied / "state", BENCH.federation.identity).close()
    with closing(sqlite3.connect(path)) as rows:
        assert rows.execute("SELECT round, at FROM ledger").fetchall()[-1] == (3, 1.5)
    kept = (copied / "state" / BACKUP_FILE).read_bytes()
    assert b"CREATE TABLE rounds" in kept and b"a key's share" not in kept
    path.write_bytes(kept)
    with pytest.raises(StorageError, match="is a backup from before an upgrade"):
        SqliteStore(copied / "state", BENCH.federation.identity)
    assert path.read_bytes() == kept


@pytest.mark.parametrize("why", ["killed", "full disk"])
def test_a_conversion_that_ends_early_begins_again(copied, monkeypatch, why):
    path, _ = made_former(copied)
    whole = path.read_bytes()
    if why == "killed":

        def half(rows):
            rows.execute("DROP TABLE rounds")
            raise KeyboardInterrupt

        monkeypatch.setattr("fedrec_server.store.tables._STEPS", {10: half})
    else:

        def full(handle):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
    with pytest.raises((KeyboardInterrupt, StorageError)):
        SqliteStore(copied / "state", BENCH.federation.identity)
    monkeypatch.undo()
    assert path.read_bytes() == whole
    SqliteStore(copied / "state", BENCH.federation.identity).close()
    plays_on(copied)
