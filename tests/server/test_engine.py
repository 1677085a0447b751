"""A whole run without gRPC: exact, durable, and awake at the right moments."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing

from server.support.driving import (
    act,
    files,
    gather,
    play,
    poll,
    running,
    upload,
)
from server.support.federations import REVEALER, SEALED_BYTES, Bench, identity

from fedrec.ids import RoundId
from fedrec.wire.messages import Finished, Reveal


class TestWholeRun:
    async def test_without_protection_publishes_exact_sums(self, tmp_path):
        bench = Bench.of(3, total=2)

        async with running(bench, tmp_path) as engine:
            await play(engine, bench, range(3))
            record = engine.run.store.next_published(RoundId(1))
            assert record is not None and record.kind == "train" and record.known is None
            data = engine.run.store.spool.read(record.name, record.blob)
            assert data == bench.sum_of({0, 1, 2}, 2)
            entries = engine.run.store.entries(0, 1000)
            published = [e for e in entries if e.kind == "round published"]
            assert [e.round for e in published] == [1, 2, 3, 4]
            fields = json.loads(published[1].fields_json)
            wanted = bench.metrics_of({0, 1, 2}, 2)
            assert fields["metrics"][0] == int.from_bytes(wanted[:8], "little")
            assert fields["counted"] == 3
            assert entries[-1].kind == "run finished"
            task = await poll(engine, 0)
            assert isinstance(task.task, Finished) and not task.task.failed
        assert [name.split("/")[0] for name in files(tmp_path)] == ["blobs"] * 4

    async def test_what_is_published_does_not_depend_on_the_log(self, tmp_path):
        bench = Bench.of(3, total=2)

        async with running(bench, tmp_path / "running") as engine:
            await play(engine, bench, range(3))
            await engine.run.work.settled()
            shutil.copytree(tmp_path / "running" / "state", tmp_path / "killed")
        (tmp_path / "killed" / "coordinator.sqlite-wal").write_bytes(b"")
        with closing(sqlite3.connect(tmp_path / "killed" / "coordinator.sqlite")) as rows:
            query = "SELECT max(round) FROM rounds WHERE phase = 'published'"
            assert rows.execute(query).fetchone() == (4,)

    async def test_the_key_authoritys_word_publishes(self, tmp_path):
        bench = Bench.of(4, reveals=True)

        async with running(bench, tmp_path) as engine:
            await play(engine, bench, range(4))
            record = engine.run.store.next_published(RoundId(0))
            assert record is not None and record.statement is not None
            assert engine.run.store.spool.read(record.name, record.blob) == b"honest" * SEALED_BYTES
        assert len(files(tmp_path)) == 3, "only the published sums are left"

    async def test_where_clients_decrypt_the_ciphertext_sum_is_published(self, tmp_path):
        bench = Bench.of(4, veiled=True)

        async with running(bench, tmp_path) as engine:
            await play(engine, bench, range(4))
            record = engine.run.store.next_published(RoundId(1))
            assert record is not None and record.statement is None
            data = engine.run.store.spool.read(record.name, record.blob)
            assert data == bench.sum_of(set(range(4)), 2)
            told = [entry.kind for entry in engine.run.store.entries(0, 1000)]
            assert told.count("round published") == told.count("round measured") == 3
            assert told[-2:] == ["round measured", "run finished"]
        assert len(files(tmp_path)) == 3

    async def test_ciphertext_sums_are_kept_for_twenty_rounds(self, tmp_path):
        """Whoever is further behind is told of nothing, and others are asked for a copy."""
        bench = Bench.of(5, veiled=True, total=25)

        async with running(bench, tmp_path) as engine:
            await gather(engine, range(4))
            while engine.run.state.published < 24:
                for number in range(4):
                    await act(engine, bench, number)
                await engine.tick()
            await engine.run.work.settled()
            kept = [engine.run.store.published(RoundId(n)) for n in range(1, 25)]
            assert [bool(one and one.name) for one in kept] == [False] * 4 + [True] * 20
            sums = [name for name in files(tmp_path) if name.endswith("-sum")]
            assert len(sums) == 20
            assert engine.snapshots.worth_making(RoundId(3))
            assert not engine.snapshots.worth_making(RoundId(4))
            behind = RoundId(2)
            assert not engine.snapshots.may_miss(identity(4).client_id, behind)
            assert engine.snapshots.may_miss(identity(4).client_id, behind), "it came back"
        async with running(bench, tmp_path) as engine:
            await engine.run.work.settled()
            assert [name for name in files(tmp_path) if name.endswith("-sum")] == sums

    async def test_stop_after_the_round(self, tmp_path):
        bench = Bench.of(3, total=5)

        async with running(bench, tmp_path) as engine:
            await gather(engine, range(3))
            await engine.stop_run(at_once=False)
            assert engine.run.state.ending is None
            await play(engine, bench, range(3))
            assert engine.finished.is_set()
            assert engine.run.state.rounds_published == 1

    async def test_reveal_tasks_are_for_the_key_authority(self, tmp_path):
        bench = Bench.of(4, reveals=True)

        async with running(bench, tmp_path) as engine:
            await gather(engine, range(4))
            for number in range(4):
                await upload(engine, bench, number)
            await engine.run.work.settled()
            tasks = [(await poll(engine, number)).task for number in range(4)]
            assert not [task for task in tasks if isinstance(task, Reveal)]
            assert isinstance((await poll(engine, REVEALER)).task, Reveal)
