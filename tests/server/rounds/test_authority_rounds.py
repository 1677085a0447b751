"""Rounds that the key authority alone can open."""

from __future__ import annotations

from dataclasses import replace

import pytest
from server.support.world import AUTHORITY, World, blob, client, rules, statement

from fedrec.errors import NotInRoster, ProtocolError, RefusedError
from fedrec.identity.metrics_lock import share_of
from fedrec.ids import RoundId
from fedrec.wire.messages import Finished, Reveal, Wait
from fedrec_server.rounds.changes import (
    HolderAsked,
    RoundAbandoned,
    RoundOpened,
    RoundPublished,
)
from fedrec_server.rounds.events import Polled, Restarted, Spoke, Tick
from fedrec_server.rounds.machine import awaited
from fedrec_server.rounds.tasks import task_for

REVEALER = client(AUTHORITY)


def run(n_clients: int = 4, **rounds: float) -> World:
    found = rules(needs_reveal=True, **{"reveal_timeout_seconds": 30.0, **rounds})
    return World.new(replace(found, revealer=REVEALER), n_clients)


def revealing(**rounds: float) -> World:
    world = run(**rounds)
    world.tick(0, 1, 2, AUTHORITY)
    for number in range(3):
        world.upload(number)
    world.sum()
    return world


def current(world: World) -> tuple[str, ...]:
    assert world.state.current is not None
    return tuple(holder.client_id for holder in world.state.current.holders)


def test_no_round_opens_while_the_authority_is_away() -> None:
    """Nobody trains what nobody could open."""
    world = run()
    assert world.tick(0, 1, 2, 3) == ()
    clients = frozenset(map(client, range(4)))
    assert awaited(world.state, clients) == "the key authority, which opens the sums"
    assert awaited(world.state, frozenset({client(0), REVEALER})) == "clients"
    (opened,) = world.tick(0, 1, 2, 3, AUTHORITY)
    assert isinstance(opened, RoundOpened)
    assert opened.committee == (REVEALER,)
    assert awaited(world.state, clients) == ""


def test_the_authority_is_no_client_of_a_round() -> None:
    world = run()
    assert world.tick(0, 1, AUTHORITY) == (), "it does not count among the three that are needed"
    (opened,) = world.tick(0, 1, 2, AUTHORITY)
    assert isinstance(opened, RoundOpened)
    assert opened.asked == {client(0), client(1), client(2)}
    assert task_for(world.state, REVEALER, world.state.published, world.now) is None
    assert world.apply(Polled(now=world.now, client_id=REVEALER)) == ()
    with pytest.raises(NotInRoster):
        world.upload(AUTHORITY)


def test_a_client_that_comes_late_may_join() -> None:
    """There is no draw that it could have been left out of."""
    world = run()
    world.tick(0, 1, 2, AUTHORITY)
    assert world.apply(Polled(now=world.now, client_id=client(3)))


def test_its_word_is_enough() -> None:
    world = revealing()
    assert current(world) == (REVEALER,)
    found = task_for(world.state, REVEALER, world.state.published, world.now)
    assert found is not None and isinstance(found.task, Reveal)
    assert (found.task.role, found.task.committee) == ("reveal", (REVEALER,))
    _, published = world.speak(REVEALER)
    assert isinstance(published, RoundPublished)
    assert [word.statement.client_id for word in published.words] == [REVEALER]


def test_nobody_else_is_asked_or_heard() -> None:
    world = revealing()
    for number in range(4):
        assert task_for(world.state, client(number), world.state.published, world.now) is None
        with pytest.raises(RefusedError, match="not asked"):
            world.speak(client(number))


def test_a_word_without_the_sealed_aggregate() -> None:
    world = revealing()
    with pytest.raises(ProtocolError, match="sealed aggregate"):
        world.speak(REVEALER, sealed=False)


def test_a_silent_authority() -> None:
    """The round waits for as long as a key holder may take, and says who was silent."""
    world = revealing()
    assert world.tick(0, 1, 2, seconds=29.0) == ()
    (abandoned,) = world.tick(0, 1, 2, seconds=2.0)
    assert isinstance(abandoned, RoundAbandoned)
    assert abandoned.reason == "the key authority did not reveal the sum within 30 seconds"
    assert world.tick(0, 1, 2) == (), "it is still away"
    (opened,) = world.tick(0, 1, 2, AUTHORITY)
    assert isinstance(opened, RoundOpened)


def test_a_restarted_coordinator_waits_for_it_again() -> None:
    world = revealing()
    world.now += 100.0
    world.apply(Restarted(now=world.now))
    assert world.tick(0, 1, 2, seconds=29.0) == ()
    assert isinstance(world.speak(REVEALER)[-1], RoundPublished)


def test_a_share_that_opens_nothing() -> None:
    """Two members' shares are needed for their box; the authority's is the whole key, or wrong."""
    world = revealing()
    assert world.state.current is not None
    said = statement(world.state, REVEALER)
    wrong = replace(said, share=share_of(bytes(32), b"another", 1, alone=True))
    event = Spoke(now=world.now, statement=wrong, blob=blob("honest"))
    abandoned = world.apply(event)[-1]
    assert isinstance(abandoned, RoundAbandoned)
    assert "key authority's share" in abandoned.reason


def test_a_whole_run() -> None:
    world = run(total=2)
    for _ in range(4):
        world.tick(0, 1, 2, AUTHORITY)
        for number in range(3):
            world.upload(number)
        assert isinstance(world.sum()[-1], HolderAsked)
        world.speak(REVEALER)
    assert [change.kind for change in world.published] == ["count", "train", "train", "evaluate"]
    world.check_end()
    found = task_for(world.state, REVEALER, world.state.published, world.now)
    assert found is not None and isinstance(found.task, Finished)


def test_it_catches_up_like_everybody() -> None:
    world = revealing()
    world.speak(REVEALER)
    world.apply(Tick(now=world.now, live=frozenset()))
    found = task_for(world.state, REVEALER, RoundId(0), world.now)
    assert found is not None and found.task == Wait(reason="catch up")
