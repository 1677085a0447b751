"""Rounds that the key authority alone can open."""

from __future__ import annotations

from dataclasses import replace

import pytest
from server.support.made_messages import AUTHORITY, blob, client, rules, statement
from server.support.world import World
from world.cells import partition_of

from fedrec.errors import NotInRoster, ProtocolError, RefusedError, RoundClosed
from fedrec.ids import RoundId
from fedrec.wire.messages import Finished, Reveal, Wait
from fedrec_server.polling import task_for
from fedrec_server.rounds.changes import (
    EpochBegan,
    RoundAbandoned,
    RoundOpened,
    RoundPublished,
    SumKept,
)
from fedrec_server.rounds.events import (
    EpochInstalled,
    Polled,
    Restarted,
    StatementReceived,
    StopRequested,
    Tick,
)
from fedrec_server.rounds.selection import awaited

REVEALER = client(AUTHORITY)


def run(n_clients: int = 4, **rounds: float) -> World:
    found = rules(needs_reveal=True, **rounds)
    return World.new(replace(found, revealer=REVEALER), n_clients)


def revealing(**rounds: float) -> World:
    world = run(**rounds)
    world.tick(0, 1, 2, AUTHORITY)
    for number in range(3):
        world.upload(number)
    world.sum()
    return world


def test_a_round_opens_while_the_authority_is_away():
    """What it closes with waits for the authority: nothing is trained in vain."""
    world = run()
    (opened,) = world.tick(0, 1, 2)
    assert isinstance(opened, RoundOpened)
    assert awaited(world.state, frozenset(map(client, range(3)))) == ""


def test_a_round_given_up_says_that_others_are_missing():
    """Three of four are enough by their number, and not without the fourth."""
    found = rules(needs_reveal=True, minimum_clients=3, deadline_seconds=10)
    partition = partition_of(map(client, range(4)))
    world = World.new(replace(found, revealer=REVEALER, partition=partition), 4)
    world.tick(0, 1, 2, 3)
    for number in range(3):
        world.upload(number)
    (abandoned,) = world.tick(0, 1, 2, 3, seconds=11)
    assert isinstance(abandoned, RoundAbandoned)
    assert abandoned.reason == "1 without whom the others are not summed did not answer in time"


def test_the_authority_is_no_client_of_a_round():
    world = run()
    assert world.tick(0, 1, AUTHORITY) == (), "it does not count among the three that are needed"
    (opened,) = world.tick(0, 1, 2, AUTHORITY)
    assert isinstance(opened, RoundOpened)
    assert opened.asked == {client(0), client(1), client(2)}
    assert task_for(world.state, REVEALER, world.state.published, world.now) is None
    assert world.apply(Polled(now=world.now, client_id=REVEALER)) == ()
    with pytest.raises(NotInRoster):
        world.upload(AUTHORITY)


def test_a_client_that_comes_late_may_join():
    """There is no draw that it could have been left out of."""
    world = run()
    world.tick(0, 1, 2, AUTHORITY)
    assert world.apply(Polled(now=world.now, client_id=client(3)))


def test_its_word_is_enough():
    world = revealing()
    found = task_for(world.state, REVEALER, world.state.published, world.now)
    assert found is not None and isinstance(found.task, Reveal)
    assert len(found.task.contributions) == 3
    (published,) = world.speak()
    assert isinstance(published, RoundPublished)
    assert published.statement is not None
    assert published.statement.client_id == REVEALER
    assert published.metrics == bytes(8)
    assert world.state.base_state == published.statement.state_tag


def test_nobody_else_is_asked_or_heard():
    world = revealing()
    for number in range(4):
        assert task_for(world.state, client(number), world.state.published, world.now) is None
        said = statement(world.state, client(number))
        with pytest.raises(RefusedError, match="key authority alone"):
            world.apply(StatementReceived(now=world.now, statement=said, blob=blob("honest")))


@pytest.mark.parametrize("sealed", [None, "another"])
def test_a_word_without_the_sealed_sum(sealed):
    world = revealing()
    said = statement(world.state, REVEALER)
    found = None if sealed is None else blob(sealed)
    with pytest.raises(ProtocolError, match="sealed sum"):
        world.apply(StatementReceived(now=world.now, statement=said, blob=found))


def test_a_closed_round_waits_as_long_as_it_takes():
    """Nothing is trained again, and no update is taken any more."""
    world = revealing()
    round_ = world.state.current
    for _ in range(3):
        assert world.tick(0, 1, 2, 3, seconds=30 * 86_400.0) == ()
        with pytest.raises(RoundClosed):
            world.upload(3)
    world.apply(Restarted(now=world.now))
    assert world.tick(seconds=86_400.0) == ()
    assert world.state.current is not None and round_ is not None
    assert world.state.current.accepted == round_.accepted
    assert isinstance(world.speak()[-1], RoundPublished)
    assert [change.round for change in world.published] == [1]


def test_a_sum_that_it_refuses_is_given_up():
    world = revealing()
    (abandoned,) = world.speak(refused="too few clients.")
    assert isinstance(abandoned, RoundAbandoned)
    assert abandoned.reason == "the key authority refused the sum: too few clients"
    with pytest.raises(RoundClosed):
        world.apply(
            StatementReceived(
                now=world.now,
                statement=replace(statement(revealing().state, REVEALER), refused="again"),
                blob=None,
            )
        )
    (opened,) = world.tick(0, 1, 2)
    assert isinstance(opened, RoundOpened) and opened.round == 2


def test_an_operator_need_not_wait_for_it():
    world = revealing()
    assert len(world.apply(StopRequested(now=world.now, at_once=False))) == 1
    assert world.state.current is not None
    changes = world.apply(StopRequested(now=world.now, at_once=True))
    assert any(isinstance(change, RoundAbandoned) for change in changes)


def test_a_removal_waits_for_its_word_and_another_authority_does_not():
    """The round over the removed member may be open already; another revealer has no key for it."""
    world = revealing()
    left = world.state.roster - {client(3)}
    newer = replace(world.state.rules, epoch=2)
    assert world.apply(EpochInstalled(now=world.now, rules=newer, roster=left)) == ()
    other = replace(newer, revealer=client(AUTHORITY + 1))
    event = EpochInstalled(now=world.now, rules=other, roster=world.state.roster)
    abandoned, began = world.apply(event)
    assert isinstance(abandoned, RoundAbandoned) and isinstance(began, EpochBegan)
    assert abandoned.reason == "the key epoch changed"


def test_a_whole_run():
    world = run(total=2)
    for _ in range(4):
        world.tick(0, 1, 2, AUTHORITY)
        for number in range(3):
            world.upload(number)
        assert isinstance(world.sum()[-1], SumKept)
        world.speak()
    assert [change.kind for change in world.published] == ["count", "train", "train", "evaluate"]
    world.check_end()
    found = task_for(world.state, REVEALER, world.state.published, world.now)
    assert found is not None and isinstance(found.task, Finished)


def test_it_catches_up_like_everybody():
    world = revealing()
    world.speak()
    world.apply(Tick(now=world.now, live=frozenset()))
    found = task_for(world.state, REVEALER, RoundId(0), world.now)
    assert found is not None and found.task == Wait(reason="catch up")
