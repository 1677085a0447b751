"""A coordinator without gRPC that ends in each phase and goes on with the same folder."""

from __future__ import annotations

from server.support.driving import (
    current,
    files,
    gather,
    play,
    poll,
    report,
    running,
    speak,
    upload,
)
from server.support.federations import Bench, identity
from world.clock import FakeClock

from fedrec.errors import StorageError
from fedrec.ids import RoundId
from fedrec.wire.messages import Finished, Train, Wait


class TestRestart:
    """The coordinator ends in each phase and goes on with the same state folder."""

    async def test_while_collecting(self, tmp_path):
        bench = Bench.of(3)

        async with running(bench, tmp_path) as engine:
            run = engine.run.name
            await gather(engine, range(3))
            await upload(engine, bench, 0)
        async with running(bench, tmp_path) as engine:
            assert engine.run.name == run
            assert current(engine.run.state).phase == "collecting"
            assert isinstance((await poll(engine, 1)).task, Train)
            assert isinstance((await poll(engine, 0)).task, Wait)
            await play(engine, bench, range(3))
            record = engine.run.store.next_published(RoundId(0))
            assert record is not None
            data = engine.run.store.spool.read(record.name, record.blob)
            assert data == bench.sum_of({0, 1, 2}, 1)

    async def test_while_summing(self, tmp_path):
        bench = Bench.of(3)

        seen: list[str] = []

        def full(name: str) -> None:
            seen.append(name)
            if seen.count("update.ack") == 3 and name == "draft.write":
                raise StorageError("The disk is full.")

        async with running(bench, tmp_path, failpoint=full) as engine:
            await gather(engine, range(3))
            for number in range(3):
                await upload(engine, bench, number)
            await engine.run.work.settled()
            assert current(engine.run.state).phase == "summing"
        async with running(bench, tmp_path) as engine:
            assert engine.run.state.published == 1
            await play(engine, bench, range(3))

    async def test_while_the_round_waits_for_the_key_authority(self, tmp_path):
        """However long it is away nothing is trained again."""
        bench, clock = Bench.of(3, reveals=True), FakeClock()

        async with running(bench, tmp_path, clock=clock) as engine:
            await gather(engine, range(3))
            for number in range(3):
                await upload(engine, bench, number)
            await engine.run.work.settled()
            before = current(engine.run.state)
            assert before.phase == "revealing"
            clock.advance(30 * 86_400.0)
            await engine.tick()
            assert current(engine.run.state) == before
        async with running(bench, tmp_path, clock=clock) as engine:
            assert current(engine.run.state).accepted == before.accepted
            clock.advance(30 * 86_400.0)
            await engine.tick()
            assert current(engine.run.state).phase == "revealing"
            await play(engine, bench, range(3))
            assert engine.run.state.abandoned == 0
            assert engine.run.store.published(RoundId(1)) is not None

    async def test_a_killed_client_costs_one_round(self, tmp_path):
        """Asked and silent, it is asked again when it comes back."""
        bench, clock = Bench.of(3, reveals=True), FakeClock()

        async with running(bench, tmp_path, clock=clock) as engine:
            await gather(engine, range(3))
            for number in range(2):
                await upload(engine, bench, number)
            deadline = current(engine.run.state).deadline_at
            clock.advance(deadline - clock.now() - 10.0)
            # Killed while it trained: it was heard of a moment ago.
            engine.run.presence.heard(identity(2).client_id)
            clock.advance(10.0)
            for _ in range(20):
                clock.advance(1.0)
                await gather(engine, range(2))
            assert engine.run.state.abandoned == 1 and engine.run.state.current is None
            await gather(engine, range(3))
            assert current(engine.run.state).number == 2
            await play(engine, bench, range(3))

    async def test_a_sum_that_the_key_authority_refuses(self, tmp_path):
        bench = Bench.of(3, reveals=True)

        async with running(bench, tmp_path) as engine:
            await gather(engine, range(3))
            for number in range(3):
                await upload(engine, bench, number)
            await engine.run.work.settled()
            await speak(engine, bench, refused="a client is listed twice")
            assert engine.run.state.abandoned == 1 and engine.run.state.published == 0
            (abandoned,) = (
                entry
                for entry in engine.run.store.entries(0, 100)
                if entry.kind == "round abandoned"
            )
            assert "refused the sum: a client is listed twice" in abandoned.fields_json
        assert files(tmp_path) == []

    async def test_while_clients_report(self, tmp_path):
        """One word is durable; with a second one after the restart the round is measured."""
        bench = Bench.of(3, veiled=True)

        async with running(bench, tmp_path) as engine:
            await gather(engine, range(3))
            for number in range(3):
                await upload(engine, bench, number)
            await engine.run.work.settled()
            assert engine.run.state.published == 1 and engine.run.state.current is None
            await report(engine, bench, 0)
            waiting = engine.run.state.reporting
            assert waiting is not None and len(waiting.reports) == 1
        async with running(bench, tmp_path) as engine:
            assert engine.run.state.reporting is not None
            assert engine.run.state.reporting.reports == waiting.reports
            await report(engine, bench, 0)
            assert engine.run.state.reporting is not None, "the same client again"
            await report(engine, bench, 1)
            assert engine.run.state.reporting is None
            await play(engine, bench, range(3))

    async def test_after_the_end(self, tmp_path):
        bench = Bench.of(3)

        async with running(bench, tmp_path) as engine:
            await play(engine, bench, range(3))
        async with running(bench, tmp_path) as engine:
            assert engine.finished.is_set()
            assert isinstance((await poll(engine, 0)).task, Finished)

    async def test_with_a_new_epoch_abandons_the_round(self, tmp_path):
        bench = Bench.of(3)
        async with running(bench, tmp_path) as engine:
            await gather(engine, range(3))
            await upload(engine, bench, 0)
        bench = Bench.of(4, epoch=2)
        async with running(bench, tmp_path) as engine:
            assert engine.run.state.current is None and engine.run.state.abandoned == 1
            await play(engine, bench, range(4))
            assert engine.run.state.published == 4, "round 1 was abandoned, 2 to 4 published"
