"""What the coordinator remembers of each client's last update, and that it ends when set back."""

from __future__ import annotations

import asyncio

import pytest
from server.support.driving import gather, poll, running, upload, wait
from server.support.federations import Bench, identity
from server.support.serving import settings_of
from structlog.testing import capture_logs

from fedrec.errors import StateWentBack
from fedrec.ids import RoundId
from fedrec.wire.messages import Remembered
from fedrec_server.app import Coordinator


async def test_a_client_that_remembers_another_update_is_told_at_once(tmp_path):
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        await gather(engine, range(3))
        assert (await poll(engine, 0)).latest is None
        await upload(engine, bench, 0)
        told = await poll(engine, 0)
        assert told.latest is not None and told.latest.header is not None
        header = told.latest.header
        assert (header.round, header.client_id) == (1, identity(0).client_id)
        assert (await wait(engine, 0, seconds=0.0)).latest is None
        # Of another digest, of a later round, and of nothing that was ever sent.
        for other in (
            Remembered(acknowledged_round=RoundId(1), acknowledged_digest=b"x" * 32),
            Remembered(),
        ):
            me = identity(0).client_id
            with capture_logs() as logs:
                found = await engine.polls.next_task(me, engine.run.name, RoundId(0), 60.0, other)
            assert found.latest == told.latest
            (line,) = logs
            assert (line["event"], line["client"]) == (
                "client remembers another update", identity(0).public.label,
            )  # fmt: skip
            assert (line["remembered_round"], line["held_round"]) == (other.acknowledged_round, 1)
        await engine.stop_run(at_once=True)
    async with running(bench, tmp_path) as engine:
        # The round was given up, and the process is another one.
        assert engine.run.state.published == 0
        assert (await poll(engine, 0)).latest == told.latest
        assert (await poll(engine, 1)).latest is None


async def test_it_knows_nothing_of_who_says_it_was_acknowledged(tmp_path):
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        said = Remembered(acknowledged_round=RoundId(4), acknowledged_digest=b"x" * 32)
        me = identity(0).client_id
        found = await engine.polls.next_task(me, engine.run.name, RoundId(0), 60.0, said)
        assert found.latest is not None and found.latest.header is None


def test_a_coordinator_that_was_set_back_ends(tmp_path):
    made = Coordinator(settings_of(tmp_path), Bench.of(3).federation)

    def proved(address: str, run: str) -> None:
        made.engine.rollbacks.halt(RoundId(4))

    with pytest.raises(StateWentBack, match="older than the run") as told:
        asyncio.run(made.serve(proved))
    assert "newest folder" in told.value.remedy
