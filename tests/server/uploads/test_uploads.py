"""Uploads as they arrive, and storage that fails."""

import asyncio
import errno
import io
import json
import os
import threading
from collections import Counter

import pytest
from world.engine import (
    Bench,
    current,
    files,
    gather,
    pieces,
    play,
    running,
    upload,
)

from fedrec.errors import (
    CorruptUpload,
    RoundClosed,
    StorageError,
)
from fedrec.ids import RoundId
from fedrec.protection import none
from fedrec.protection.protection_plan import HEADER_BYTES
from fedrec.wire.chunks import ByteChunk
from fedrec_server.store.durable_files import Draft, DurabilityLost
from fedrec_server.uploads import incoming
from fedrec_server.uploads.updates import IncomingUpdate


class TestUploads:
    async def test_interrupted_upload_goes_on_after_a_restart(self, tmp_path):
        bench = Bench.of(3)
        payload = bench.payload(0, 1)

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

    async def test_an_update_to_another_model_is_left_out(self, tmp_path):
        """Without encryption no client signed which model is right; most know."""
        bench = Bench.of(4)

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


async def opened(engine, bench, payload):
    await gather(engine, range(3))
    header = bench.header(0, 1, payload, engine.run.name)
    return IncomingUpdate(engine.run, engine.updates, header)


async def slow_pieces(payload, size):
    for offset in range(0, len(payload), size):
        yield ByteChunk(offset=offset, data=payload[offset : offset + size])
        await asyncio.sleep(0)


@pytest.mark.parametrize("size", [1, 7, 20, 1 << 20])
@pytest.mark.parametrize("waiting", [1, 10, 1 << 20])
async def test_every_byte_is_taken(tmp_path, monkeypatch, size, waiting):
    monkeypatch.setattr(incoming, "WAITING_BYTES", waiting)
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        payload = bench.payload(0, 1, 0)
        update = await opened(engine, bench, payload)
        assert not await update.take(slow_pieces(payload, size))
        await update.leave()
        (file,) = tmp_path.rglob("updates/*")
        assert file.read_bytes() == payload


async def test_no_more_is_read_than_may_wait(tmp_path, monkeypatch):
    """One byte is being written and three wait; the fifth is not asked for."""
    monkeypatch.setattr(incoming, "WAITING_BYTES", 3)
    bench = Bench.of(3)
    reached, go_on = threading.Event(), threading.Event()

    def failpoint(name):
        if name == "draft.write":
            reached.set()
            assert go_on.wait(60)

    async with running(bench, tmp_path, failpoint=failpoint) as engine:
        payload, read = bench.payload(0, 1, 0), 0
        update = await opened(engine, bench, payload)

        async def counted():
            nonlocal read
            async for chunk in slow_pieces(payload, 1):
                read += 1
                yield chunk

        taking = asyncio.ensure_future(update.take(counted()))
        await asyncio.to_thread(reached.wait, 60)
        for _ in range(50):
            await asyncio.sleep(0)
        assert read == 4
        go_on.set()
        assert not await taking and read == len(payload)
        await update.leave()


@pytest.mark.parametrize(("streams", "most"), [(2, 4), (1, 1)])
async def test_few_open_streams_are_read_ahead(tmp_path, monkeypatch, streams, most):
    """A byte of both is being written; three more wait of each where so many may be read ahead."""
    monkeypatch.setattr(incoming, "WAITING_BYTES", 3)
    monkeypatch.setattr(incoming, "AHEAD_STREAMS", streams)
    bench = Bench.of(3)
    reached, go_on = threading.Semaphore(0), threading.Event()

    def failpoint(name):
        if name == "draft.write":
            reached.release()
            assert go_on.wait(60)

    both_are_open, read = asyncio.Barrier(2), Counter[int]()
    async with running(bench, tmp_path, failpoint=failpoint) as engine:
        await gather(engine, range(3))

        async def send(number):
            payload = bench.payload(number, 1, 0)

            async def counted():
                await both_are_open.wait()
                async for chunk in slow_pieces(payload, 1):
                    read[number] += 1
                    yield chunk

            header = bench.header(number, 1, payload, engine.run.name)
            return await engine.updates.receive(header, counted())

        sending = asyncio.gather(send(0), send(1))
        for _ in range(2):
            await asyncio.to_thread(reached.acquire)
        for _ in range(50):
            await asyncio.sleep(0)
        assert read == {0: most, 1: most}
        go_on.set()
        assert await sending == [False, False]


async def test_what_waits_when_a_stream_breaks_off_is_kept(tmp_path):
    bench = Bench.of(3)
    reached, go_on = threading.Event(), threading.Event()

    def failpoint(name):
        if name == "draft.write":
            reached.set()
            assert go_on.wait(60)

    async with running(bench, tmp_path, failpoint=failpoint) as engine:
        payload = bench.payload(0, 1, 0)
        header = bench.header(0, 1, payload, engine.run.name)
        update = await opened(engine, bench, payload)

        async def broken():
            async for chunk in slow_pieces(payload[:20], 10):
                yield chunk
            await asyncio.to_thread(reached.wait, 60)
            raise CorruptUpload("The stream was silent.")

        with pytest.raises(CorruptUpload, match="silent"):
            await update.take(broken())
        go_on.set()
        await update.leave()
        ask = (engine.run.name, RoundId(1), header.client_id, header.digest)
        assert (await engine.updates.status(*ask)).offset == 20


