"""Messages that wait together: one transaction, a refusal for each, one look at what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest
from server.support.driving import gather
from server.support.federations import identity
from server.support.masked import Masked, masked

from fedrec.errors import ConflictingUpload, ProtocolError, StorageError
from fedrec.ids import ClientId
from fedrec.wire.messages import StepMessage, StepTask
from fedrec_server import stepped_rounds
from fedrec_server.rounds.selection import has_all
from fedrec_server.rounds.state import Round, Rules


async def made_by(world: Masked, number: int) -> StepMessage:
    """Return a client's next message after its keys without sending it."""
    engine, client_id = world.engine, identity(number).client_id
    task = (
        await engine.polls.next_task(client_id, engine.run.name, engine.run.state.published, 0.0)
    ).task
    assert isinstance(task, StepTask)
    raw = await engine.steps.material(client_id, task.round, task.step)
    made = world.clients[number].step(task, lambda round_id, step: raw)
    assert isinstance(made, StepMessage)
    return made


def signed(message: StepMessage, number: int, body: bytes) -> StepMessage:
    changed = replace(message, body=body, signature=b"")
    return replace(changed, signature=identity(number).sign(changed.statement()))


async def together(world: Masked, *messages: StepMessage) -> list[bool | BaseException]:
    """Have messages wait for one another; return what became of them, in their order."""
    engine = world.engine
    async with engine.run.lock:
        tasks = [asyncio.ensure_future(engine.steps.hear(each)) for each in messages]
        while len(engine.steps._arrived) < len(tasks):
            assert not any(task.done() for task in tasks)
            await asyncio.sleep(0)
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_messages_that_wait_together_share_a_transaction(tmp_path):
    points: list[str] = []

    async with masked(tmp_path, 5, failpoint=points.append) as world:
        await world.to_phase("sharing")
        messages = [await made_by(world, number) for number in range(4)]
        points.clear()
        found = await together(world, *messages, messages[0])
        # Which of the equal ones came first does not matter.
        assert sorted(map(bool, found)) == [False] * 4 + [True]
        assert points.count("rows.committed") == 1
        assert points.count("masks.ack") == 4
        assert points.index("rows.committed") < points.index("masks.ack")
        while world.engine.run.state.published == 0:
            await world.all_act()
        assert world.published(1).tolist() == world.sum_of(range(5), 1).tolist()


def test_first_messages_are_rarely_held_against_all_cells(tmp_path, monkeypatch):
    looked: list[int] = []

    def counting(rules: Rules, round_: Round, here: Collection[ClientId]) -> bool:
        looked.append(len(here))
        return has_all(rules, round_, here)

    monkeypatch.setattr(stepped_rounds, "has_all", counting)

    async def scenario() -> None:
        async with masked(tmp_path, 9, cells_per_round=2, over_provision=1.5) as world:
            await gather(world.engine, range(9))
            # Of three cells of three: after four messages two cells lack three at least.
            for number in (0, 3, 6, 1, 4, 7, 2, 5):
                await world.act(number)
                await world.engine.run.work.settled()
            assert world.round.phase == "sharing"

    asyncio.run(scenario())
    assert looked == [4, 7, 8]


async def test_a_message_that_does_not_fit_is_refused_alone(tmp_path):
    async with masked(tmp_path, 5) as world:
        await world.to_phase("sharing")
        messages = [await made_by(world, number) for number in range(4)]
        malformed = signed(messages[1], 1, b"\xff")
        found = await together(world, messages[0], malformed, messages[2], messages[3])
        assert [answer for answer in found if isinstance(answer, bool)] == [False] * 3
        assert isinstance(found[1], ProtocolError)
        with pytest.raises(ConflictingUpload):
            await world.send(signed(messages[2], 2, messages[3].body))
        assert len(world.round.sent("shares")) == 3
        assert not await world.send(messages[1])
        while world.engine.run.state.published == 0:
            await world.all_act()
        assert world.published(1).tolist() == world.sum_of(range(5), 1).tolist()


async def test_a_message_that_breaks_the_collector_is_refused_alone(tmp_path, monkeypatch):
    async with masked(tmp_path, 5) as world:
        await world.to_phase("sharing")
        messages = [await made_by(world, number) for number in range(4)]
        hear = world.engine.collection.hear  # type: ignore[union-attr]

        def breaking(round_: object, message: StepMessage) -> None:
            if message is messages[1]:
                raise ArithmeticError("a defect")
            hear(round_, message)

        with monkeypatch.context() as patch:
            patch.setattr(world.engine.collection, "hear", breaking)
            found = await together(world, *messages)
        assert [answer for answer in found if isinstance(answer, bool)] == [False] * 3
        assert isinstance(found[1], ArithmeticError)
        assert not await world.send(messages[1])
        while world.engine.run.state.published == 0:
            await world.all_act()
        assert world.published(1).tolist() == world.sum_of(range(5), 1).tolist()


async def test_a_commit_that_fails_refuses_all_that_it_was_for(tmp_path):
    failing: list[bool] = []

    def failpoint(name: str) -> None:
        if name == "rows.begin" and failing:
            raise StorageError("The disk is full.")

    async with masked(tmp_path, 5, failpoint=failpoint) as world:
        await world.to_phase("sharing")
        messages = [await made_by(world, number) for number in range(4)]
        failing.append(True)
        found = await together(world, *messages)
        failing.clear()
        assert all(isinstance(answer, StorageError) for answer in found)
        assert world.round.sent("shares") == {}
        assert await together(world, *messages) == [False] * 4
        while world.engine.run.state.published == 0:
            await world.all_act()
        assert world.published(1).tolist() == world.sum_of(range(5), 1).tolist()
