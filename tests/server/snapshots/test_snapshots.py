"""Copies of the model for late joiners: asked for, taken in, doubted and replaced."""

import asyncio
import itertools

import pytest
from world.clock import FakeClock
from world.engine import Bench, act, files, gather, identity, poll, running, send_snapshot, wait

from fedrec.errors import RefusedError, RoundError
from fedrec.ids import RoundId
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import MakeSnapshot, Wait
from fedrec_server.snapshots import ASK_SECONDS, MOST_COMPLAINTS, SnapshotMakers

LATE = 4
GOOD, RUBBISH = b"the model", b"not the model"


def bench_of(*, veiled):
    return Bench.of(5, veiled=veiled, total=8, values=400)


async def two_rounds(engine, bench):
    """Publish two rounds without the late client; then 0, 1 and 2 have nothing to do."""
    await gather(engine, range(4))
    for number in itertools.cycle(range(4)):
        await act(engine, bench, number)
        if engine.run.state.published == 2 and engine.run.state.reporting is None:
            break
    for number in range(3):
        await act(engine, bench, number)


async def ask(engine, maker):
    """Let the late client come while only this one waits, which is asked therefore."""
    waiting = asyncio.ensure_future(wait(engine, maker, 2))
    await asyncio.sleep(0)
    late = await poll(engine, LATE, version=0)
    assert isinstance(late.task, Wait) and late.published_round == 2
    assert isinstance((await waiting).task, MakeSnapshot)


def here(engine, *refused):
    """Return the digest of the snapshot that a client with nothing is given."""
    found = engine.snapshots.for_client(RoundId(0), frozenset(refused))
    return None if found is None else found[0].blob.digest


async def served(engine, content):
    """Return the file that the late client is sent, which has this content."""
    found = await engine.exchange.for_client(identity(LATE).client_id, RoundId(0), frozenset())
    _, blob, file = found
    assert b"".join(file.chunk(at).data for at in file.offsets()) == content
    assert blob == Blob.of(content)
    return file


@pytest.mark.parametrize("veiled", [False, True])
async def test_a_late_joiner_gets_what_up_to_date_clients_made(tmp_path, veiled):
    bench, clock = bench_of(veiled=veiled), FakeClock()

    async with running(bench, tmp_path, clock=clock) as engine:
        await two_rounds(engine, bench)
        await ask(engine, 0)
        if veiled:
            with pytest.raises(RefusedError, match="the known model of its round"):
                await send_snapshot(engine, bench, 0, RUBBISH, "lie")
            clock.advance(ASK_SECONDS)
        else:
            await send_snapshot(engine, bench, 0, GOOD)
        assert here(engine) is None, "one word is not enough"
        await ask(engine, 1)
        await send_snapshot(engine, bench, 1, GOOD)
        assert here(engine) == Blob.of(GOOD).digest
        assert engine.snapshots.for_client(RoundId(2)) is None
        with pytest.raises(RoundError, match="already has a snapshot"):
            await send_snapshot(engine, bench, 0, GOOD)
    async with running(bench, tmp_path) as engine:
        assert here(engine) == Blob.of(GOOD).digest
        assert sum(name.startswith("snapshots/") for name in files(tmp_path)) == 1


@pytest.mark.parametrize("veiled", [False, True])
async def test_no_client_sends_one_without_being_asked(tmp_path, veiled):
    """What a member says of a published round is right, and still no client wanted its copy."""
    bench = bench_of(veiled=veiled)

    async with running(bench, tmp_path) as engine:
        await two_rounds(engine, bench)
        before = files(tmp_path)
        for number in range(4):
            with pytest.raises(RoundError, match="not asked for a snapshot of round 2"):
                await send_snapshot(engine, bench, number, RUBBISH)
        await ask(engine, 0)
        with pytest.raises(RoundError, match="was not asked"):
            await send_snapshot(engine, bench, 1, RUBBISH)
        assert here(engine) is None and files(tmp_path) == before
        await send_snapshot(engine, bench, 0, GOOD)
        with pytest.raises(RoundError):
            await send_snapshot(engine, bench, 0, RUBBISH)
        assert here(engine) in (None, Blob.of(GOOD).digest)


async def test_where_no_client_named_the_model_two_have_to_send_the_same(tmp_path):
    bench, clock = bench_of(veiled=False), FakeClock()

    async with running(bench, tmp_path, clock=clock) as engine:
        await two_rounds(engine, bench)
        for maker, data in ((0, GOOD), (1, RUBBISH)):
            await ask(engine, maker)
            await send_snapshot(engine, bench, maker, data)
        assert here(engine) is None
        clock.advance(ASK_SECONDS)
        await ask(engine, 2)
        await send_snapshot(engine, bench, 2, GOOD)
        assert here(engine) == Blob.of(GOOD).digest