async def test_what_does_not_follow_ends_the_stream(tmp_path):
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        payload = bench.payload(0, 1, 0)
        header = bench.header(0, 1, payload, engine.run.name)
        update = await opened(engine, bench, payload)

        async def gap():
            yield ByteChunk(offset=0, data=payload[:10])
            yield ByteChunk(offset=11, data=payload[11:20])
            yield ByteChunk(offset=20, data=payload[20:])

        with pytest.raises(CorruptUpload, match="begins at 11, expected 10"):
            await update.take(gap())
        await update.leave()
        ask = (engine.run.name, RoundId(1), header.client_id, header.digest)
        assert (await engine.updates.status(*ask)).offset == 10


class TestTrouble:
    async def test_damaged_update_abandons_and_never_publishes_another_sum(self, tmp_path):
        bench = Bench.of(3)

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
            await engine.run.work.settled()
            assert engine.run.state.abandoned == 1
            await play(engine, bench, range(3))
            assert engine.run.state.published == 4

    @pytest.mark.parametrize("where", ["draft.write", "file.rename", "rows.commit"])
    async def test_full_disk_refuses_and_goes_on_with_space(self, tmp_path, where):
        bench = Bench.of(3)
        full: list[str] = []

        def failpoint(name):
            if name in full:
                raise StorageError("The disk is full.")

        async with running(bench, tmp_path, failpoint=failpoint) as engine:
            await gather(engine, range(3))
            await upload(engine, bench, 0)
            full.append(where)
            for _ in range(2):
                with pytest.raises(StorageError):
                    await upload(engine, bench, 1)
            full.clear()
            await play(engine, bench, range(3))
            record = engine.run.store.next_published(RoundId(0))
            assert record is not None and len(record.contributions) == 3
            data = engine.run.store.spool.read(record.name, record.blob)
            assert data == bench.sum_of({0, 1, 2}, 1), "the unfinished try was not counted"

    async def test_failed_fsync_ends_the_service(self, tmp_path, monkeypatch):
        bench = Bench.of(3)

        def failing(file):
            raise OSError(errno.EIO, "Input/output error")

        async with running(bench, tmp_path) as engine:
            await gather(engine, range(3))
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", failing)
                with pytest.raises(DurabilityLost):
                    await upload(engine, bench, 0)
            assert engine.run.work.lost.is_set()
            with pytest.raises(StorageError):
                await upload(engine, bench, 1)
        async with running(bench, tmp_path) as engine:
            assert not current(engine.run.state).accepted
            await play(engine, bench, range(3))

    async def test_short_write_is_undone(self, tmp_path, monkeypatch):
        bench = Bench.of(3)
        payload = bench.payload(0, 1)
        whole = os.pwrite

        def short(file, data, offset):
            if offset >= 10:
                raise OSError(errno.ENOSPC, "No space left on device")
            return whole(file, bytes(data)[:10], offset)

        async with running(bench, tmp_path) as engine:
            await gather(engine, range(3))
            header = bench.header(0, 1, payload, engine.run.name)
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", short)
                with pytest.raises(StorageError, match="full"):
                    await engine.updates.receive(header, pieces(payload))
            status = await engine.updates.status(
                engine.run.name, RoundId(1), header.client_id, header.digest
            )
            assert status.offset == 0
            await play(engine, bench, range(3))

    async def test_a_file_that_shrinks_while_it_is_added_leaves_nothing_in_the_sum(
        self, tmp_path, monkeypatch
    ):
        """All of it was checked, its first values are in the sum, and its last ones are gone."""
        bench = Bench.of(3)
        payload = bench.payload(1, 1)

        class Shrinking(io.FileIO):
            def seek(self, offset, whence=os.SEEK_SET, /):
                if offset == HEADER_BYTES:
                    os.ftruncate(self.fileno(), len(payload) - 1)
                return super().seek(offset, whence)

        async with running(bench, tmp_path) as engine:
            await gather(engine, range(3))
            await upload(engine, bench, 0)
            header = bench.header(1, 1, payload, engine.run.name)
            with monkeypatch.context() as patch:
                patch.setattr(none, "_PIECE_BYTES", 8)
                patch.setattr(Draft, "opened", lambda self: Shrinking(os.dup(self._file)))
                with pytest.raises(EOFError):
                    await engine.updates.receive(header, pieces(payload))
            await play(engine, bench, range(3))
            record = engine.run.store.next_published(RoundId(0))
            data = engine.run.store.spool.read(record.name, record.blob)
            assert data == bench.sum_of({0, 1, 2}, 1)
