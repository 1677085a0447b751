"""Rounds under masks at the coordinator, without a wire: steps, drop-outs, restarts."""

import asyncio
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
from world.engine import identity
from world.light import Masked, federation_of, masked, play_round, signed

from fedrec.errors import (
    BadSignature,
    ConflictingUpload,
    MalformedUpdate,
    ProtocolError,
    RoundClosed,
    StorageError,
)
from fedrec.ids import RoundId
from fedrec.protection.masks.messages import keys_from_bytes, keys_to_bytes
from fedrec.wire.messages import Train
from fedrec_server.rounds.selection import awaited
from fedrec_server.run.presence import BACK_SECONDS

STEP_SECONDS = 30.0
PHASES = ("sharing", "masking", "signing", "unmasking")


def table(folder, query):
    with sqlite3.connect(folder / "state" / "coordinator.sqlite") as rows:
        return rows.execute(query).fetchall()


@pytest.mark.parametrize("n_clients", [3, 5, 12, 40])
async def test_the_published_sum_is_the_sum(tmp_path, n_clients):
    async with masked(tmp_path, n_clients) as world:
        await world.to_end()
        for round_id in (1, 2, 3):
            wanted = world.sum_of(range(n_clients), round_id)
            assert np.array_equal(world.published(round_id), wanted)
        published = [
            entry
            for entry in world.engine.run.store.entries(0, 10_000)
            if entry.kind == "round published"
        ]
        assert f'"metrics": {world.sum_of(range(n_clients), 3)[-2:].tolist()}' in (
            published[-1].fields_json
        )
    assert table(tmp_path, "SELECT count(*) FROM mask_messages") == [(0,)]


@pytest.mark.parametrize("phase", PHASES)
async def test_a_client_that_drops_out_in_a_step(tmp_path, phase):
    """Its cell's sum is lost with it, but both others of the cell help with those of the rest."""
    async with masked(tmp_path, 9) as world:
        await world.to_phase(phase)
        await world.all_act(without=[2])
        assert world.engine.run.state.published == 0
        if phase == "unmasking":
            # Enough answered; the others get a third of the time, and no more.
            world.clock.advance(STEP_SECONDS / 3 + 1)
        else:
            world.clock.advance(STEP_SECONDS + (31 if phase == "masking" else 1))
        await world.engine.tick()
        if phase in ("sharing", "masking"):
            await world.to_phase("unmasking", without=[2])
            assert len(world.round.accepted) == 6
            assert len(world.round.sent("signature")) == 8
        await world.to_sum([2])
        gone = {0, 1, 2} if phase in ("sharing", "masking") else set()
        wanted = world.sum_of(set(range(9)) - gone, 1)
        assert np.array_equal(world.published(1), wanted)


@pytest.mark.parametrize("phase", ["signing", "unmasking"])
async def test_a_restart_after_a_cell_was_left_out_goes_on_with_its_help(tmp_path, phase):
    federation = federation_of(9)

    async with masked(tmp_path, 9, federation=federation) as world:
        await world.to_phase("masking")
        await world.all_act(without=[2])
        world.clock.advance(STEP_SECONDS + 31)
        await world.engine.tick()
        await world.to_phase(phase, without=[2])
        await world.act(0)
        await world.act(5)
        clients, before = world.clients, world.round
    async with masked(tmp_path, 9, federation=federation) as world:
        world.clients = clients
        assert world.round.messages == before.messages
        assert world.round.accepted == before.accepted
        assert before.sent("vector").keys() == {identity(n).client_id for n in (0, 1)}
        await world.to_sum([2])
        assert np.array_equal(world.published(1), world.sum_of(range(3, 9), 1))
    assert table(tmp_path, "SELECT count(*) FROM mask_messages") == [(0,)]


async def test_of_one_cell_none_may_drop_out(tmp_path):
    async with masked(tmp_path, 5) as world:
        await world.to_phase("masking")
        await world.all_act(without=[2])
        world.clock.advance(STEP_SECONDS + 31)
        await world.engine.tick()
        assert (world.engine.run.state.abandoned, world.engine.run.state.published) == (1, 0)
    reasons = table(tmp_path, "SELECT reason FROM rounds WHERE phase = 'abandoned'")
    assert reasons == [("Too few whole cells are left with 4 clients",)]


