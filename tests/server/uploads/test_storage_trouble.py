"""Damaged files, full disks and writes that fail: refused, undone, or the end of the service."""

from __future__ import annotations

import errno
import io
import os

import pytest
from server.support.driving import current, files, gather, pieces, play, running, upload
from server.support.federations import Bench

from fedrec.errors import RoundClosed, StorageError
from fedrec.ids import RoundId
from fedrec.protection import none
from fedrec.protection.protection_plan import HEADER_BYTES
from fedrec_server.store.durable_files import Draft, DurabilityLost


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

        def failpoint(name: str) -> None:
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

    async def test_reserve_refuses_before_anything_is_written(self, tmp_path):
        bench = Bench.of(3)

        store = bench.store(tmp_path, reserve_bytes=1 << 60)
        async with running(bench, tmp_path, store=store) as engine:
            await gather(engine, range(3))
            with pytest.raises(StorageError, match="reserve"):
                await upload(engine, bench, 0)
            assert files(tmp_path) == []

    async def test_failed_fsync_ends_the_service(self, tmp_path, monkeypatch):
        bench = Bench.of(3)

        def failing(file: int) -> None:
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

        def short(file: int, data: bytes, offset: int) -> int:
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
            def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
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
            assert record is not None
            data = engine.run.store.spool.read(record.name, record.blob)
            assert data == bench.sum_of({0, 1, 2}, 1)
