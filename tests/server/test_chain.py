"""The coordinator takes the key authority's statements in their order, and no two of a number."""

from __future__ import annotations

import asyncio

import pytest
from server.support.driving import gather, running, speak, upload
from server.support.federations import REVEALER, Bench, identity

from fedrec.errors import AuthorityIsOld
from fedrec.ids import RoundId
from fedrec.wire.messages import Remembered
from fedrec_server.store.state_folder import back_up


async def test_a_statement_follows_the_last_one(tmp_path):
    bench = Bench.of(3, reveals=True)

    async with running(bench, tmp_path) as engine:
        await gather(engine, range(3))
        for number in range(3):
            await upload(engine, bench, number)
        await engine.tick()
        await speak(engine, bench, sequence=4)
        record = engine.run.store.published(RoundId(1))
        assert record is not None and record.statement is not None
        before = record.statement
        assert before.sequence == 4
        await gather(engine, range(3))
        for number in range(3):
            await upload(engine, bench, number)
        await engine.tick()
        for wrong in ({"sequence": 3}, {"sequence": 4}, {"sequence": 5}):
            with pytest.raises(AuthorityIsOld, match="does not follow 4, on round 1"):
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
        await gather(engine, range(3))
        for number in range(3):
            await upload(engine, bench, number)
        await engine.tick()
        await asyncio.to_thread(back_up, tmp_path / "state", tmp_path / "older" / "state")
        await speak(engine, bench)
        record = engine.run.store.published(RoundId(1))
        assert record is not None
        said = Remembered(statement=record.statement)
    async with running(bench, tmp_path / "older") as engine:
        for number in (0, REVEALER):
            assert not engine.run.halted.is_set()
            me = identity(number).client_id
            await engine.polls.next_task(me, engine.run.name, RoundId(1), 0.0, said)
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
