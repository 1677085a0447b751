"""Scenario 14, TORN-WRITE: what the end of the log lost is noticed, or was never acknowledged.

A folder as `kill -9` leaves it, its write-ahead log cut or garbled at offsets over its last 8 kB.
Flipped bits all over the log are in `tests/server/store/test_sqlite.py`, damaged updates in
`tests/server/uploads/test_uploads.py`.
"""

import shutil

import pytest
from conformance.store_suite import IDENTITY, durable
from world.traffic import Chaos, volatile_free

from fedrec.errors import StorageError
from fedrec_server.store.sqlite import SqliteStore

WAL = "coordinator.sqlite-wal"
LAST_BYTES = 8 * 1024
STEP = 97
"""A prime: offsets fall into headers, into pages, and on their borders."""
HEADER_BYTES = 24
"""Of a frame in SQLite's log, before its page."""


def killed_in_a_round(folder):
    """Return a folder with commits in its log, and the state that they made."""
    chaos, store = Chaos(8), SqliteStore(folder / "running", IDENTITY)
    world = chaos.world
    world.commit = lambda changes: store.commit(durable(changes), [])
    while world.state.current is None or len(world.state.current.accepted) < 3:
        chaos.act()
    # A published round would have moved the log into the database, and left an old one's end there.
    assert not world.published
    shutil.copytree(folder / "running", folder / "killed")
    store.close()
    return folder / "killed", world.state


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "garbled"])
def test_scenario_14_the_end_of_the_log_at_every_offset(tmp_path, damage):
    folder, state = killed_in_a_round(tmp_path)
    raw = (folder / WAL).read_bytes()
    assert len(raw) > LAST_BYTES + HEADER_BYTES, "the log is too short to say anything"
    refused = whole = 0
    for offset in range(len(raw) - LAST_BYTES, len(raw), STEP):
        damaged = tmp_path / "damaged"
        shutil.copytree(folder, damaged)
        after = bytes(len(raw) - offset) if damage == "garbled" else b""
        (damaged / WAL).write_bytes(raw[:offset] + after)
        before = {path.name: path.read_bytes() for path in damaged.iterdir() if path.is_file()}
        try:
            store = SqliteStore(damaged, IDENTITY)
        except StorageError as error:
            assert error.remedy
            refused += 1
            found = {name: (damaged / name).read_bytes() for name in before if "shm" not in name}
            assert all(found[name] == before[name] for name in found), "refused, and changed"
        else:
            # Never silently another state.
            loaded = store.load(state.rules, state.roster)
            assert volatile_free(loaded) == volatile_free(state)
            whole += 1
            store.close()
        shutil.rmtree(damaged)
    assert refused > 10, (refused, whole)
    intact = SqliteStore(folder, IDENTITY)
    assert volatile_free(intact.load(state.rules, state.roster)) == volatile_free(state)
    intact.close()
