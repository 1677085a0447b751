"""Blocks of users: what is written, what is shared, what is deleted, and what a kill leaves."""

import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.errors import FolderInUse, StorageError
from fedrec.model import block_folder
from fedrec.model.block_folder import BlockFolder
from fedrec.model.state import PrivateState
from fedrec.model.tables import BlockWriter, NewBlocks, TableRoom, room_in

pytestmark = pytest.mark.slow

WIDTH = (3,)
USERS_A_BLOCK = 4


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(
        "fedrec.model.blocked_table.BLOCK_BYTES", USERS_A_BLOCK * 4 * int(np.prod(WIDTH))
    )


def values_of(n_users, seed=0):
    return np.random.default_rng(seed).normal(size=(n_users, *WIDTH)).astype(np.float32)


def made(folder, values, before=None, rows=None):
    """Return a table in which some rows have these values, the others those of before."""
    new = NewBlocks(folder, values.shape)
    chosen = np.arange(len(values)) if rows is None else rows
    new.write(chosen, values[chosen])
    return new.finish(before)


def files(folder):
    return {path.name for path in folder.path.glob("*") if path.name != "lock"}


@given(
    n_users=st.integers(1, 23),
    writes=st.lists(st.lists(st.integers(0, 22), max_size=30), max_size=4),
    asked=st.lists(st.integers(0, 22), max_size=40),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_tables_in_blocks_are_tables(n_users, writes, asked, seed):
    """Against an array: several versions, written in any order, each readable in any order."""
    folder = BlockFolder()
    expected = [values_of(n_users, seed)]
    tables = [made(folder, expected[0])]
    for number, wanted in enumerate(writes):
        rows = np.unique([row for row in wanted if row < n_users]).astype(np.int64)[::-1]
        after = expected[-1].copy()
        after[rows] = values_of(n_users, seed + number + 1)[rows]
        tables.append(made(folder, after, tables[-1], rows))
        expected.append(after)
    rows = np.array([row for row in asked if row < n_users], dtype=np.int64)
    for table, values in zip(tables, expected, strict=True):
        assert np.array_equal(table[:], values)
        assert np.array_equal(table[rows], values[rows])
        assert np.array_equal(table[2:7], values[2:7])
        assert np.array_equal(table[-1], values[-1])
        assert len(table) == n_users
        assert table.nbytes == values.nbytes
        with pytest.raises(IndexError):
            table[n_users]


def test_only_the_blocks_of_participants_are_written(tmp_path, monkeypatch):
    folder = BlockFolder.at(tmp_path)
    before = made(folder, values_of(40))
    sizes = []
    take_in = BlockFolder.take_in

    def noting(self, file, n_bytes):
        sizes.append(n_bytes)
        return take_in(self, file, n_bytes)

    monkeypatch.setattr(BlockFolder, "take_in", noting)
    # Users of the blocks 0, 2 and 9.
    after = made(folder, values_of(40, seed=1), before, np.array([1, 8, 11, 36]))
    assert sizes == [USERS_A_BLOCK * 12] * 3
    changed = [
        number
        for number, (one, other) in enumerate(zip(before.names, after.names, strict=True))
        if one != other
    ]
    assert changed == [0, 2, 9]


def test_blocks_go_with_the_last_who_needs_them(tmp_path):
    folder = BlockFolder.at(tmp_path / "blocks")
    first = made(folder, values_of(8))
    # It has not been said yet what is committed: a version of before may need them.
    path, names = folder.path, set(first.names)
    del first
    gc.collect()
    assert files(folder) == names
    folder.keep([])
    assert not path.exists()
    second = made(folder, values_of(8, seed=2))
    third = made(folder, values_of(8, seed=3), second, np.array([0]))
    folder.keep(second.names)
    assert files(folder) == set(second.names) | set(third.names)
    del third
    gc.collect()
    assert files(folder) == set(second.names)
    kept = set(second.names)
    del second
    gc.collect()
    assert files(folder) == kept


def test_what_was_not_finished_goes(tmp_path):
    folder = BlockFolder.at(tmp_path)
    folder.keep([])
    new = NewBlocks(folder, (8, *WIDTH))
    new.write(np.array([5]), values_of(1))
    assert len(files(folder)) == 1
    del new
    gc.collect()
    assert not tmp_path.exists()


def test_several_processes_write_into_one_block(tmp_path):
    folder = BlockFolder.at(tmp_path)
    new, values = NewBlocks(folder, (6, *WIDTH)), values_of(6)
    for rows in ([0, 3], [1, 2], [4, 5]):
        other = BlockWriter.of_json(new.writer.to_json())
        other.write(np.array(rows), values[rows])
        new.note(np.array(rows))
    assert np.array_equal(new.finish()[:], values)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.bin")} == {0o600}


def test_a_damaged_block_is_named_before_anything_is_read_from_it(tmp_path):
    table = made(BlockFolder.at(tmp_path), values_of(8))
    state = tmp_path / "state"
    state.write_bytes(PrivateState.of({"table": table}).to_bytes())
    path = tmp_path / table.names[1]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    stranger = BlockFolder(tmp_path)
    found = PrivateState.open(state, stranger).tensors["table"]
    assert np.array_equal(found[np.array([0])], table[np.array([0])])
    with pytest.raises(StorageError, match=rf"{table.names[1]} is damaged"):
        found[np.array([7])]
    path.unlink()
    with pytest.raises(StorageError, match=r"cannot be read: No such file"):
        found[np.array([7])]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text.replace(b'"version": 1', b'"version": 9'),
        lambda text: text.replace(b"[8, 3]", b"[9, 3]"),
        lambda text: text.replace(b"[8, 3]", b"[-8, 3]"),
        lambda text: text.replace(b"block-", b"../lock"),
        lambda text: text.replace(b'"tables"', b'"others"'),
    ],
)
def test_what_only_begins_like_a_version_is_refused(tmp_path, change):
    table = made(BlockFolder.at(tmp_path), values_of(8))
    raw = PrivateState.of({"table": table}).to_bytes()
    assert change(raw) != raw
    (tmp_path / "state").write_bytes(change(raw))
    with pytest.raises(StorageError, match="not a stored private state"):
        PrivateState.open(tmp_path / "state")