async def test_a_copy_that_a_joiner_cannot_open_is_made_again_by_another_client(tmp_path):
    """The word that came with it is true; what is sealed, the coordinator cannot see."""
    bench = bench_of(veiled=True)
    bad, good = Blob.of(RUBBISH).digest, Blob.of(GOOD).digest

    async with running(bench, tmp_path) as engine:
        await two_rounds(engine, bench)
        await ask(engine, 0)
        await send_snapshot(engine, bench, 0, RUBBISH)
        assert here(engine) == bad and not engine.snapshots.worth_making(RoundId(0))
        joiner = identity(LATE).client_id
        file = await served(engine, RUBBISH)
        assert await served(engine, RUBBISH) is file, "a call reads no whole file"
        engine.snapshots.note_refused(joiner, frozenset({bytes(32)}))
        assert not engine.snapshots.worth_making(RoundId(0)), "it named another one"
        engine.snapshots.note_refused(joiner, frozenset({bad}))
        assert here(engine, bad) is None
        assert here(engine) == bad, "nobody knows who of them lies"
        # No pause, though a client was asked a moment ago.
        await ask(engine, 1)
        await send_snapshot(engine, bench, 1, GOOD)
        assert here(engine) == here(engine, bad) == good
        await served(engine, GOOD)
        assert sum(name.startswith("snapshots/") for name in files(tmp_path)) == 1
    async with running(bench, tmp_path) as engine:
        assert here(engine) == good


async def test_a_member_that_calls_good_copies_wrong_cannot_do_so_for_ever(tmp_path):
    bench = bench_of(veiled=True)
    good = Blob.of(GOOD).digest

    async with running(bench, tmp_path) as engine:
        await two_rounds(engine, bench)
        await ask(engine, 0)
        await send_snapshot(engine, bench, 0, GOOD)
        for time in range(MOST_COMPLAINTS):
            engine.snapshots.note_refused(identity(LATE).client_id, frozenset({good}))
            maker = 1 + time % 2
            await ask(engine, maker)
            # All who have the model make the same bytes, in a file of the same name.
            await send_snapshot(engine, bench, maker, GOOD)
            assert here(engine) == good
            assert sum(name.startswith("snapshots/") for name in files(tmp_path)) == 1
        engine.snapshots.note_refused(identity(LATE).client_id, frozenset({good}))
        assert not engine.snapshots.worth_making(RoundId(0))
        engine.snapshots.note_refused(identity(3).client_id, frozenset({good}))
        assert engine.snapshots.worth_making(RoundId(0)), "others are still heard"


async def test_who_comes_after_a_joiner_is_asked_at_once(tmp_path):
    """All others train while it joins; it need not ask a second time for the first who is idle."""
    bench = bench_of(veiled=True)

    async with running(bench, tmp_path) as engine:
        await two_rounds(engine, bench)
        await poll(engine, LATE, version=0)
        assert isinstance((await poll(engine, 0, version=2)).task, MakeSnapshot)
        assert isinstance((await poll(engine, 1, version=2)).task, Wait), "one is enough"
        await send_snapshot(engine, bench, 0, GOOD)
        assert isinstance((await poll(engine, 1, version=2)).task, Wait)
        engine.snapshots.note_refused(identity(LATE).client_id, frozenset({Blob.of(GOOD).digest}))
        await poll(engine, LATE, version=0)
        assert isinstance((await poll(engine, 0, version=2)).task, Wait), "its copy was refused"
        assert isinstance((await poll(engine, 1, version=2)).task, MakeSnapshot)


async def test_joiners_do_not_ask_each_other(tmp_path):
    """Neither has the model; asked all the same, it would keep the place for half a minute."""
    bench = Bench.of(6, veiled=True, total=8, values=400)

    async with running(bench, tmp_path) as engine:
        await two_rounds(engine, bench)
        await asyncio.gather(*(poll(engine, late, version=0) for late in (LATE, LATE + 1)))
        assert isinstance((await poll(engine, 0, version=2)).task, MakeSnapshot)


class TestMakers:
    CLIENTS = frozenset(identity(number).client_id for number in range(3))

    def test_others_come_before_the_silent_and_the_silent_before_the_distrusted(self):
        clock = FakeClock()
        makers = SnapshotMakers(clock)
        (first,) = makers.ask(self.CLIENTS, RoundId(2), 1)
        assert makers.ask(self.CLIENTS, RoundId(2), 1) == frozenset()
        makers.distrust(first)
        (second,) = makers.ask(self.CLIENTS, RoundId(2), 1)
        assert second != first
        clock.advance(ASK_SECONDS)
        (third,) = makers.ask(self.CLIENTS, RoundId(2), 1)
        assert {first, second, third} == self.CLIENTS
        clock.advance(ASK_SECONDS)
        assert makers.ask(frozenset({first, second}), RoundId(2), 1) == {second}
        clock.advance(ASK_SECONDS)
        assert makers.ask(frozenset({first}), RoundId(2), 1) == {first}

    def test_who_is_slow_may_send_all_the_same_but_once(self):
        """A large model on a slow line takes longer than the pause before others are asked."""
        clock = FakeClock()
        makers = SnapshotMakers(clock)
        (slow,) = makers.ask(self.CLIENTS, RoundId(2), 1)
        clock.advance(ASK_SECONDS)
        makers.ask(self.CLIENTS - {slow}, RoundId(2), 1)
        assert not makers.has_task(slow, RoundId(2))
        assert makers.may_send(slow, RoundId(2)) and not makers.may_send(slow, RoundId(3))
        makers.answered(slow)
        assert not makers.may_send(slow, RoundId(2))
