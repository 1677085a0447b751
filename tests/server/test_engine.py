"""A whole run without gRPC: durable, resumable, and awake at the right moments."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fake_clock import FakeClock
from server.support.driving import (
    act,
    current,
    files,
    gather,
    pieces,
    play,
    poll,
    report,
    running,
    speak,
    upload,
)
from server.support.federations import REVEALER, SEALED_BYTES, Bench, identity

from fedrec.errors import (
    ConflictingUpload,
    CorruptUpload,
    MalformedUpdate,
    RoundClosed,
    StorageError,
)
from fedrec.ids import RoundId
from fedrec.wire.messages import Finished, Reveal, Train, Wait


class TestWholeRun:
    def test_without_protection_publishes_exact_sums(self, tmp_path: Path) -> None:
        bench = Bench.of(3, total=2)

        async def scenario() -> None:
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

        asyncio.run(scenario())

    def test_what_is_published_does_not_depend_on_the_log(self, tmp_path: Path) -> None:
        bench = Bench.of(3, total=2)

        async def scenario() -> None:
            async with running(bench, tmp_path / "running") as engine:
                await play(engine, bench, range(3))
                await engine.run.work.settled()
                shutil.copytree(tmp_path / "running" / "state", tmp_path / "killed")
            (tmp_path / "killed" / "coordinator.sqlite-wal").write_bytes(b"")
            with closing(sqlite3.connect(tmp_path / "killed" / "coordinator.sqlite")) as rows:
                query = "SELECT max(round) FROM rounds WHERE phase = 'published'"
                assert rows.execute(query).fetchone() == (4,)

        asyncio.run(scenario())

    def test_the_key_authoritys_word_publishes(self, tmp_path: Path) -> None:
        bench = Bench.of(4, reveals=True)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await play(engine, bench, range(4))
                record = engine.run.store.next_published(RoundId(0))
                assert record is not None and record.statement is not None
                assert (
                    engine.run.store.spool.read(record.name, record.blob)
                    == b"honest" * SEALED_BYTES
                )
            assert len(files(tmp_path)) == 3, "only the published sums are left"

        asyncio.run(scenario())

    def test_where_clients_decrypt_the_ciphertext_sum_is_published(self, tmp_path: Path) -> None:
        bench = Bench.of(4, veiled=True)

        async def scenario() -> None:
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

        asyncio.run(scenario())

    def test_ciphertext_sums_are_kept_for_twenty_rounds(self, tmp_path: Path) -> None:
        """Whoever is further behind is told of nothing, and others are asked for a copy."""
        bench = Bench.of(5, veiled=True, total=25)

        async def scenario() -> None:
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

        asyncio.run(scenario())

    def test_stop_after_the_round(self, tmp_path: Path) -> None:
        bench = Bench.of(3, total=5)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                await engine.stop_run(at_once=False)
                assert engine.run.state.ending is None
                await play(engine, bench, range(3))
                assert engine.finished.is_set()
                assert engine.run.state.rounds_published == 1

        asyncio.run(scenario())

    def test_reveal_tasks_are_for_the_key_authority(self, tmp_path: Path) -> None:
        bench = Bench.of(4, reveals=True)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(4))
                for number in range(4):
                    await upload(engine, bench, number)
                await engine.run.work.settled()
                tasks = [(await poll(engine, number)).task for number in range(4)]
                assert not [task for task in tasks if isinstance(task, Reveal)]
                assert isinstance((await poll(engine, REVEALER)).task, Reveal)

        asyncio.run(scenario())


class TestUploads:
    def test_duplicates_in_and_after_the_round(self, tmp_path: Path) -> None:
        bench = Bench.of(3)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                assert not await upload(engine, bench, 0)
                assert await upload(engine, bench, 0)
                with pytest.raises(ConflictingUpload):
                    await upload(engine, bench, 0, salt=1)
                await upload(engine, bench, 1)
                await upload(engine, bench, 2)
                await engine.run.work.settled()
                assert engine.run.state.published == 1
                assert await upload(engine, bench, 0, round_id=1), "its ack may have been lost"
                with pytest.raises(ConflictingUpload):
                    await upload(engine, bench, 0, round_id=1, salt=1)

        asyncio.run(scenario())

    def test_five_concurrent_duplicates_count_once(self, tmp_path: Path) -> None:
        bench = Bench.of(3)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                found = await asyncio.gather(*(upload(engine, bench, 0) for _ in range(5)))
                assert sorted(found) == [False, True, True, True, True]
                await upload(engine, bench, 1)
                await upload(engine, bench, 2)
                await engine.run.work.settled()
                record = engine.run.store.next_published(RoundId(0))
                assert record is not None
                data = engine.run.store.spool.read(record.name, record.blob)
                assert data == bench.sum_of({0, 1, 2}, 1)

        asyncio.run(scenario())

    def test_late_upload_is_told_so(self, tmp_path: Path) -> None:
        bench = Bench.of(4)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                for number in range(3):
                    await upload(engine, bench, number)
                await engine.run.work.settled()
                with pytest.raises(RoundClosed):
                    await upload(engine, bench, 3, round_id=1)

        asyncio.run(scenario())

    def test_foreign_bytes_do_not_change_the_sum(self, tmp_path: Path) -> None:
        bench = Bench.of(3)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                payload = bytes(len(bench.payload(0, 1)))
                header = bench.header(0, 1, payload, engine.run.name)
                with pytest.raises(MalformedUpdate):
                    await engine.updates.receive(header, pieces(payload))
                assert files(tmp_path) == []
                for number in range(3):
                    await upload(engine, bench, number)
                await engine.run.work.settled()
                assert engine.run.state.published == 1

        asyncio.run(scenario())

    def test_interrupted_upload_goes_on_after_a_restart(self, tmp_path: Path) -> None:
        bench = Bench.of(3)
        payload = bench.payload(0, 1)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                header = bench.header(0, 1, payload, engine.run.name)
                with pytest.raises(CorruptUpload):
                    await engine.updates.receive(header, pieces(payload[:20]))
            async with running(bench, tmp_path) as engine:
                ask = (engine.run.name, RoundId(1), header.client_id, header.digest)
                status = await engine.updates.status(*ask)
                assert (status.offset, status.accepted) == (20, False)
                assert not await engine.updates.receive(header, pieces(payload, 20))
                assert (await engine.updates.status(*ask)).accepted

        asyncio.run(scenario())

    def test_an_update_to_another_model_is_left_out(self, tmp_path: Path) -> None:
        """Without encryption nobody signed which model is right; most know."""
        bench = Bench.of(4)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(4))
                await upload(engine, bench, 0, base_state=b"x" * 32)
                for number in (1, 2, 3):
                    await upload(engine, bench, number)
                await engine.run.work.settled()
                record = engine.run.store.next_published(RoundId(0))
                assert record is not None and len(record.contributions) == 3
                data = engine.run.store.spool.read(record.name, record.blob)
                assert data == bench.sum_of({1, 2, 3}, 1)
                (ended,) = (
                    json.loads(entry.fields_json)
                    for entry in engine.run.store.entries(0, 1000)
                    if entry.kind == "collecting ended"
                )
                assert ended == {"counted": 3, "left_out": 1}
                assert not [name for name in files(tmp_path) if name.startswith("updates/")]

        asyncio.run(scenario())

    def test_wrong_bytes_are_forgotten(self, tmp_path: Path) -> None:
        bench = Bench.of(3)
        payload = bench.payload(0, 1)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                header = bench.header(0, 1, payload, engine.run.name)
                with pytest.raises(CorruptUpload):
                    await engine.updates.receive(header, pieces(payload[:-1] + b"?"))
                assert not await upload(engine, bench, 0)

        asyncio.run(scenario())


class TestRestart:
    """The coordinator ends in each phase and goes on with the same state folder."""

    def test_while_collecting(self, tmp_path: Path) -> None:
        bench = Bench.of(3)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                run = engine.run.name
                await gather(engine, range(3))
                await upload(engine, bench, 0)
            async with running(bench, tmp_path) as engine:
                assert engine.run.name == run
                assert current(engine.run.state).phase == "collecting"
                assert isinstance((await poll(engine, 1)).task, Train)
                assert isinstance((await poll(engine, 0)).task, Wait)
                await play(engine, bench, range(3))
                record = engine.run.store.next_published(RoundId(0))
                assert record is not None
                data = engine.run.store.spool.read(record.name, record.blob)
                assert data == bench.sum_of({0, 1, 2}, 1)

        asyncio.run(scenario())

    def test_while_summing(self, tmp_path: Path) -> None:
        bench = Bench.of(3)

        seen: list[str] = []

        def full(name: str) -> None:
            seen.append(name)
            if seen.count("update.ack") == 3 and name == "draft.write":
                raise StorageError("The disk is full.")

        async def scenario() -> None:
            async with running(bench, tmp_path, failpoint=full) as engine:
                await gather(engine, range(3))
                for number in range(3):
                    await upload(engine, bench, number)
                await engine.run.work.settled()
                assert current(engine.run.state).phase == "summing"
            async with running(bench, tmp_path) as engine:
                assert engine.run.state.published == 1
                await play(engine, bench, range(3))

        asyncio.run(scenario())

    def test_while_the_round_waits_for_the_key_authority(self, tmp_path: Path) -> None:
        """However long it is away nothing is trained again."""
        bench, clock = Bench.of(3, reveals=True), FakeClock()

        async def scenario() -> None:
            async with running(bench, tmp_path, clock=clock) as engine:
                await gather(engine, range(3))
                for number in range(3):
                    await upload(engine, bench, number)
                await engine.run.work.settled()
                before = current(engine.run.state)
                assert before.phase == "revealing"
                clock.advance(30 * 86_400.0)
                await engine.tick()
                assert current(engine.run.state) == before
            async with running(bench, tmp_path, clock=clock) as engine:
                assert current(engine.run.state).accepted == before.accepted
                clock.advance(30 * 86_400.0)
                await engine.tick()
                assert current(engine.run.state).phase == "revealing"
                await play(engine, bench, range(3))
                assert engine.run.state.abandoned == 0
                assert engine.run.store.published(RoundId(1)) is not None

        asyncio.run(scenario())

    def test_a_killed_client_costs_one_round(self, tmp_path: Path) -> None:
        """Asked and silent, it is asked again when it comes back."""
        bench, clock = Bench.of(3, reveals=True), FakeClock()

        async def scenario() -> None:
            async with running(bench, tmp_path, clock=clock) as engine:
                await gather(engine, range(3))
                for number in range(2):
                    await upload(engine, bench, number)
                deadline = current(engine.run.state).deadline_at
                clock.advance(deadline - clock.now() - 10.0)
                # Killed while it trained: it was heard of a moment ago.
                engine.run.presence.heard(identity(2).client_id)
                clock.advance(10.0)
                for _ in range(20):
                    clock.advance(1.0)
                    await gather(engine, range(2))
                assert engine.run.state.abandoned == 1 and engine.run.state.current is None
                await gather(engine, range(3))
                assert current(engine.run.state).number == 2
                await play(engine, bench, range(3))

        asyncio.run(scenario())

    def test_a_sum_that_the_key_authority_refuses(self, tmp_path: Path) -> None:
        bench = Bench.of(3, reveals=True)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                for number in range(3):
                    await upload(engine, bench, number)
                await engine.run.work.settled()
                await speak(engine, bench, refused="a client is listed twice")
                assert engine.run.state.abandoned == 1 and engine.run.state.published == 0
                (abandoned,) = (
                    entry
                    for entry in engine.run.store.entries(0, 100)
                    if entry.kind == "round abandoned"
                )
                assert "refused the sum: a client is listed twice" in abandoned.fields_json
            assert files(tmp_path) == []

        asyncio.run(scenario())

    def test_while_clients_report(self, tmp_path: Path) -> None:
        """One word is durable; with a second one after the restart the round is measured."""
        bench = Bench.of(3, veiled=True)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                for number in range(3):
                    await upload(engine, bench, number)
                await engine.run.work.settled()
                assert engine.run.state.published == 1 and engine.run.state.current is None
                await report(engine, bench, 0)
                waiting = engine.run.state.reporting
                assert waiting is not None and len(waiting.reports) == 1
            async with running(bench, tmp_path) as engine:
                assert engine.run.state.reporting is not None
                assert engine.run.state.reporting.reports == waiting.reports
                await report(engine, bench, 0)
                assert engine.run.state.reporting is not None, "the same client again"
                await report(engine, bench, 1)
                assert engine.run.state.reporting is None
                await play(engine, bench, range(3))

        asyncio.run(scenario())

    def test_after_the_end(self, tmp_path: Path) -> None:
        bench = Bench.of(3)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await play(engine, bench, range(3))
            async with running(bench, tmp_path) as engine:
                assert engine.finished.is_set()
                assert isinstance((await poll(engine, 0)).task, Finished)

        asyncio.run(scenario())

    def test_with_a_new_epoch_abandons_the_round(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            bench = Bench.of(3)
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                await upload(engine, bench, 0)
            bench = Bench.of(4, epoch=2)
            async with running(bench, tmp_path) as engine:
                assert engine.run.state.current is None and engine.run.state.abandoned == 1
                await play(engine, bench, range(4))
                assert engine.run.state.published == 4, "round 1 was abandoned, 2 to 4 published"

        asyncio.run(scenario())
