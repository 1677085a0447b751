"""A stream goes on arriving while its earlier bytes are written, and only so far."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from server.support.driving import gather, running
from server.support.federations import Bench

from fedrec.errors import CorruptUpload
from fedrec.ids import RoundId
from fedrec.wire.chunks import ByteChunk
from fedrec_server.engine import Engine
from fedrec_server.uploads import updates
from fedrec_server.uploads.updates import Incoming, IncomingUpdate


async def opened(engine: Engine, bench: Bench, payload: bytes) -> Incoming:
    await gather(engine, range(3))
    header = bench.header(0, 1, payload, engine.run.name)
    return IncomingUpdate(engine.run, engine.updates, header)


async def pieces(payload: bytes, size: int) -> AsyncIterator[ByteChunk]:
    for offset in range(0, len(payload), size):
        yield ByteChunk(offset=offset, data=payload[offset : offset + size])
        await asyncio.sleep(0)


@pytest.mark.parametrize("size", [1, 7, 20, 1 << 20])
@pytest.mark.parametrize("waiting", [1, 10, 1 << 20])
async def test_every_byte_is_taken(tmp_path, monkeypatch, size, waiting):
    monkeypatch.setattr(updates, "WAITING_BYTES", waiting)
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        payload = bench.payload(0, 1, 0)
        update = await opened(engine, bench, payload)
        await update.take(pieces(payload, size))
        assert not await update.finish()
        await update.leave()
        (file,) = tmp_path.rglob("updates/*")
        assert file.read_bytes() == payload


async def test_no_more_is_read_than_may_wait(tmp_path, monkeypatch):
    """One byte is being written and three wait; the fifth is not asked for."""
    monkeypatch.setattr(updates, "WAITING_BYTES", 3)
    bench = Bench.of(3)
    reached, go_on = threading.Event(), threading.Event()

    def failpoint(name: str) -> None:
        if name == "draft.write":
            reached.set()
            assert go_on.wait(60)

    async with running(bench, tmp_path, failpoint=failpoint) as engine:
        payload, read = bench.payload(0, 1, 0), 0
        update = await opened(engine, bench, payload)

        async def counted() -> AsyncIterator[ByteChunk]:
            nonlocal read
            async for chunk in pieces(payload, 1):
                read += 1
                yield chunk

        taking = asyncio.ensure_future(update.take(counted()))
        await asyncio.to_thread(reached.wait, 60)
        for _ in range(50):
            await asyncio.sleep(0)
        assert read == 4
        go_on.set()
        await taking
        assert read == len(payload) and not await update.finish()
        await update.leave()


@pytest.mark.parametrize(("streams", "most"), [(2, 4), (1, 1)])
async def test_few_open_streams_are_read_ahead(tmp_path, monkeypatch, streams, most):
    """A byte of both is being written; three more wait of each where so many may be read ahead."""
    monkeypatch.setattr(updates, "WAITING_BYTES", 3)
    monkeypatch.setattr(updates, "AHEAD_STREAMS", streams)
    bench = Bench.of(3)
    reached, go_on = threading.Semaphore(0), threading.Event()

    def failpoint(name: str) -> None:
        if name == "draft.write":
            reached.release()
            assert go_on.wait(60)

    both_are_open, read = asyncio.Barrier(2), Counter[int]()
    async with running(bench, tmp_path, failpoint=failpoint) as engine:
        await gather(engine, range(3))

        async def send(number: int) -> bool:
            payload = bench.payload(number, 1, 0)

            async def counted() -> AsyncIterator[ByteChunk]:
                await both_are_open.wait()
                async for chunk in pieces(payload, 1):
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

    def failpoint(name: str) -> None:
        if name == "draft.write":
            reached.set()
            assert go_on.wait(60)

    async with running(bench, tmp_path, failpoint=failpoint) as engine:
        payload = bench.payload(0, 1, 0)
        header = bench.header(0, 1, payload, engine.run.name)
        update = await opened(engine, bench, payload)

        async def broken() -> AsyncIterator[ByteChunk]:
            async for chunk in pieces(payload[:20], 10):
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

        async def gap() -> AsyncIterator[ByteChunk]:
            yield ByteChunk(offset=0, data=payload[:10])
            yield ByteChunk(offset=11, data=payload[11:20])
            yield ByteChunk(offset=20, data=payload[20:])

        with pytest.raises(CorruptUpload, match="begins at 11, expected 10"):
            await update.take(gap())
        await update.leave()
        ask = (engine.run.name, RoundId(1), header.client_id, header.digest)
        assert (await engine.updates.status(*ask)).offset == 10
