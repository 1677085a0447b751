"""A newer key epoch while a round under masks is open, in each of its steps."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest
from server.support.driving import wait
from server.support.federations import identity
from server.support.masked import Masked, epoch_of, federation_of, masked

from fedrec.errors import NotInRoster, RoundClosed
from fedrec.identity.epoch import KeyEpoch
from fedrec.ids import ClientId, RoundId
from fedrec.protection import Masks
from fedrec.wire.messages import StepMessage, StepTask, Train, UploadHeader

BEFORE = ("collecting", "sharing", "masking")
TOLD = ("signing", "unmasking")
PHASES = (*BEFORE, *TOLD)
N_CLIENTS = 5
N_AFTER = 8
"""With three who came: one alone would have no cell to be summed with."""


def later(world: Masked, *numbers: int) -> KeyEpoch:
    protection = world.federation.protection
    assert isinstance(protection, Masks)
    return epoch_of(protection, numbers, epoch=2, previous=world.federation.keys.roster)


async def made_by(world: Masked, number: int) -> StepMessage | tuple[UploadHeader, bytes]:
    """Return a client's next message without sending it."""
    engine, client_id = world.engine, identity(number).client_id
    task = (
        await engine.polls.next_task(client_id, engine.run.name, engine.run.state.published, 0.0)
    ).task
    if isinstance(task, Train):
        return world.clients[number].advertise(task)
    assert isinstance(task, StepTask)
    raw = await engine.steps.material(client_id, task.round, task.step)
    return world.clients[number].step(task, lambda round_id, step: raw)


def counted(world: Masked, round_id: int) -> set[ClientId]:
    record = world.engine.run.store.published(RoundId(round_id))
    assert record is not None
    assert {header.epoch for header in record.contributions} == {record.epoch}
    return {header.client_id for header in record.contributions}


def ids(*numbers: int) -> set[ClientId]:
    return {identity(number).client_id for number in numbers}


@pytest.mark.parametrize("phase", BEFORE)
def test_without_a_member_the_round_is_abandoned_and_the_next_is_of_the_new_epoch(tmp_path, phase):
    async def scenario() -> None:
        async with masked(tmp_path, N_CLIENTS) as world:
            engine = world.engine
            await world.to_phase(phase)
            for number in (0, 3):
                await world.act(number)
            stale = await made_by(world, 1)
            assert await engine.rotation.install(later(world, 0, 1, 2, 3).to_json()) == (2, True)
            await engine.run.work.settled()
            assert (engine.run.state.abandoned, engine.run.state.abandoned_in_row) == (1, 0)
            assert engine.run.state.rules.epoch == 2
            with pytest.raises(RoundClosed, match="epoch 1 is over"):
                await world.send(stale)
            with pytest.raises(RoundClosed):
                await engine.steps.material(identity(1).client_id, RoundId(1), "shares")
            with pytest.raises(NotInRoster):
                await world.act(4)
            world.enrol(range(4))
            while engine.run.state.published == 0:
                await world.all_act()
            number = int(engine.run.state.published)
            assert number == 2
            assert counted(world, number) == ids(0, 1, 2, 3)
            assert world.published(number).tolist() == world.sum_of(range(4), number).tolist()
            record = engine.run.store.published(RoundId(number))
            assert record is not None and record.epoch == 2

    asyncio.run(scenario())
    with sqlite3.connect(tmp_path / "state" / "coordinator.sqlite") as rows:
        reasons = rows.execute("SELECT reason FROM rounds WHERE phase = 'abandoned'").fetchall()
        kept = rows.execute("SELECT count(*) FROM mask_messages WHERE round = 1").fetchall()
    assert reasons == [("the key epoch changed",)]
    assert kept == [(0,)]


@pytest.mark.parametrize("phase", TOLD)
async def test_once_survivors_are_told_the_round_ends_with_the_removed_member(tmp_path, phase):
    """Given up and repeated without that member, the two sums would give its update away."""
    async with masked(tmp_path, N_CLIENTS) as world:
        engine = world.engine
        await world.to_phase(phase)
        await world.act(0)
        assert await engine.rotation.install(later(world, 0, 1, 2, 3).to_json()) == (2, False)
        while engine.run.state.published == 0:
            await world.all_act()
        assert counted(world, 1) == ids(*range(N_CLIENTS))
        assert engine.run.state.rules.epoch == 2
        world.enrol(range(4))
        while engine.run.state.ending is None:
            await world.all_act()
        assert engine.run.state.abandoned == 0
        assert counted(world, 2) == ids(0, 1, 2, 3)


@pytest.mark.parametrize("phase", PHASES)
async def test_with_more_members_the_round_ends_in_its_own_epoch(tmp_path, phase):
    async with masked(tmp_path, N_CLIENTS) as world:
        engine = world.engine
        await world.to_phase(phase)
        await world.act(0)
        joined = later(world, *range(N_AFTER))
        assert await engine.rotation.install(joined.to_json()) == (2, False)
        while engine.run.state.published == 0:
            await world.all_act()
        assert counted(world, 1) == ids(*range(N_CLIENTS))
        assert world.published(1).tolist() == world.sum_of(range(N_CLIENTS), 1).tolist()
        assert engine.run.state.rules.epoch == 2
        world.enrol(range(N_AFTER))
        while engine.run.state.ending is None:
            await world.all_act()
        assert engine.run.state.abandoned == 0
        assert counted(world, 3) == ids(*range(N_AFTER))
        wanted = world.sum_of(range(N_AFTER), 3)
        assert world.published(3).tolist() == wanted.tolist()


@pytest.mark.parametrize("phase", PHASES)
async def test_a_restart_begins_the_newest_epoch_and_says_why_the_round_ended(tmp_path, phase):
    federation = federation_of(N_CLIENTS)

    async with masked(tmp_path, N_CLIENTS, federation=federation) as world:
        await world.to_phase(phase)
        await world.act(0)
        joined = later(world, *range(N_AFTER))
        assert await world.engine.rotation.install(joined.to_json()) == (2, False)
    async with masked(tmp_path, N_CLIENTS, federation=federation) as world:
        assert world.engine.run.state.rules.epoch == 2
        assert world.engine.run.state.abandoned == 1
        assert world.engine.run.state.abandoned_in_row == 0
        world.enrol(range(N_AFTER))
        while world.engine.run.state.published == 0:
            await world.all_act()
        assert world.engine.run.state.published == 2
        # Who is here first opens it; three later ones are of the next, all together.
        while world.engine.run.state.published == 2:
            await world.all_act()
        assert counted(world, 3) == ids(*range(N_AFTER))


async def test_who_waits_for_a_step_hears_of_the_epoch_at_once(tmp_path):
    async with masked(tmp_path, N_CLIENTS) as world:
        engine = world.engine
        await world.to_phase("masking")
        await world.act(0)
        waits = asyncio.ensure_future(wait(engine, 0))
        await asyncio.sleep(0)
        await engine.rotation.install(later(world, 0, 1, 2, 3).to_json())
        told = await waits
        assert told.epoch == 2
