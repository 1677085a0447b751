"""A folder that lost something is refused, and nothing in it is changed (rule R14)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conformance.store_suite import IDENTITY, durable, entry
from server.support.chaos import Chaos, random_rules
from server.support.made_messages import blob
from server.support.world import World

from fedrec.errors import DamagedFile, StateWentBack, StorageError
from fedrec.ids import RoundId
from fedrec.state_folder import FILE, record
from fedrec_server.store.durable_files import snapshot_name
from fedrec_server.store.sqlite import SqliteStore
from fedrec_server.store.store import SnapshotRecord

WAL = "coordinator.sqlite-wal"
COMMITS = 30


def committed(folder: Path, n_commits: int = COMMITS) -> SqliteStore:
    """Return an open store in which so much was committed that nothing was checkpointed since."""
    store = SqliteStore(folder, IDENTITY)
    for number in range(n_commits):
        store.commit([], [entry(number)])
    return store


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """A folder as `kill -9` leaves it: with everything in the write-ahead log."""
    store = committed(tmp_path / "running")
    shutil.copytree(tmp_path / "running", tmp_path / "killed")
    store.close()
    yield tmp_path / "killed"


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files but the index of the log, which is made anew at will."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm") and path.name != "lock"
        if path.name != WAL or path.stat().st_size
    }


def test_what_a_kill_leaves_is_whole(killed):
    store = SqliteStore(killed, IDENTITY)
    assert store.last_entry() == COMMITS
    store.close()


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


def test_a_log_that_is_gone(killed):
    (killed / WAL).unlink()
    with pytest.raises(StateWentBack, match="is an older copy"):
        SqliteStore(killed, IDENTITY)


def test_a_database_that_is_gone(killed):
    for name in (WAL, "coordinator.sqlite"):
        (killed / name).unlink()
    with pytest.raises(StateWentBack, match="0 commits, expected at least 31"):
        SqliteStore(killed, IDENTITY)
    assert not (killed / "coordinator.sqlite").exists()


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


@pytest.mark.parametrize("behind", [1, 5])
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


def test_files_of_later_rounds_than_the_database_knows(tmp_path):
    store = committed(tmp_path)
    store.close()
    (tmp_path / "blobs" / f"{7:08d}-sum").write_bytes(b"sum")
    before = contents(tmp_path)
    with pytest.raises(StateWentBack, match=r"files of round 7.*ends with round 0"):
        SqliteStore(tmp_path, IDENTITY)
    assert contents(tmp_path) == before


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
    rules, n_clients = random_rules(seed)
    world = World.new(rules, n_clients)
    folder = tmp_path / "running"
    store = SqliteStore(folder, IDENTITY)
    world.commit = lambda changes: store.commit(durable(changes), [])
    chaos = Chaos(world, seed)
    for number in range(60):
        chaos.act()
        if number % 6 == 0:
            copy = tmp_path / f"copy-{number}"
            shutil.copytree(folder, copy)
            SqliteStore(copy, IDENTITY).close()
    store.close()
