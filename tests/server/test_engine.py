"""The engine: its chain of models, restarts and stops."""

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing

import pytest
from world.clock import FakeClock
from world.engine import (
    REVEALER,
    SEALED_BYTES,
    Bench,
    act,
    collect,
    credentials,
    current,
    epoch_of,
    files,
    gather,
    identity,
    play,
    poll,
    report,
    running,
    speak,
    upload,
)
from world.serving import serving, with_page

from fedrec.errors import (
    AuthorityIsOld,
    CoordinatorStopping,
    FedrecError,
    NotInRoster,
    StorageError,
)
from fedrec.ids import RoundId
from fedrec.wire.messages import Finished, Remembered, Reveal, Train, Wait
from fedrec_server.page.serving import Page
from fedrec_server.store.state_folder import back_up


class TestWholeRun:
    async def test_without_protection_publishes_exact_sums(self, tmp_path):
        bench = Bench.of(3, total=2)

        async with running(bench, tmp_path) as engine:
            await play(engine, bench, range(3))
            record = engine.run.store.next_published(RoundId(1))
            assert record is not None and record.kind == "train" and record.known is None
            data = engine.run.store.spool.read(record.name, record.blob)
            assert data == bench.sum_of({0, 1, 2}, 2)
            entries = engine.run.store.entries(0, 1000)
            published = [e for e in entries if e.kind == "round published"]
            assert [e.round for e in published] == [1, 2, 3, 4]
            fields = json.loads(published[1].fields_json)
            wanted = bench.metrics_of({0, 1, 2}, 2)
            assert fields["metrics"][0] == int.from_bytes(wanted[:8], "little")
            assert fields["counted"] == 3
            assert entries[-1].kind == "run finished"
            task = await poll(engine, 0)
            assert isinstance(task.task, Finished) and not task.task.failed
        assert [name.split("/")[0] for name in files(tmp_path)] == ["blobs"] * 4

    async def test_what_is_published_does_not_depend_on_the_log(self, tmp_path):
        bench = Bench.of(3, total=2)

        async with running(bench, tmp_path / "running") as engine:
            await play(engine, bench, range(3))
            await engine.run.work.settled()
            shutil.copytree(tmp_path / "running" / "state", tmp_path / "killed")
        (tmp_path / "killed" / "coordinator.sqlite-wal").write_bytes(b"")
        with closing(sqlite3.connect(tmp_path / "killed" / "coordinator.sqlite")) as rows:
            query = "SELECT max(round) FROM rounds WHERE phase = 'published'"
            assert rows.execute(query).fetchone() == (4,)

    async def test_the_key_authoritys_word_publishes(self, tmp_path):
        bench = Bench.of(4, reveals=True)

        async with running(bench, tmp_path) as engine:
            await play(engine, bench, range(4))
            record = engine.run.store.next_published(RoundId(0))
            assert record is not None and record.statement is not None
            assert engine.run.store.spool.read(record.name, record.blob) == b"honest" * SEALED_BYTES
        assert len(files(tmp_path)) == 3, "only the published sums are left"

    async def test_where_clients_decrypt_the_ciphertext_sum_is_published(self, tmp_path):
        bench = Bench.of(4, veiled=True)

        async with running(bench, tmp_path) as engine:
            await play(engine, bench, range(4))
            record = engine.run.store.next_published(RoundId(1))
            assert record is not None and record.statement is None
            data = engine.run.store.spool.read(record.name, record.blob)
            assert data == bench.sum_of(set(range(4)), 2)
            news = [entry.kind for entry in engine.run.store.entries(0, 1000)]
            assert news.count("round published") == news.count("round measured") == 3
            assert news[-2:] == ["round measured", "run finished"]
        assert len(files(tmp_path)) == 3

    async def test_ciphertext_sums_are_kept_for_twenty_rounds(self, tmp_path):
        """Whoever is further behind is told of nothing, and others are asked for a copy."""
        bench = Bench.of(5, veiled=True, total=25)

        async with running(bench, tmp_path) as engine:
            await gather(engine, range(4))
            while engine.run.state.published < 24:
                for number in range(4):
                    await act(engine, bench, number)
                await engine.tick()
            await engine.run.work.settled()
            kept = [engine.run.store.published(RoundId(n)) for n in range(1, 25)]
            assert [bool(one and one.name) for one in kept] == [False] * 4 + [True] * 20
            sums = [name for name in files(tmp_path) if name.endswith("-sum")]
            assert len(sums) == 20
            assert engine.snapshots.worth_making(RoundId(3))
            assert not engine.snapshots.worth_making(RoundId(4))
            behind = RoundId(2)
            assert not engine.snapshots.may_miss(identity(4).client_id, behind)
            assert engine.snapshots.may_miss(identity(4).client_id, behind), "it came back"
        async with running(bench, tmp_path) as engine:
            await engine.run.work.settled()
            assert [name for name in files(tmp_path) if name.endswith("-sum")] == sums

    async def test_stop_after_the_round(self, tmp_path):
        bench = Bench.of(3, total=5)

        async with running(bench, tmp_path) as engine:
            await gather(engine, range(3))
            await engine.stop_run(at_once=False)
            assert engine.run.state.ending is None
            await play(engine, bench, range(3))
            assert engine.finished.is_set()
            assert engine.run.state.rounds_published == 1

    async def test_reveal_tasks_are_for_the_key_authority(self, tmp_path):
        bench = Bench.of(4, reveals=True)

        async with running(bench, tmp_path) as engine:
            await collect(engine, bench, range(4))
            tasks = [(await poll(engine, number)).task for number in range(4)]
            assert not [task for task in tasks if isinstance(task, Reveal)]
            assert isinstance((await poll(engine, REVEALER)).task, Reveal)


