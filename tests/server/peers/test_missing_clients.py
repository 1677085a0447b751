"""Whom a round waits for, in words that say who has to do what."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace

import pytest
from server.support.driving import gather, poll, running
from server.support.federations import Bench, authority, identity, operator
from server.support.serving import serving
from structlog.testing import capture_logs
from world.cells import partition_of
from world.clock import FakeClock

from fedrec.identity.application import SignedApplication
from fedrec.identity.certificates import key_of
from fedrec.identity.identity import Identity
from fedrec.wire.admin_link import AdminLink
from fedrec_server.engine import Engine
from fedrec_server.peers.member_states import unplaced, waits_for


def words(engine: Engine) -> str:
    return waits_for(engine.run.state, engine.run.federation.keys.roster, engine.run.presence)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(10, "here"), (59, "59 s"), (300, "5 min"), (3 * 3600, "3 h"), (2 * 86_400, "2 d")],
)
def test_one_of_three_is_away(tmp_path, seconds, told):
    bench, clock = Bench.of(3, reveals=True), FakeClock()
    label = identity(2).public.label

    async def scenario() -> str:
        async with running(bench, tmp_path, clock=clock) as engine:
            engine.run.presence.heard(identity(2).client_id)
            clock.advance(max(seconds, 31.0))
            for number in range(2):
                engine.run.presence.heard(identity(number).client_id)
            if seconds < 31.0:
                engine.run.presence.heard(identity(2).client_id)
            return words(engine)

    found = asyncio.run(scenario())
    if seconds < 31.0:
        assert found == "", "all are here"
        return
    assert found == f"{label}, last heard {told} ago. The run continues by itself when it is back"


def test_nobody_came_yet(tmp_path):
    bench = Bench.of(5, reveals=True)

    async def scenario() -> str:
        async with running(bench, tmp_path) as engine:
            engine.run.presence.heard(identity(0).client_id)
            return words(engine)

    found = asyncio.run(scenario())
    first, second, third = (identity(number).public.label for number in (1, 2, 3))
    together = f"{first}, {second}, and {third}, not heard from since the coordinator started"
    assert found.startswith(together), "those of whom the same is told stand together"
    assert found.count("not heard from since the coordinator started") == 1
    assert found.endswith(", and 1 more. The run continues by itself when they are back")


def test_a_federation_that_forms_is_not_told_to_invite_others(tmp_path):
    bench = Bench.of(3, reveals=True)

    async def scenario() -> str:
        async with running(bench, tmp_path) as engine:
            run = engine.run
            nobody = replace(run.state, roster=frozenset())
            return waits_for(nobody, run.federation.keys.roster, run.presence)

    found = asyncio.run(scenario())
    assert found.startswith("the first clients: ") and "Start the others" in found
    assert "have applied. So far, none has. Start" in found
    assert "provision" not in found


def test_a_federation_that_forms_names_who_applied(tmp_path):
    bench = Bench.of(3)

    async def scenario() -> list[str]:
        told = []
        async with running(bench, tmp_path) as engine:
            run, applications = engine.run, engine.applications
            nobody = replace(run.state, roster=frozenset())
            for label in ("south", "north", "", "west"):
                invited = authority().issuer.credentials("invitation", label)
                who = Identity.create(label)
                signed = SignedApplication.make(who.public, invited).to_json()
                await applications.apply(signed, key_of(invited.certificate))
                roster = run.federation.keys.roster
                told.append(waits_for(nobody, roster, run.presence, applications.labels))
        return told

    one, two, unnamed, many = asyncio.run(scenario())
    assert "have applied. So far, south applied. Start the others" in one
    assert ". So far, north, and south applied. " in two
    assert len(unnamed) > len(two)
    assert ", and 1 more applied; " in many


def test_who_joined_and_asks_for_nothing_is_not_called_away(tmp_path):
    """A first start compiles for long; a client that ended with an error looks the same."""
    bench, clock = Bench.of(3, reveals=True), FakeClock()
    first, second, third = (identity(number) for number in range(3))

    async def scenario() -> list[str]:
        async with running(bench, tmp_path, clock=clock) as engine:
            presence, told = engine.run.presence, []
            for who in (first, second, third):
                presence.joined(who.client_id)
            assert not presence.live(), "no round counts on a client that is not ready"
            told.append(words(engine))
            clock.advance(120.0)
            told.append(words(engine))
            presence.heard(first.client_id)
            clock.advance(60.0)
            presence.joined(first.client_id)
            clock.advance(60.0)
            presence.heard(second.client_id)
            clock.advance(60.0)
            told.append(words(engine))
            assert presence.seen == {who.client_id for who in (first, second, third)}
        return told

    compiles = "A first start compiles for a while. Look at its terminal if that takes long"
    a, b, c = (who.public.label for who in (first, second, third))
    at_once, later, mixed = asyncio.run(scenario())
    assert (
        at_once == f"{a}, {b}, and {c}, joined just now, has not asked for a round yet. {compiles}"
    )
    assert (
        later == f"{a}, {b}, and {c}, joined 2 min ago, has not asked for a round yet. {compiles}"
    )
    assert mixed == (
        f"{c}, joined 5 min ago, has not asked for a round yet, {a}, joined 2 min ago, has not "
        f"asked for a round yet, and {b}, last heard 1 min ago. The run continues by itself when "
        f"they are back. {compiles}"
    )


def test_describing_the_federation_counts_as_heard(tmp_path):
    with serving(Bench.of(3), tmp_path) as server:
        with server.link(1) as link:
            link.federation(identity(1).client_id)
        with closing(AdminLink(server.address, operator())) as admin:
            found = admin.status()
    assert (found.clients_seen, found.clients_in_roster) == (1, 3)
    label = identity(1).public.label
    assert f"{label}, joined " in found.waits_for
    assert "has not asked for a round" in found.waits_for


def test_nobody_is_away_and_they_are_too_few(tmp_path):
    """One of five left for good, and the plan wants five: who joins is all that helps."""
    bench = Bench.of(4, reveals=True, minimum_clients=5)

    async def scenario() -> str:
        async with running(bench, tmp_path) as engine:
            for number in range(4):
                engine.run.presence.heard(identity(number).client_id)
            return words(engine)

    found = asyncio.run(scenario())
    assert found.startswith("more clients: 4 are left for sums, 5 are needed")
    assert "rounds.minimum_clients" in found and "`fedrec provision --add`" in found


def test_the_log_tells_once_of_a_wait_that_lasts(tmp_path):
    bench, clock = Bench.of(3, reveals=True), FakeClock()

    async def scenario() -> list[str]:
        with capture_logs() as logs:
            async with running(bench, tmp_path, clock=clock) as engine:
                for _ in range(8):
                    for number in range(2):
                        engine.run.presence.heard(identity(number).client_id)
                    await engine.tick()
                    clock.advance(20.0)
        return [line["waits_for"] for line in logs if line["event"] == "round waits"]

    (told,) = asyncio.run(scenario())
    assert told.startswith(identity(2).public.label)
    assert "continues by itself when it is back" in told


def test_the_papers_protocol_waits_for_anybody(tmp_path):
    bench = Bench.of(4, veiled=True, minimum_clients=3)

    async def scenario() -> tuple[str, str]:
        async with running(bench, tmp_path) as engine:
            for number in range(2):
                engine.run.presence.heard(identity(number).client_id)
            before = words(engine)
            engine.run.presence.heard(identity(2).client_id)
            return before, words(engine)

    before, after = asyncio.run(scenario())
    assert "not heard from since the coordinator started" in before
    assert after == ""


def test_a_folder_that_is_older_than_a_members_model_is_told_at_once(tmp_path):
    """Whatever else is waited for: also while a round collects without that member."""
    bench = Bench.of(4, minimum_clients=3)

    async def scenario() -> tuple[str, str, list[str]]:
        async with running(bench, tmp_path) as engine:
            with capture_logs() as logs:
                for _ in range(2):
                    await poll(engine, 3, version=7)
                alone = words(engine)
            await gather(engine, range(3))
            assert engine.run.state.current is not None
            return alone, words(engine), [line["event"] for line in logs]

    alone, within, logged = asyncio.run(scenario())
    name = identity(3).public.label
    assert alone == within
    assert alone.startswith(
        f"its newest folder: {name} reports round 7, but this folder ends with round 0. Stop"
    )
    assert logged == ["folder is older than the run"], "once"


def test_newcomers_that_wait_for_others_are_in_the_status():
    roster = Bench.of(4, reveals=True).federation.keys.roster
    assert unplaced(roster) == ""
    first = partition_of(identity(number).client_id for number in range(3))
    told = unplaced(replace(roster, partition=first))
    assert told.startswith(f"{identity(3).public.label}: newcomers are summed with at least 2 ")
    assert told.endswith("2 more have to join")
