"""A whole run without gRPC: durable, resumable, and awake at the right moments."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from server.support.driving import (
    SEALED_BYTES,
    current,
    files,
    gather,
    play,
    poll,
    running,
    speak,
    upload,
)
from server.support.federations import Bench, identity

from fedrec.errors import (
    ConflictingUpload,
    CorruptUpload,
    MalformedUpdate,
    RoundClosed,
    StorageError,
)
from fedrec.ids import RoundId
from fedrec.wire.messages import Finished, Reveal, Train, Wait
from fedrec_server.receiving import open_update, update_status


class TestWholeRun:
    def test_without_protection_publishes_exact_sums(self, tmp_path: Path) -> None:
        bench = Bench.of(3, total=2)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await play(engine, bench, range(3))
                record = engine.store.next_published(RoundId(1))
                assert record is not None and record.kind == "train" and not record.sealed
                data = engine.store.spool.read(record.name, record.blob)
                assert data == bench.sum_of({0, 1, 2}, 2)
                entries = engine.store.entries(0, 1000)
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

    def test_with_reveals_publishes_what_two_signed(self, tmp_path: Path) -> None:
        bench = Bench.of(4, veiled=True)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await play(engine, bench, range(4))
                record = engine.store.next_published(RoundId(0))
                assert record is not None and record.sealed and len(record.statements) == 2
                assert engine.store.spool.read(record.name, record.blob) == b"honest" * SEALED_BYTES
            assert len(files(tmp_path)) == 3, "only the published aggregates are left"

        asyncio.run(scenario())

    def test_stop_after_the_round(self, tmp_path: Path) -> None:
        bench = Bench.of(3, total=5)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                await engine.stop_run(at_once=False)
                assert engine.state.ending is None
                await play(engine, bench, range(3))
                assert engine.finished.is_set()
                assert engine.state.rounds_published == 1

        asyncio.run(scenario())

    def test_reveal_tasks_are_for_the_chosen(self, tmp_path: Path) -> None:
        bench = Bench.of(4, veiled=True)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(4))
                for number in range(4):
                    await upload(engine, bench, number)
                await engine.work.settled()
                tasks = [(await poll(engine, number)).task for number in range(4)]
                roles = sorted(task.role for task in tasks if isinstance(task, Reveal))
                assert roles == ["reveal", "verify"]

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
                await engine.work.settled()
                assert engine.state.published == 1
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
                await engine.work.settled()
                record = engine.store.next_published(RoundId(0))
                assert record is not None
                data = engine.store.spool.read(record.name, record.blob)
                assert data == bench.sum_of({0, 1, 2}, 1)

        asyncio.run(scenario())

    def test_late_upload_is_told_so(self, tmp_path: Path) -> None:
        bench = Bench.of(4)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                for number in range(3):
                    await upload(engine, bench, number)
                await engine.work.settled()
                with pytest.raises(RoundClosed):
                    await upload(engine, bench, 3, round_id=1)

        asyncio.run(scenario())

    def test_foreign_bytes_do_not_change_the_sum(self, tmp_path: Path) -> None:
        bench = Bench.of(3)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                payload = bytes(len(bench.payload(0, 1)))
                header = bench.header(0, 1, payload, engine.run)
                incoming = await open_update(engine, header)
                assert incoming is not None
                await incoming.add(0, payload)
                with pytest.raises(MalformedUpdate):
                    await incoming.finish()
                await incoming.leave()
                assert files(tmp_path) == []
                for number in range(3):
                    await upload(engine, bench, number)
                await engine.work.settled()
                assert engine.state.published == 1

        asyncio.run(scenario())

    def test_interrupted_upload_goes_on_after_a_restart(self, tmp_path: Path) -> None:
        bench = Bench.of(3)
        payload = bench.payload(0, 1)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                header = bench.header(0, 1, payload, engine.run)
                incoming = await open_update(engine, header)
                assert incoming is not None
                await incoming.add(0, payload[:20])
                with pytest.raises(CorruptUpload):
                    await incoming.finish()
                await incoming.leave()
            async with running(bench, tmp_path) as engine:
                ask = (engine, engine.run, RoundId(1), header.client_id, header.digest)
                status = await update_status(*ask)
                assert (status.offset, status.accepted) == (20, False)
                incoming = await open_update(engine, header)
                assert incoming is not None
                with pytest.raises(CorruptUpload):
                    await incoming.add(21, payload[21:])
                await incoming.add(20, payload[20:])
                assert not await incoming.finish()
                await incoming.leave()
                assert (await update_status(*ask)).accepted

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
                await engine.work.settled()
                record = engine.store.next_published(RoundId(0))
                assert record is not None and len(record.contributions) == 3
                data = engine.store.spool.read(record.name, record.blob)
                assert data == bench.sum_of({1, 2, 3}, 1)
                (ended,) = (
                    json.loads(entry.fields_json)
                    for entry in engine.store.entries(0, 1000)
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
                header = bench.header(0, 1, payload, engine.run)
                incoming = await open_update(engine, header)
                assert incoming is not None
                await incoming.add(0, payload[:-1] + b"?")
                with pytest.raises(CorruptUpload):
                    await incoming.finish()
                await incoming.leave()
                assert not await upload(engine, bench, 0)

        asyncio.run(scenario())


class TestRestart:
    """The coordinator ends in each phase and goes on with the same state folder."""

    def test_while_collecting(self, tmp_path: Path) -> None:
        bench = Bench.of(3)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                run = engine.run
                await gather(engine, range(3))
                await upload(engine, bench, 0)
            async with running(bench, tmp_path) as engine:
                assert engine.run == run
                assert current(engine.state).phase == "collecting"
                assert isinstance((await poll(engine, 1)).task, Train)
                assert isinstance((await poll(engine, 0)).task, Wait)
                await play(engine, bench, range(3))
                record = engine.store.next_published(RoundId(0))
                assert record is not None
                data = engine.store.spool.read(record.name, record.blob)
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
                await engine.work.settled()
                assert current(engine.state).phase == "summing"
            async with running(bench, tmp_path) as engine:
                assert engine.state.published == 1
                await play(engine, bench, range(3))

        asyncio.run(scenario())

    def test_while_revealing(self, tmp_path: Path) -> None:
        bench = Bench.of(3, veiled=True)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                for number in range(3):
                    await upload(engine, bench, number)
                await engine.work.settled()
                before = current(engine.state)
                assert before.phase == "revealing"
                asked = {holder.client_id: holder.role for holder in before.holders}
                speaker = next(n for n in range(3) if identity(n).client_id in asked)
                await speak(engine, bench, speaker)
            async with running(bench, tmp_path) as engine:
                after = current(engine.state)
                assert after.words and {h.client_id: h.role for h in after.holders} == asked
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
                assert engine.state.current is None and engine.state.abandoned == 1
                await play(engine, bench, range(4))
                assert engine.state.published == 4, "round 1 was abandoned, 2 to 4 published"

        asyncio.run(scenario())