async def test_a_statement_follows_the_last_one(tmp_path):
    bench = Bench.of(3, reveals=True)

    async with running(bench, tmp_path) as engine:
        await collect(engine, bench, range(3))
        await speak(engine, bench, sequence=4)
        record = engine.run.store.published(RoundId(1))
        assert record is not None and record.statement is not None
        before = record.statement
        assert before.sequence == 4
        await collect(engine, bench, range(3))
        for wrong in ({"sequence": 3}, {"sequence": 4}, {"sequence": 5}):
            with pytest.raises(AuthorityIsOld, match="does not follow statement 4"):
                await speak(engine, bench, **wrong)
        assert engine.run.state.published == 1
        await speak(engine, bench, sequence=5, previous=before.digest())
        assert engine.run.state.published == 2


async def test_a_backup_of_a_round_that_was_published_since_is_older(tmp_path):
    """Members may have a word that is on its way still; whoever said it and went on sends it no
    more, and the round would wait for ever.
    """
    bench = Bench.of(3, reveals=True)

    async with running(bench, tmp_path) as engine:
        await collect(engine, bench, range(3))
        await asyncio.to_thread(back_up, tmp_path / "state", tmp_path / "older" / "state")
        await speak(engine, bench)
        record = engine.run.store.published(RoundId(1))
        text = Remembered(statement=record.statement)
    async with running(bench, tmp_path / "older") as engine:
        for number in (0, REVEALER):
            assert not engine.run.halted.is_set()
            me = identity(number).client_id
            await engine.polls.next_task(me, engine.run.name, RoundId(1), 0.0, text)
        assert engine.run.halted.is_set()


async def test_nothing_is_opened_for_who_knows_more(tmp_path):
    """A set-back coordinator must not count those as there who are ahead of it."""
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        for number in range(3):
            me = identity(number).client_id
            found = await engine.polls.next_task(
                me, engine.run.name, RoundId(4), 60.0, Remembered()
            )
            assert found.published_round == 0
        await engine.tick()
        assert engine.run.state.current is None


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
            data = engine.run.store.spool.read(record.name, record.blob)
            assert data == bench.sum_of({0, 1, 2}, 1)

    async def test_while_summing(self, tmp_path):
        bench = Bench.of(3)

        seen: list[str] = []

        def full(name):
            seen.append(name)
            if seen.count("update.ack") == 3 and name == "draft.write":
                raise StorageError("The disk is full.")

        async with running(bench, tmp_path, failpoint=full) as engine:
            await collect(engine, bench, range(3))
            assert current(engine.run.state).phase == "summing"
        async with running(bench, tmp_path) as engine:
            assert engine.run.state.published == 1
            await play(engine, bench, range(3))

    async def test_while_the_round_waits_for_the_key_authority(self, tmp_path):
        """However long it is away nothing is trained again."""
        bench, clock = Bench.of(3, reveals=True), FakeClock()

        async with running(bench, tmp_path, clock=clock) as engine:
            await collect(engine, bench, range(3))
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
            await collect(engine, bench, range(3))
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
            await collect(engine, bench, range(3))
            assert engine.run.state.published == 1 and engine.run.state.current is None
            await report(engine, bench, 0)
            waiting = engine.run.state.reporting
            assert waiting is not None and len(waiting.reports) == 1
        async with running(bench, tmp_path) as engine:
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


JOINED = 3
"""A member of epoch 2 that is none of the epoch in the coordinator's settings."""


def test_a_stop_is_no_refusal_while_the_page_closes(tmp_path, monkeypatch):
    """Browsers may keep the page open for seconds; members call meanwhile."""
    bench, news = Bench.of(3), []
    closed = Page.close
    with serving(bench, tmp_path, prepare=with_page()) as found, found.link(JOINED) as link:
        later = epoch_of(bench.federation.protection, 4, number=2)
        found.do(found.coordinator.engine.rotation.install(later.to_json()))
        me = identity(JOINED).client_id
        assert link.federation(me).epoch == 2

        def ask():
            with pytest.raises(FedrecError) as refused:
                link.federation(me)
            news.append(refused.value)

        async def close(page):
            await asyncio.to_thread(ask)
            await closed(page)

        monkeypatch.setattr(Page, "close", close)
        found.stop()
    (error,) = news
    assert isinstance(error, CoordinatorStopping), error
    assert str(error).startswith("The coordinator is stopping.") and not error.incident


def test_a_refusal_names_the_epoch_that_it_is_about(tmp_path):
    bench = Bench.of(3)
    with serving(bench, tmp_path) as found:
        later = epoch_of(bench.federation.protection, 2, number=2)
        with found.link(2) as removed:
            assert removed.federation(identity(2).client_id).epoch == 1
            found.do(found.coordinator.engine.rotation.install(later.to_json()))
            with pytest.raises(NotInRoster) as refused:
                removed.federation(identity(2).client_id)
            assert refused.value.epoch == 2
        with found.link(credentials(7)) as stranger, pytest.raises(NotInRoster) as refused:
            stranger.federation(identity(7).client_id)
        assert refused.value.epoch == 2
