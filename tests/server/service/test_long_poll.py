"""Who waits for something to do is woken by it, and by nothing else."""

from __future__ import annotations

import asyncio
import threading

import pytest
from server.support.driving import current, gather, poll, running, upload, wait
from server.support.federations import Bench, identity
from world.clock import FakeClock

from fedrec.errors import NotInRoster, ProtocolError
from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import Train, Wait
from fedrec_server.rounds.selection import has_room, joining


class TestLongPoll:
    async def test_waiter_is_woken_by_its_round_and_not_by_others_uploads(self, tmp_path):
        bench = Bench.of(4)

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
            await engine.run.work.settled()
            assert (await idle).published_round == 1

    async def test_who_comes_while_a_round_is_opened_is_offered_it(self, tmp_path):
        """It was counted for those who were there before; the rows are not committed as yet."""
        bench = Bench.of(4, minimum_clients=3)
        started, opening, go_on = (threading.Event() for _ in range(3))

        def hold(name: str) -> None:
            if name == "rows.commit" and started.is_set():
                opening.set()
                assert go_on.wait(60)

        async with running(bench, tmp_path, failpoint=hold) as engine:
            started.set()
            gathered = asyncio.ensure_future(gather(engine, range(3)))
            assert await asyncio.to_thread(opening.wait, 60)
            waiting = asyncio.ensure_future(wait(engine, 3))
            while not engine.run.presence.waiters:
                await asyncio.sleep(0)
            assert engine.run.state.current is None
            go_on.set()
            await gathered
            assert isinstance((await asyncio.wait_for(waiting, 20)).task, Train)
            assert len(current(engine.run.state).asked) == 4

    async def test_wait_ends_with_nothing_to_do(self, tmp_path):
        bench = Bench.of(4)

        async with running(bench, tmp_path) as engine:
            task = await engine.polls.next_task(
                identity(0).client_id, engine.run.name, RoundId(0), 0.01
            )
            assert isinstance(task.task, Wait)
            with pytest.raises(NotInRoster):
                await engine.polls.next_task(
                    identity(9).client_id, engine.run.name, RoundId(0), 0.0
                )
            with pytest.raises(ProtocolError):
                await engine.polls.next_task(identity(0).client_id, "other", RoundId(0), 0.0)

    async def test_who_cannot_join_a_full_round_waits_for_nobody(self, tmp_path):
        """Three are counted, half as many more are asked: five of seven that come one by one."""
        bench = Bench.of(7, minimum_clients=3, clients_per_round=3, over_provision=1.5)

        async with running(bench, tmp_path) as engine:
            asked = []
            for number in range(7):
                rules, round_ = engine.run.state.rules, engine.run.state.current
                full = round_ is not None and not has_room(rules, round_)
                before = round_.asked if round_ is not None else frozenset()
                if full:
                    # Nothing can be decided meanwhile, and nothing has to be.
                    async with engine.run.lock:
                        await asyncio.wait_for(poll(engine, number), 20)
                else:
                    await poll(engine, number)
                if round_ is not None:
                    new = joining(rules, round_, (), identity(number).client_id)
                    assert current(engine.run.state).asked == before | new
                asked.append(
                    0 if engine.run.state.current is None else len(current(engine.run.state).asked)
                )
            assert asked == [0, 0, 3, 4, 5, 5, 5]

    async def test_ten_thousand_waiters_are_cheap(self, tmp_path):
        bench = Bench.of(3)

        async with running(bench, tmp_path) as engine:
            waiters = engine.polls.waiters

            async def waits(client_id: ClientId) -> bool:
                with waiters.listening(client_id) as news:
                    return await news.wait(60.0)

            all_waits = [asyncio.ensure_future(waits(ClientId(str(n)))) for n in range(10_000)]
            await asyncio.sleep(0)
            waiters.wake_all()
            assert all(await asyncio.gather(*all_waits))

    async def test_silent_client_stalls_no_longer_than_the_deadline(self, tmp_path):
        bench = Bench.of(4, minimum_clients=3, deadline_seconds=60)
        clock = FakeClock()

        async with running(bench, tmp_path, clock=clock) as engine:
            await gather(engine, range(4))
            for number in range(3):
                await upload(engine, bench, number)
            clock.advance(59)
            await engine.tick()
            assert engine.run.state.published == 0
            clock.advance(2)
            await engine.tick()
            assert engine.run.state.published == 1
            await gather(engine, range(3))
            assert len(current(engine.run.state).asked) == 3, "the silent one is not asked again"
