"""What every store has to keep, and what it has to survive."""

from __future__ import annotations

import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from world.machine import World, blob, rules
from world.traffic import Chaos, volatile_free

from fedrec.errors import FolderInUse, SettingsError, StorageError
from fedrec.ids import RoundId
from fedrec_server.rounds.changes import VOLATILE, Change
from fedrec_server.rounds.state import State
from fedrec_server.store.durable_files import Failpoint, no_failpoint, snapshot_name
from fedrec_server.store.store import Entry, RunIdentity, SnapshotRecord, Store

IDENTITY = RunIdentity(
    federation="movies", plan_fingerprint="p", catalogue_fingerprint="c", epoch=1
)
TESTS = Path(__file__).parents[1]

KILLED = """
import os, signal, sys
from pathlib import Path
from {module} import {suite}
from world.traffic import Chaos
from conformance.store_suite import IDENTITY, durable, entry

suite, commits = {suite}(), 0
store = suite.open(Path(sys.argv[1]), IDENTITY)
chaos = Chaos({seed})

def commit(changes):
    global commits
    if not durable(changes):
        return
    store.commit(durable(changes), [entry(commits)])
    commits += 1
    print(commits, flush=True)
    if commits == {commits}:
        os.kill(os.getpid(), signal.SIGKILL)

chaos.world.commit = commit
while True:
    chaos.act()
"""


def durable(changes: Sequence[Change]) -> list[Change]:
    """Return what the engine gives to the store."""
    return [change for change in changes if not isinstance(change, VOLATILE)]


def entry(number: int) -> Entry:
    """Return a journal line."""
    return Entry(unix_seconds=1.0, kind="something", round=RoundId(number), fields_json="{}")


