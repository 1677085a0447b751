"""Who waits for something to do is woken by it, and by nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from server.support.driving import current, gather, poll, running, upload, wait
from server.support.federations import Bench, identity

from fedrec.clock import FakeClock
from fedrec.errors import NotInRoster, ProtocolError
from fedrec.ids import RoundId
from fedrec.wire.messages import Train, Wait


class TestLongPoll:
    def test_waiter_is_woken_by_its_round_and_not_by_others_uploads(self, tmp_path: Path) -> None:
        bench = Bench.of(4)

        async def scenario() -> None:
            async with running(bench, tmp_path) as engine:
                waiting = asyncio.ensure_future(wait(engine, 0))
                await asyncio.sleep(0)
                assert isinstance((await poll(engine, 1)).task, Wait)
                await gather(engine, range(3))
                assert isinstance((await waiting).task, Train)
                await upload(engine, bench, 0)
                idle = asyncio.ensure_future(wait(engine, 0))
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