def test_one_process_writes_at_a_time(tmp_path):
    table = made(BlockFolder.at(tmp_path), values_of(4))
    # A second object has a lock of its own, as another process has.
    with pytest.raises(FolderInUse, match=r"Private tables: the folder .* is in use by process"):
        BlockFolder(tmp_path).keep(table.names)
    assert np.array_equal(table[:], values_of(4))


def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path, monkeypatch):
    folder = BlockFolder.at(tmp_path)
    table = made(folder, values_of(8))
    folder.keep(table.names)

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("fedrec.model.blocked_table.os.pwrite", full)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        made(folder, values_of(8, seed=1), table, np.array([2]))
    assert "Files from before are intact" in caught.value.remedy
    # What was raised knows the writer.
    del caught
    gc.collect()
    assert files(folder) == set(table.names)


def test_a_state_moves_between_memory_and_files(tmp_path):
    values = {"wide": values_of(9), "narrow": np.arange(9, dtype=np.float32)}
    held = PrivateState.of(values)
    room = room_in(tmp_path, 9 * 16 - 1)
    moved = held.in_room(room)
    assert moved.in_files
    assert moved.in_room(room) is moved
    back = moved.in_room(TableRoom(9 * 16))
    assert not back.in_files
    # Tables of another folder are no state of this one.
    elsewhere = moved.in_room(room_in(tmp_path / "other", 0))
    for state in (back, elsewhere):
        for name, expected in values.items():
            assert np.array_equal(state.tensors[name][:], expected)
    assert elsewhere.tensors["wide"].path == tmp_path / "other" / "blocks"


def test_temporary_blocks_go_with_their_process(tmp_path):
    script = textwrap.dedent(
        """
        import os, signal, sys
        import numpy as np
        from fedrec.model.tables import TableRoom

        table = TableRoom(0).new(5, {"table": (2,)})["table"]
        table.write(np.arange(5), np.ones((5, 2), dtype=np.float32))
        table = table.finish()
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    for way, left in (("kill", 1), ("end", 0)):
        # The second process finds, and removes, what the first one left.
        done = subprocess.run(
            [sys.executable, "-c", script, way],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) == (way == "end"), done.stderr
        assert len(list(tmp_path.iterdir())) == left


def test_a_folder_has_one_object_in_a_process(tmp_path):
    folder = BlockFolder.at(tmp_path)
    assert BlockFolder.at(Path(str(tmp_path))) is folder
    folder.close()
    assert BlockFolder.at(tmp_path) is not folder
    assert tmp_path not in block_folder._FOLDERS
