"""A whole run without gRPC: durable, resumable, and awake at the right moments."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
from pathlib import Path

import pytest
from server.support.driving import (
    SEALED_BYTES,
    act,
    gather,
    play,
    poll,
    running,
    send_snapshot,
    speak,
    upload,
)
from server.support.federations import Bench, identity

from fedrec.clock import FakeClock
from fedrec.errors import (
    ConflictingUpload,
    CorruptUpload,
    MalformedUpdate,
    NotInRoster,
    ProtocolError,
    RefusedError,
    RoundClosed,
    RoundError,
    StorageError,
)
from fedrec.ids import RoundId
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import Finished, MakeSnapshot, Reveal, Train, Wait
from fedrec_server.receiving import open_update, update_status
from fedrec_server.rounds.state import Round
from fedrec_server.store.spool import DurabilityLost


def current(engine_state: object) -> Round:
    round_ = engine_state.current  # type: ignore[attr-defined]
    assert isinstance(round_, Round)
    return round_


def files(folder: Path) -> list[str]:
    spool = folder / "state"
    return sorted(
        f"{path.parent.name}/{path.name}"
        for kind in ("partial", "updates", "blobs", "snapshots")
        for path in (spool / kind).iterdir()
    )


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


class TestTrouble:
    def test_damaged_update_abandons_and_never_publishes_another_sum(self, tmp_path: Path) -> None:
        bench = Bench.of(3)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                await upload(engine, bench, 0)
            (update,) = (tmp_path / "state" / "updates").iterdir()
            raw = bytearray(update.read_bytes())
            raw[-1] ^= 1
            update.write_bytes(raw)
            async with running(bench, tmp_path) as engine:
                with pytest.raises(RoundClosed):
                    await upload(engine, bench, 1)
                await engine.work.settled()
                assert engine.state.abandoned == 1
                await play(engine, bench, range(3))
                assert engine.state.published == 4

        asyncio.run(scenario())

    @pytest.mark.parametrize("where", ["draft.write", "file.rename", "rows.commit"])
    def test_full_disk_refuses_and_goes_on_with_space(self, tmp_path: Path, where: str) -> None:
        bench = Bench.of(3)
        full: list[str] = []

        def failpoint(name: str) -> None:
            if name in full:
                raise StorageError("The disk is full.")

        async def scenario() -> None:
            async with running(bench, tmp_path, failpoint=failpoint) as engine:
                await gather(engine, range(3))
                await upload(engine, bench, 0)
                full.append(where)
                for _ in range(2):
                    with pytest.raises(StorageError):
                        await upload(engine, bench, 1)
                full.clear()
                await play(engine, bench, range(3))
                record = engine.store.next_published(RoundId(0))
                assert record is not None and len(record.contributions) == 3
                data = engine.store.spool.read(record.name, record.blob)
                assert data == bench.sum_of({0, 1, 2}, 1), "the unfinished try was not counted"

        asyncio.run(scenario())

    def test_reserve_refuses_before_anything_is_written(self, tmp_path: Path) -> None:
        bench = Bench.of(3)

        async def scenario() -> None:
            store = bench.store(tmp_path, reserve_bytes=1 << 60)
            async with running(bench, tmp_path, store=store) as engine:
                await gather(engine, range(3))
                with pytest.raises(StorageError, match="reserve"):
                    await upload(engine, bench, 0)
                assert files(tmp_path) == []

        asyncio.run(scenario())

    def test_failed_fsync_ends_the_service(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = Bench.of(3)

        def failing(file: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                with monkeypatch.context() as patch:
                    patch.setattr(os, "fsync", failing)
                    with pytest.raises(DurabilityLost):
                        await upload(engine, bench, 0)
                assert engine.work.lost.is_set()
                with pytest.raises(StorageError):
                    await upload(engine, bench, 1)
            async with running(bench, tmp_path) as engine:
                assert not current(engine.state).accepted
                await play(engine, bench, range(3))

        asyncio.run(scenario())

    def test_short_write_is_undone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = Bench.of(3)
        payload = bench.payload(0, 1)
        whole = os.pwrite

        def short(file: int, data: bytes, offset: int) -> int:
            if offset >= 10:
                raise OSError(errno.ENOSPC, "No space left on device")
            return whole(file, bytes(data)[:10], offset)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(3))
                header = bench.header(0, 1, payload, engine.run)
                incoming = await open_update(engine, header)
                assert incoming is not None
                with monkeypatch.context() as patch:
                    patch.setattr(os, "pwrite", short)
                    with pytest.raises(StorageError, match="full"):
                        await incoming.add(0, payload)
                await incoming.leave()
                status = await update_status(
                    engine, engine.run, RoundId(1), header.client_id, header.digest
                )
                assert status.offset == 0
                await play(engine, bench, range(3))

        asyncio.run(scenario())


class TestLongPoll:
    def test_waiter_is_woken_by_its_round_and_not_by_others_uploads(self, tmp_path: Path) -> None:
        bench = Bench.of(4)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                waiting = asyncio.ensure_future(
                    engine.next_task(identity(0).client_id, engine.run, RoundId(0), 60.0)
                )
                await asyncio.sleep(0)
                assert isinstance((await poll(engine, 1)).task, Wait)
                await gather(engine, range(3))
                assert isinstance((await waiting).task, Train)
                await upload(engine, bench, 0)
                idle = asyncio.ensure_future(
                    engine.next_task(identity(0).client_id, engine.run, RoundId(0), 60.0)
                )
                await upload(engine, bench, 1)
                assert not idle.done()
                await upload(engine, bench, 2)
                await engine.work.settled()
                assert (await idle).published_round == 1

        asyncio.run(scenario())

    def test_wait_ends_with_nothing_to_do(self, tmp_path: Path) -> None:
        bench = Bench.of(4)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                task = await engine.next_task(identity(0).client_id, engine.run, RoundId(0), 0.01)
                assert isinstance(task.task, Wait)
                with pytest.raises(NotInRoster):
                    await engine.next_task(identity(9).client_id, engine.run, RoundId(0), 0.0)
                with pytest.raises(ProtocolError):
                    await engine.next_task(identity(0).client_id, "other", RoundId(0), 0.0)

        asyncio.run(scenario())

    def test_ten_thousand_waiters_are_cheap(self, tmp_path: Path) -> None:
        bench = Bench.of(3)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                waits = [
                    asyncio.ensure_future(engine.waiters.wait(str(n), 60.0))  # type: ignore[arg-type]
                    for n in range(10_000)
                ]
                await asyncio.sleep(0)
                engine.waiters.wake_all()
                assert all(await asyncio.gather(*waits))

        asyncio.run(scenario())

    def test_silent_client_stalls_no_longer_than_the_deadline(self, tmp_path: Path) -> None:
        bench = Bench.of(4, minimum_clients=3, deadline_seconds=60)
        clock = FakeClock()

        async def scenario() -> None:
            async with running(bench, tmp_path, clock=clock) as engine:
                await gather(engine, range(4))
                for number in range(3):
                    await upload(engine, bench, number)
                clock.advance(59)
                await engine.tick()
                assert engine.state.published == 0
                clock.advance(2)
                await engine.tick()
                assert engine.state.published == 1
                await gather(engine, range(3))
                assert len(current(engine.state).asked) == 3, "the silent one is not asked again"

        asyncio.run(scenario())


class TestSnapshots:
    @pytest.mark.parametrize("veiled", [False, True])
    def test_late_joiner_gets_what_up_to_date_clients_made(
        self, tmp_path: Path, veiled: bool
    ) -> None:
        bench = Bench.of(5, veiled=veiled, total=8, values=400)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                await gather(engine, range(4))
                for number in itertools.cycle(range(4)):
                    await act(engine, bench, number)
                    if engine.state.published == 2:
                        break
                idle = 0
                await act(engine, bench, idle)
                waiting = asyncio.ensure_future(
                    engine.next_task(identity(idle).client_id, engine.run, RoundId(2), 30.0)
                )
                await asyncio.sleep(0)
                late = await poll(engine, 4, version=0)
                assert isinstance(late.task, Wait) and late.published_round == 2
                assert isinstance((await waiting).task, MakeSnapshot)
                if veiled:
                    with pytest.raises(RefusedError, match="signed"):
                        await send_snapshot(engine, bench, idle, b"another model", "lie")
                else:
                    await send_snapshot(engine, bench, idle, b"the model")
                assert engine.snapshots.for_client(RoundId(0)) is None, "one word is not enough"
                await send_snapshot(engine, bench, (idle + 1) % 4, b"the model")
                found = engine.snapshots.for_client(RoundId(0))
                assert found is not None and found[0].blob == Blob.of(b"the model")
                assert engine.snapshots.for_client(RoundId(2)) is None
                with pytest.raises(RoundError, match="here already"):
                    await send_snapshot(engine, bench, idle, b"the model")
            async with running(bench, tmp_path) as engine:
                assert engine.snapshots.for_client(RoundId(0)) is not None
                assert sum(name.startswith("snapshots/") for name in files(tmp_path)) == 1

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