async def test_no_round_opens_that_clients_would_take_for_a_trap(tmp_path):
    """Nine members, of whom one may be corrupt: a cell of three is no list, though it is whole."""
    async with masked(tmp_path, 9, cells_per_round=1) as world:
        assert len(world.round.asked) == 6
        live = frozenset(identity(number).client_id for number in range(3))
        idle = replace(world.engine.run.state, current=None)
        assert awaited(idle, live) == "clients"
        more = live | {identity(number).client_id for number in range(6)}
        assert awaited(idle, more) == ""


@pytest.mark.parametrize("phase", ["collecting", *PHASES])
async def test_of_three_none_may_drop_out(tmp_path, phase):
    async with masked(tmp_path, 3) as world:
        await world.to_phase(phase)
        await world.all_act(without=[2])
        world.clock.advance(100)
        await world.engine.tick()
        assert world.engine.run.state.abandoned == 1
        assert world.engine.run.state.published == 0
        # The next round starts afresh, and works.
        while world.engine.run.state.published == 0:
            await world.engine.tick()
            await world.all_act()
        assert world.engine.run.state.published == 2


@pytest.mark.parametrize("phase", PHASES)
async def test_a_restart_in_a_step_goes_on_with_the_same_sets(tmp_path, phase):
    federation = federation_of(5)

    async with masked(tmp_path, 5, federation=federation) as world:
        await world.to_phase(phase)
        for number in (0, 3):
            await world.act(number)
        clients, before = world.clients, world.round
    async with masked(tmp_path, 5, federation=federation) as world:
        world.clients = clients
        assert world.round.messages == before.messages
        assert world.round.accepted == before.accepted
        assert world.round.phase == phase
        await world.to_sum()
        assert np.array_equal(world.published(1), world.sum_of(range(5), 1))


async def test_a_round_that_failed_after_its_survivors_were_told_is_repeated_by_whoever_is_there(
    tmp_path,
):
    """Both sums may be known: they differ by a whole cell."""
    async with masked(tmp_path, 9) as world:
        engine = world.engine
        await world.to_phase("unmasking")
        await world.all_act(without=[6, 7, 8])
        world.clock.advance(STEP_SECONDS + 1)
        await engine.tick()
        assert engine.run.state.abandoned == 1
        while engine.run.state.published == 0:
            await engine.tick()
            await world.all_act(without=[6, 7, 8])
        number = int(engine.run.state.published)
        assert np.array_equal(world.published(number), world.sum_of(range(6), number))
    reasons = table(tmp_path, "SELECT reason FROM rounds WHERE phase = 'abandoned'")
    assert reasons[0] == ("Too few clients answered to recover all clients' secrets",)


async def test_messages_count_once_and_in_their_step(tmp_path):
    async with masked(tmp_path, 4) as world:
        first, other = await world.message(0), await world.message(0)
        assert not await world.engine.steps.hear(first)
        assert await world.engine.steps.hear(first)
        with pytest.raises(ConflictingUpload):
            await world.engine.steps.hear(other)
        with pytest.raises(BadSignature):
            await world.engine.steps.hear(replace(other, body=first.body[:-1]))
        with pytest.raises(RoundClosed, match="no step shares"):
            await world.engine.steps.material(identity(0).client_id, RoundId(1), "shares")
        assert len(world.round.sent("keys")) == 1


async def test_an_answer_that_gives_nothing_is_no_answer(tmp_path):
    """Else whoever sends it would count as there, and never be left alone as silent clients are."""
    async with masked(tmp_path, 4) as world:
        await world.to_phase("unmasking")
        honest = await world.message(0)
        with pytest.raises(MalformedUpdate, match="none of the shares of 4 clients"):
            await world.engine.steps.hear(signed(0, honest, b""))
        assert not world.round.sent("answer")
        assert not await world.engine.steps.hear(honest)
        await world.to_sum()
        assert np.array_equal(world.published(1), world.sum_of(range(4), 1))


@pytest.mark.parametrize("which", ["mask", "share", "equal"])
async def test_keys_that_no_client_could_use_end_no_clients_round(tmp_path, which):
    """The point 0 has order 2, and 1 order 4: whatever they are combined with gives zeros."""
    async with masked(tmp_path, 5) as world:
        task = await world.task(2)
        assert isinstance(task, Train)
        message = world.clients[2].advertise(task)
        keys, base_state = keys_from_bytes(message.client_id, message.body)
        bad = {
            "mask": {"mask_key": (1).to_bytes(32, "little")},
            "share": {"share_key": bytes(32)},
            "equal": {"share_key": keys.mask_key},
        }[which]
        who, terms = identity(2), world.clients[2]._terms(task)
        forged = replace(keys, **bad, signature=b"")
        forged = replace(forged, signature=who.sign(forged.statement(terms)))
        wrong = replace(message, body=keys_to_bytes(forged, base_state))
        wrong = replace(wrong, signature=who.sign(wrong.statement()))
        with pytest.raises(MalformedUpdate):
            await world.engine.steps.hear(wrong)
        await world.to_sum()
        assert np.array_equal(world.published(1), world.sum_of(range(5), 1))


