"""A state folder whose database, or list of private tables, is gone keeps what is still there."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from client.state.test_private_store import PIN, header, publish, stage, store

from fedrec.errors import StorageError
from fedrec.model.state import PrivateState
from fedrec.model.tables import room_in
from fedrec_client.state.database import STATE_FILE, image_of
from fedrec_client.state.private_store import PrivateStore

__all__ = ["store"]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("left", [None, image_of({}), image_of({"client": {"secret": b"1"}})])
def test_files_without_the_database_that_names_them_are_kept(
    store: PrivateStore, left: bytes | None, read_only: bool
) -> None:
    stage(store)
    publish(store, counted=True)
    stage(store, 2)
    store.close()
    path = store.folder / STATE_FILE
    path.unlink() if left is None else path.write_bytes(left)
    before = contents(store.folder)
    with pytest.raises(StorageError, match=f"{path} is missing, or knows of no run") as refused:
        PrivateStore(store.folder, read_only=read_only)
    assert "3 files" in refused.value.message and "private-" in refused.value.message
    assert "Nothing was changed or deleted" in refused.value.remedy
    assert "backup" in refused.value.remedy and "new state folder" in refused.value.remedy
    assert contents(store.folder) == before


def test_what_a_kill_before_the_first_commit_leaves_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".state.sqlite.0123.new").write_bytes(b"half")
    PrivateStore(tmp_path).close()
    assert not list(tmp_path.glob(".*.new"))


@pytest.mark.parametrize("damage", ["gone", "flipped", "list flipped"])
def test_tables_stay_where_their_list_is_damaged(
    store: PrivateStore, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
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
