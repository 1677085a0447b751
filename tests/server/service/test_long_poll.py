"""Clients that wait, and clients that hang up."""

import asyncio
import os
import threading

import pytest
from world.clock import FakeClock
from world.engine import Bench, current, gather, identity, pieces, poll, running, upload, wait

from fedrec.errors import NotInRoster, ProtocolError
from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import Train, Wait
from fedrec_server.rounds.selection import has_room, joining
from fedrec_server.store import durable_files
from fedrec_server.store.durable_files import Draft
from fedrec_server.uploads.updates import IncomingUpdate


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

        def hold(name):
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

    async def test_a_client_that_cannot_join_a_full_round_waits_for_no_other(self, tmp_path):
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

            async def waits(client_id):
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


@pytest.mark.parametrize("place", ["draft.write", "draft.synced", "folder.synced"])
async def test_the_file_stays_open_until_it_is_unused(tmp_path, place):
    bench = Bench.of(3)
    reached, go_on = threading.Event(), threading.Event()

    def failpoint(name):
        if name == place:
            reached.set()
            assert go_on.wait(60)

    async with running(bench, tmp_path, failpoint=failpoint) as engine:
        await gather(engine, range(3))
        payload = bench.payload(0, 1, 0)
        header = bench.header(0, 1, payload, engine.run.name)
        incoming = IncomingUpdate(engine.run, engine.updates, header)

        calling = asyncio.ensure_future(incoming.take(pieces(payload)))
        await asyncio.to_thread(reached.wait, 60)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        leaving = asyncio.ensure_future(incoming.leave())
        await asyncio.wait((leaving,), timeout=0.05)
        assert not leaving.done()
        go_on.set()
        await leaving
        await engine.run.work.settled()
        counted = len(engine.run.state.current.accepted)
        assert counted == (0 if place == "draft.write" else 1)
        left = [path.stat().st_size for path in tmp_path.rglob("partial/*")]
        assert left == ([] if counted else [len(payload)])


def test_who_hangs_up_while_a_file_is_opened_leaves_none_open(tmp_path, monkeypatch):
    bench = Bench.of(3)
    reached, go_on = threading.Event(), threading.Event()
    opened, paths = list[str](), list[str]()

    class Slow(Draft):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            opened.append(f"/proc/self/fd/{self._file}")
            reached.set()
            assert go_on.wait(60)

    monkeypatch.setattr(durable_files, "Draft", Slow)

    async def hang_up():
        async with running(bench, tmp_path) as engine:
            await gather(engine, range(3))
            payload = bench.payload(0, 1, 0)
            header = bench.header(0, 1, payload, engine.run.name)
            calling = asyncio.ensure_future(engine.updates.receive(header, pieces(payload)))
            await asyncio.to_thread(reached.wait, 60)
            paths.append(os.readlink(opened[0]))
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            go_on.set()

    asyncio.run(hang_up())
    # Threads and loop have ended, with what waited in it; another file may have the number.
    assert os.path.realpath(opened[0]) != paths[0]
