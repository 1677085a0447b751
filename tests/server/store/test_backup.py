"""A copy of a state folder is one that a coordinator starts from."""

from __future__ import annotations

import pytest
from conformance.store_suite import IDENTITY
from server.support.chaos import volatile_free
from server.support.federations import Bench
from server.support.serving import Serving, serving

from fedrec.errors import DamagedFile, SettingsError, StorageError
from fedrec.ids import RoundId
from fedrec_server.store.durable_files import sum_name
from fedrec_server.store.sqlite import SqliteStore
from fedrec_server.store.state_folder import back_up

EVERYBODY = range(3)


def in_the_second_round(found: Serving) -> None:
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
