"""Uploads without gRPC: each is counted once, and what was interrupted goes on."""

from __future__ import annotations

import asyncio
import json

import pytest
from server.support.driving import (
    files,
    gather,
    pieces,
    running,
    upload,
)
from server.support.federations import Bench

from fedrec.errors import ConflictingUpload, CorruptUpload, MalformedUpdate, RoundClosed
from fedrec.ids import RoundId


class TestUploads:
    async def test_duplicates_in_and_after_the_round(self, tmp_path):
        bench = Bench.of(3)

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

    async def test_five_concurrent_duplicates_count_once(self, tmp_path):
        bench = Bench.of(3)

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

    async def test_late_upload_is_told_so(self, tmp_path):
        bench = Bench.of(4)

        async with running(bench, tmp_path) as engine:
            await gather(engine, range(3))
            for number in range(3):
                await upload(engine, bench, number)
            await engine.run.work.settled()
            with pytest.raises(RoundClosed):
                await upload(engine, bench, 3, round_id=1)

    async def test_foreign_bytes_do_not_change_the_sum(self, tmp_path):
        bench = Bench.of(3)

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
        """Without encryption nobody signed which model is right; most know."""
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

    async def test_wrong_bytes_are_forgotten(self, tmp_path):
        bench = Bench.of(3)
        payload = bench.payload(0, 1)

        async with running(bench, tmp_path) as engine:
            await gather(engine, range(3))
            header = bench.header(0, 1, payload, engine.run.name)
            with pytest.raises(CorruptUpload):
                await engine.updates.receive(header, pieces(payload[:-1] + b"?"))
            assert not await upload(engine, bench, 0)
