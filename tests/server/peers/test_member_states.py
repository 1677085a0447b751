"""What operators are told that each member does: one value behind every view of it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace

import pytest
from server.support.driving import gather, poll, running, upload, wait
from server.support.federations import Bench, authority, credentials, identity, operator
from server.support.serving import serving
from world.clock import FakeClock

from fedrec.errors import FedrecError, NotInRoster, VersionMismatch, WrongIdentity
from fedrec.wire.admin_link import AdminLink, MemberState, RunStatus
from fedrec.wire.grpc_calls import from_rpc_error
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import Wait
from fedrec.wire.v1 import coordinator_pb2
from fedrec.wire.v1.coordinator_pb2_grpc import CoordinatorStub
from fedrec_server.engine import Engine
from fedrec_server.peers.member_states import STARTING_SECONDS
from fedrec_server.run.presence import LIVE_SECONDS
from fedrec_server.run_status import status_of


def label(number: int) -> str:
    return identity(number).public.label


def status(engine: Engine) -> RunStatus:
    return RunStatus.of(status_of(engine, last_event=0))


def of(engine: Engine, number: int) -> MemberState:
    """Return what is told of a client."""
    return next(one for one in status(engine).members if one.name == label(number))


async def test_what_a_client_does_from_its_start_to_its_end(tmp_path):
    bench, clock = Bench.of(3, reveals=True), FakeClock()
    me = identity(2).client_id

    async with running(bench, tmp_path, clock=clock) as engine:
        presence = engine.run.presence
        told = of(engine, 2)
        assert (told.state, told.why) == ("away", "not heard from since the coordinator started")
        assert told.heard == 0.0
        presence.joined(me, "0.2.0")
        told = of(engine, 2)
        assert (told.state, told.version, told.heard) == ("starting", "0.2.0", clock.now())
        clock.advance(STARTING_SECONDS + 1)
        told = of(engine, 2)
        assert told.state == "away" and told.why.startswith("joined 10 min ago")
        presence.heard(me)
        assert of(engine, 2).state == "waiting"
        await gather(engine, range(3))
        for number in range(3):
            await poll(engine, number)
        assert [of(engine, number).state for number in range(3)] == ["training"] * 3
        for number in range(2):
            await upload(engine, bench, number)
        assert [of(engine, number).state for number in range(3)] == [
            "waiting", "waiting", "training",
        ]  # fmt: skip
        # It trains without a call, for as long as the round waits for it.
        clock.advance(LIVE_SECONDS + 1)
        assert of(engine, 2).state == "training"
        engine.polls.end(me, "")
        for number in range(2):
            engine.run.presence.heard(identity(number).client_id)
        found = status(engine)
        assert [one.state for one in found.members] == ["stopped", "waiting", "waiting"]
        assert found.members[0].name == label(2) and found.clients_here == 2
        assert (found.members[0].heard, found.now) == (clock.now(), clock.now())
        assert found.awaited == (label(2),)
        presence.heard(me)
        assert of(engine, 2).state == "training"


async def test_who_is_killed_is_away_once_the_round_is_over_or_it_fell_silent(tmp_path):
    bench, clock = Bench.of(3, minimum_clients=2, deadline_seconds=100), FakeClock()

    async with running(bench, tmp_path, clock=clock) as engine:
        await gather(engine, range(3))
        for number in range(3):
            await poll(engine, number)
        for number in range(2):
            await upload(engine, bench, number)
        clock.advance(99)
        assert of(engine, 2).state == "training"
        clock.advance(2)
        await engine.tick()
        for number in range(2):
            engine.run.presence.heard(identity(number).client_id)
        found = status(engine)
        assert found.members[0].state == "away" and found.members[0].name == label(2)
        assert (found.clients_here, found.clients_seen) == (2, 3)
        counted = of(engine, 0)
        assert (counted.last_counted, counted.bytes_counted) == (1, len(bench.payload(0, 1)))
        assert (of(engine, 2).last_counted, of(engine, 2).bytes_counted) == (0, 0)
    async with running(bench, tmp_path, clock=clock) as engine:
        assert of(engine, 0).last_counted == 1, "it outlives a restart"
        assert of(engine, 0).bytes_counted == len(bench.payload(0, 1))
        assert of(engine, 0).state == "away"


def test_who_did_not_answer_a_round_that_was_given_up_is_away(tmp_path):
    bench, clock = Bench.of(3, deadline_seconds=20, minimum_clients=3), FakeClock()

    async def scenario() -> tuple[str, str]:
        async with running(bench, tmp_path, clock=clock) as engine:
            await gather(engine, range(3))
            await poll(engine, 2)
            for number in range(2):
                await upload(engine, bench, number)
            clock.advance(21)
            await engine.tick()
            told = of(engine, 2)
            return told.state, told.why

    assert asyncio.run(scenario()) == ("away", "did not answer in the abandoned round")


async def test_members_of_a_paused_cell(tmp_path):
    bench, clock = Bench.of(6, reveals=True), FakeClock()

    async with running(bench, tmp_path, clock=clock) as engine:
        run = engine.run
        run.state = replace(run.state, rules=run.state.rules.without([2]))
        for number in (3, 4):
            run.presence.heard(identity(number).client_id)
        assert [of(engine, number).state for number in (3, 4, 5)] == [
            "paused", "paused", "away",
        ]  # fmt: skip
        assert of(engine, 3).why.startswith("cell 2: waits for the key authority")


async def test_a_goodbye_answers_what_its_client_waits_for(tmp_path):
    bench = Bench.of(3, reveals=True)
    me = identity(0).client_id

    async with running(bench, tmp_path) as engine:
        waiting = asyncio.ensure_future(wait(engine, 0))
        while me not in engine.run.presence.waiters:
            await asyncio.sleep(0)
        engine.polls.end(me, "")
        task = await asyncio.wait_for(waiting, 10)
        assert task.task == Wait()
        assert me not in engine.run.presence.live(), "its last answer does not bring it back"
        assert of(engine, 0).state == "stopped"
        await poll(engine, 0)
        assert of(engine, 0).state == "waiting"


def test_a_client_says_goodbye_for_itself_alone(tmp_path):
    stranger = authority().issuer.credentials("client", "stranger")
    with (
        serving(Bench.of(3), tmp_path) as server,
        closing(AdminLink(server.address, operator())) as admin,
    ):
        server.come(range(3))
        with server.link(0) as link, pytest.raises(WrongIdentity):
            link.goodbye(identity(1).client_id, "")
        with server.link(stranger) as link, pytest.raises(NotInRoster):
            link.goodbye(identity(1).client_id, "")
        with server.link(0) as link, pytest.raises(FedrecError, match="code of an error"):
            link.goodbye(identity(0).client_id, "Any words!")
        assert admin.status().clients_here == 3
        with server.link(1) as link:
            link.goodbye(identity(1).client_id, "")
        found = admin.status()
        assert (found.clients_here, found.members[0].name) == (2, label(1))
        assert found.members[0].state == "stopped"


def test_why_a_client_cannot_start(tmp_path):
    with (
        serving(Bench.of(3), tmp_path) as server,
        closing(AdminLink(server.address, operator())) as admin,
    ):
        with GrpcLink(server.address, credentials(0)) as link:
            link.federation(identity(0).client_id)
            link.goodbye(identity(0).client_id, "plan_mismatch")
        with GrpcLink(server.address, credentials(1)) as link:
            link.goodbye(identity(1).client_id, "of_a_later_release")
        with server.channel(2) as channel:
            request = coordinator_pb2.GetFederationRequest(
                protocol_version="7.0", client_id=identity(2).client_id, release="0.0.9"
            )
            with pytest.raises(Exception) as refused:
                CoordinatorStub(channel).GetFederation(request, timeout=20)
            assert isinstance(from_rpc_error(refused.value), VersionMismatch)
        found = admin.status()
    told = {one.name: one for one in found.members}
    assert {one.state for one in found.members} == {"cannot_start"}
    assert told[label(0)].why == ("error [plan_mismatch] The settings differ from the federation's")
    assert told[label(1)].why == "error [of_a_later_release]"
    assert told[label(2)].why.startswith("error [version_mismatch] The peer uses another")
    assert told[label(2)].version == "0.0.9"
    assert "stopped" in found.waits_for and "[plan_mismatch]" in found.waits_for
