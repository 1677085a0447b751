"""What every store has to keep, and what it has to survive."""

from __future__ import annotations

import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import pytest
from world.chaos import Chaos, random_rules, volatile_free
from world.machine import World, blob, header

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
from world.chaos import Chaos, random_rules
from world.machine import World
from conformance.store_suite import IDENTITY, durable, entry

suite, commits = {suite}(), 0
store = suite.open(Path(sys.argv[1]), IDENTITY)
rules, n_clients = random_rules({seed})
world = World.new(rules, n_clients)

def commit(changes):
    global commits
    if not durable(changes):
        return
    store.commit(durable(changes), [entry(commits)])
    commits += 1
    print(commits, flush=True)
    if commits == {commits}:
        os.kill(os.getpid(), signal.SIGKILL)

world.commit = commit
chaos = Chaos(world, {seed})
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

    @pytest.mark.parametrize("seed", range(12))
    def test_what_was_committed_is_loaded(self, tmp_path, seed):
        rules, n_clients = random_rules(seed)
        world = World.new(rules, n_clients)
        store = self.open(tmp_path, IDENTITY)
        world.commit = lambda changes: store.commit(durable(changes), [])
        chaos = Chaos(world, seed)
        for number in range(120):
            chaos.act()
            if number % 20 == 0:
                store.close()
                store = self.open(tmp_path, IDENTITY)
                world.commit = lambda changes, to=store: to.commit(durable(changes), [])
            found = store.load(world.state.rules, world.state.roster)
            assert volatile_free(found) == volatile_free(world.state)
        self._check_published(store, world)
        store.close()

    def _check_published(self, store: Store, world: World) -> None:
        after = RoundId(0)
        for change in world.published:
            record = store.next_published(after)
            assert record is not None and store.published(record.round) == record
            assert (record.round, record.kind, record.blob) == (
                change.round,
                change.kind,
                change.blob,
            )
            found = {found.client_id for found in record.contributions}
            assert found == world.counted[record.round]
            assert record.statement == change.statement
            for client_id in found:
                counted = store.counted(record.round, client_id)
                assert counted == header(record.round, client_id) or counted is not None
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
        rules, n_clients = random_rules(seed)
        world = World.new(rules, n_clients)
        chaos = Chaos(world, seed)
        wanted: list[State] = []

        def commit(changes: Sequence[Change]) -> None:
            if durable(changes):
                wanted.append(world.state)

        world.commit = commit
        while len(wanted) <= commits:
            chaos.act()
        # The state before the next durable commit is the one after the last.
        store = self.open(tmp_path, IDENTITY)
        found = store.load(rules, world.state.roster)
        assert volatile_free(found) == volatile_free(wanted[commits])
        assert [e.round for e in store.entries(0, 1000)] == list(range(commits))
        store.close()

    def test_transaction_is_all_or_nothing(self, tmp_path):
        full: list[str] = []

        def failpoint(name: str) -> None:
            if name in full:
                raise StorageError("The disk is full.")

        rules, n_clients = random_rules(1)
        world = World.new(rules, n_clients)
        store = self.open(tmp_path, IDENTITY, failpoint)
        world.commit = lambda changes: store.commit(durable(changes), [entry(0)])
        full.append("rows.commit")
        with pytest.raises(StorageError):
            world.tick(*range(n_clients))
        assert store.load(rules, world.state.roster).current is None
        assert store.entries(0, 10) == []
        full.clear()
        world.tick(*range(n_clients))
        assert store.load(rules, world.state.roster).current is not None
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