class StoreSuite(ABC):
    """Subclass it for a store; the subclass has to be importable by its module's name."""

    module: str

    @abstractmethod
    def open(
        self, folder: Path, identity: RunIdentity, failpoint: Failpoint = no_failpoint
    ) -> Store:
        """Open the store in a folder."""

    @pytest.mark.parametrize("seed", [2, 5, 7, 13])
    def test_what_was_committed_is_loaded(self, tmp_path, seed):
        chaos, stores = Chaos(seed), []
        world = chaos.world

        def reopen() -> Store:
            for store in stores:
                store.close()
            found = self.open(tmp_path, replace(IDENTITY, epoch=world.state.rules.epoch))
            stores[:] = [found]
            world.commit = lambda changes: found.commit(durable(changes), [])
            return found

        store = reopen()
        for number in range(120):
            chaos.act()
            if number % 20 == 0:
                store = reopen()
            found = store.load(world.state.rules, world.state.roster)
            assert volatile_free(found) == volatile_free(world.state)
        self._check_published(store, world)
        store.close()

    def _check_published(self, store: Store, world: World) -> None:
        after = RoundId(0)
        for change in world.published:
            record = store.next_published(after)
            assert record is not None and store.published(record.round) == record
            assert record.blob == change.blob and record.statement == change.statement
            assert (record.round, record.kind) == (change.round, change.kind)
            assert {one.client_id for one in record.contributions} == world.counted[record.round]
            for one in record.contributions:
                assert store.counted(record.round, one.client_id) == one
            after = record.round
        assert store.next_published(after) is None
        assert store.bytes_after(RoundId(0)) == sum(c.blob.length for c in world.published)

    @pytest.mark.parametrize("commits", [1, 7, 23])
    def test_killed_process_loses_nothing(self, tmp_path, commits):
        seed = 8
        script = KILLED.format(
            module=self.module, suite=type(self).__name__, seed=seed, commits=commits
        )
        ended = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            env={"PYTHONPATH": f"{TESTS}:{TESTS.parent}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == -9, ended.stderr
        chaos = Chaos(seed)
        wanted: list[State] = []

        def commit(changes: Sequence[Change]) -> None:
            if durable(changes):
                wanted.append(chaos.world.state)

        chaos.world.commit = commit
        while len(wanted) <= commits:
            chaos.act()
        # The state before the next durable commit is the one after the last.
        last = wanted[commits]
        store = self.open(tmp_path, replace(IDENTITY, epoch=last.rules.epoch))
        assert volatile_free(store.load(last.rules, last.roster)) == volatile_free(last)
        assert [e.round for e in store.entries(0, 1000)] == list(range(commits))
        store.close()

    def test_transaction_is_all_or_nothing(self, tmp_path):
        full: list[str] = []

        def failpoint(name: str) -> None:
            if name in full:
                raise StorageError("The disk is full.")

        world = World.new(rules(), 5)
        store = self.open(tmp_path, IDENTITY, failpoint)
        world.commit = lambda changes: store.commit(durable(changes), [entry(0)])
        full.append("rows.commit")
        with pytest.raises(StorageError):
            world.tick(*range(5))
        assert store.load(world.state.rules, world.state.roster).current is None
        assert store.entries(0, 10) == []
        full.clear()
        world.tick(*range(5))
        assert store.load(world.state.rules, world.state.roster).current is not None
        store.close()

    def test_journal_is_paged_in_order(self, tmp_path):
        store = self.open(tmp_path, IDENTITY)
        store.commit([], [entry(number) for number in range(5)])
        assert [e.round for e in store.entries(0, 3)] == [0, 1, 2]
        assert [e.round for e in store.entries(3, 3)] == [3, 4]
        assert store.last_entry() == 5
        store.close()

    def test_only_the_latest_snapshot_is_kept(self, tmp_path):
        store = self.open(tmp_path, IDENTITY)
        first = SnapshotRecord(round=RoundId(1), epoch=1, blob=blob("first"))
        second = SnapshotRecord(round=RoundId(2), epoch=1, blob=blob("second"))
        assert store.keep_snapshot(first) is None
        assert store.keep_snapshot(second) == first
        store.close()
        store = self.open(tmp_path, IDENTITY)
        assert store.snapshot() == second
        store.close()

    def test_orphans_are_swept_and_named_files_are_not(self, tmp_path):
        store = self.open(tmp_path, IDENTITY)
        kept = store.spool.write(snapshot_name(RoundId(1), blob("model")), b"model")
        store.keep_snapshot(SnapshotRecord(round=RoundId(1), epoch=1, blob=kept))
        store.spool.write("updates/00000001-orphan", b"orphan")
        store.spool.draft().close()
        assert store.sweep() == 2
        assert store.spool.read(snapshot_name(RoundId(1), kept), kept) == b"model"
        store.close()

    def test_second_process_is_refused_by_name(self, tmp_path):
        store = self.open(tmp_path, IDENTITY)
        with pytest.raises(FolderInUse, match=r"in use by process \d+"):
            self.open(tmp_path, IDENTITY)
        store.close()
        self.open(tmp_path, IDENTITY).close()

    @pytest.mark.parametrize(
        "changed",
        [
            RunIdentity(federation="x", plan_fingerprint="p", catalogue_fingerprint="c", epoch=1),
            RunIdentity(
                federation="movies", plan_fingerprint="x", catalogue_fingerprint="c", epoch=1
            ),
            RunIdentity(
                federation="movies", plan_fingerprint="p", catalogue_fingerprint="x", epoch=1
            ),
            RunIdentity(
                federation="movies", plan_fingerprint="p", catalogue_fingerprint="c", epoch=0
            ),
        ],
    )
    def test_folder_of_another_run_is_refused(self, tmp_path, changed):
        store = self.open(tmp_path, IDENTITY)
        run = store.run
        store.close()
        with pytest.raises(SettingsError, match="a different run") as refused:
            self.open(tmp_path, changed)
        assert "the fedrec release that began the run" in refused.value.remedy
        store = self.open(tmp_path, IDENTITY)
        assert store.run == run
        store.close()