async def test_keys_must_be_of_the_round_and_its_owner(tmp_path):
    async with masked(tmp_path, 4) as world:
        task = await world.task(0)
        assert isinstance(task, Train)
        honest = world.clients[0].advertise(task)
        keys, _ = keys_from_bytes(honest.client_id, honest.body)
        another_model = keys_to_bytes(keys, b"x" * 32)
        with pytest.raises(BadSignature):
            await world.engine.steps.hear(signed(0, honest, another_model))
        wrong = world.clients[1].advertise(replace(task, kind="evaluate"))
        with pytest.raises(BadSignature):
            await world.engine.steps.hear(wrong)
        with pytest.raises(ProtocolError):
            await world.engine.steps.hear(signed(0, honest, b"\xff"))


async def test_whoever_starts_from_another_model_is_left_out(tmp_path, monkeypatch):
    from world import light

    async with masked(tmp_path, 9) as world:
        with monkeypatch.context() as patch:
            patch.setattr(light, "BASE_STATE", b"x" * 32)
            await world.act(8)
        await world.to_sum([8])
        assert np.array_equal(world.published(1), world.sum_of(range(6), 1))


def failing_once(name, world, phase):
    left = [1]

    def failpoint(found):
        if found == name and world and world[0].round.phase == phase and left[0]:
            left[0] -= 1
            raise StorageError("The disk is full.")

    return failpoint


@pytest.mark.parametrize("phase", PHASES)
async def test_what_could_not_be_stored_was_never_heard(tmp_path, phase):
    known: list[Masked] = []

    failpoint = failing_once("rows.begin", known, phase)
    async with masked(tmp_path, 5, failpoint=failpoint) as world:
        await world.to_phase(phase)
        known.append(world)
        held = world.round.messages, world.round.accepted
        made = await world.made(1)
        with pytest.raises(StorageError):
            await world.send(made)
        assert (world.round.messages, world.round.accepted) == held
        assert not await world.send(made)
        await world.to_sum()
        assert np.array_equal(world.published(1), world.sum_of(range(5), 1))


@pytest.mark.long
def test_a_thousand_clients_of_whom_a_tenth_drops_out(tmp_path):
    """Half before their vectors, so that 50 cells of three are in no sum, and half after."""
    before, after = range(0, 1000, 20), range(1, 1000, 20)
    counted = asyncio.run(play_round(tmp_path, 1000, before=before, after=after))
    assert counted == 850


@pytest.mark.parametrize("phase", ["collecting", *PHASES])
async def test_a_guest_that_said_goodbye_is_not_waited_for_in_any_step(tmp_path, phase):
    guest = 6

    found = federation_of(7, n_guests=1)
    async with masked(tmp_path, 7, federation=found) as world:
        await world.to_phase(phase)
        round_ = world.round
        world.engine.polls.end(identity(guest).client_id, "")
        await world.all_act(without=[guest])
        await world.engine.tick()
        assert world.round.phase in (phase, "unmasking")
        assert world.engine.run.state.published == 0
        world.clock.advance(BACK_SECONDS)
        await world.engine.tick()
        for _ in PHASES:
            await world.all_act(without=[guest])
            await world.engine.tick()
        assert world.clock.now() < round_.opened_at + STEP_SECONDS
        assert world.engine.run.state.published == 1, "it waited for the step's deadline"
        counted = range(7) if phase in ("signing", "unmasking") else range(6)
        assert np.array_equal(world.published(1), world.sum_of(counted, 1))


async def test_the_others_steps_wait_for_a_core_member_that_said_goodbye(tmp_path):
    async with masked(tmp_path, 6) as world:
        await world.to_phase("masking")
        world.engine.polls.end(identity(5).client_id, "")
        await world.all_act(without=[5])
        world.clock.advance(BACK_SECONDS)
        await world.engine.tick()
        assert world.round.phase == "masking"
        await world.act(5)
        await world.to_phase("unmasking")
        await world.all_act()
        assert np.array_equal(world.published(1), world.sum_of(range(6), 1))
