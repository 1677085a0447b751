"""A full disk: a warning in the log now and then, and a line in the status until it passed."""

from __future__ import annotations

import pytest
from server.support.driving import gather, play, running, upload
from server.support.federations import Bench
from structlog.testing import capture_logs
from world.clock import FakeClock

from fedrec.cli.operating import status_rows
from fedrec.durable import DiskFull
from fedrec.errors import StorageError
from fedrec.wire.admin_link import RunStatus
from fedrec_server.engine import Engine
from fedrec_server.run_status import status_of


def said(engine: Engine) -> str:
    """Return what `fedrec status` says of the disk."""
    found = RunStatus.of(status_of(engine, last_event=0))
    row = dict(status_rows(found)).get("disk", "")
    assert bool(row) == bool(found.disk_full)
    return row


def warnings(lines: list[dict[str, object]]) -> list[object]:
    return [line["event"] for line in lines if line["log_level"] == "warning"]


@pytest.mark.parametrize("where", ["draft.write", "file.rename", "rows.begin", "rows.commit"])
async def test_a_full_disk_is_told_once_a_minute_and_until_it_passed(tmp_path, where):
    bench, clock, full = Bench.of(3, deadline_seconds=600), FakeClock(), set[str]()

    def failpoint(name: str) -> None:
        if name in full:
            raise DiskFull("The disk is full (write: No space left on device).")

    async with running(bench, tmp_path, clock=clock, failpoint=failpoint) as engine:
        await gather(engine, range(3))
        assert not said(engine)
        full.add(where)
        with capture_logs() as lines:
            for _ in range(480):
                clock.advance(0.25)
                with pytest.raises(StorageError):
                    await upload(engine, bench, 0)
                await engine.tick()
            assert "The disk is full (write" in said(engine)
            assert warnings(lines) == ["disk full"] * 2
            full.clear()
            await play(engine, bench, range(3))
            clock.advance(31.0)
            await engine.tick()
            assert not said(engine)
            assert [one["event"] for one in lines].count("disk takes what is written") == 1


async def test_the_reserve_is_part_of_it(tmp_path):
    bench = Bench.of(3)

    store = bench.store(tmp_path, reserve_bytes=1 << 60)
    async with running(bench, tmp_path, store=store) as engine:
        await gather(engine, range(3))
        with capture_logs() as lines:
            for number in range(3):
                with pytest.raises(DiskFull):
                    await upload(engine, bench, number)
        assert warnings(lines) == ["disk full"]
        assert "coordinator.reserve_bytes" in str(lines) and "reserve" in said(engine)


async def test_another_trouble_of_the_disk_is_no_flood_either(tmp_path):
    bench, clock = Bench.of(3), FakeClock()
    broken: set[str] = set()

    def failpoint(name: str) -> None:
        if name in broken:
            raise StorageError("The database cannot be read: disk I/O error.")

    async with running(bench, tmp_path, clock=clock, failpoint=failpoint) as engine:
        broken.add("rows.begin")
        with capture_logs() as lines:
            for _ in range(240):
                clock.advance(0.25)
                await gather(engine, range(3))
            broken.clear()
        assert warnings(lines) == ["storage refused"]
        assert not said(engine)
