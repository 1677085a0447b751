"""Cells that the key authority names: out of the round, and of later ones until a new roster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conformance.store_suite import IDENTITY, durable, entry
from server.support.made_messages import AUTHORITY, blob, client, rules, statement
from server.support.world import World
from world.cells import partition_of

from fedrec.errors import ProtocolError
from fedrec.wire.messages import RevealStatement
from fedrec_server.rounds.changes import CellsPaused, RoundAbandoned, RoundOpened, RoundPublished
from fedrec_server.rounds.events import EpochInstalled, Polled, StatementReceived, UpdatesUnfit
from fedrec_server.rounds.state import Rules
from fedrec_server.store.sqlite import SqliteStore

REVEALER = client(AUTHORITY)
SECOND = frozenset(map(client, range(3, 6)))


def cell_rules(n_clients: int = 6, *, exact: bool = False, **rounds: float) -> Rules:
    found = rules(needs_reveal=True, exact=exact, **rounds)
    return replace(found, revealer=REVEALER, partition=partition_of(map(client, range(n_clients))))


def revealing(world: World, n_clients: int = 6) -> World:
    """Bring a round with all clients to where the authority is asked."""
    world.tick(*range(n_clients))
    for number in range(n_clients):
        world.upload(number)
    world.sum()
    return world


def said(world: World, *paused: int, refused: str = "") -> RevealStatement:
    found = replace(statement(world.state, REVEALER, refused=refused), paused=paused)
    if refused:
        return found
    assert world.state.current is not None
    left_out = world.state.rules.partition.members_of(paused)
    kept = world.state.current.manifest_digest("run", left_out)
    return replace(found, manifest_digest=kept)


def speak(world: World, *paused: int, refused: str = "") -> tuple[object, ...]:
    word = said(world, *paused, refused=refused)
    sealed = None if refused else blob("honest")
    return world.apply(StatementReceived(now=world.now, statement=word, blob=sealed))


def test_the_round_is_published_over_the_others():
    world = revealing(World.new(cell_rules(), 6))
    paused, published = speak(world, 2)
    assert isinstance(paused, CellsPaused) and isinstance(published, RoundPublished)
    assert (paused.cells, paused.left_out, paused.epoch) == ((2,), SECOND, 1)
    assert published.counted == 3


def test_nobody_of_it_is_asked_until_a_roster_resumes_it():
    world = revealing(World.new(cell_rules(), 6))
    speak(world, 2)
    (opened,) = world.tick(*range(6))
    assert isinstance(opened, RoundOpened)
    assert opened.asked == set(map(client, range(3)))
    live = frozenset(map(client, range(6)))
    assert world.apply(Polled(now=world.now, client_id=client(4), live=live)) == ()
    resumed = replace(cell_rules(), epoch=2)
    installed = EpochInstalled(now=world.now, rules=resumed, roster=world.state.roster)
    for number in range(3):
        world.upload(number)
    world.sum()
    # Said again of a cell that is paused already, it changes nothing.
    assert [type(change) for change in speak(world, 2)] == [RoundPublished]
    world.apply(installed)
    (opened,) = world.tick(*range(6))
    assert isinstance(opened, RoundOpened) and opened.asked == live


def test_a_refusal_can_pause_too():
    """As where nothing may be published without those who were counted, or a word was lost."""
    world = revealing(World.new(cell_rules(), 6))
    paused, abandoned = speak(world, 2, refused="unfit")
    assert isinstance(paused, CellsPaused) and isinstance(abandoned, RoundAbandoned)
    (opened,) = world.tick(*range(6))
    assert isinstance(opened, RoundOpened) and opened.asked.isdisjoint(SECOND)


def test_without_a_counted_cell_the_others_are_counted_at_once():
    world = revealing(World.new(cell_rules(exact=True), 6))
    speak(world)
    revealing(world)
    paused, abandoned = speak(world, 2, refused="unfit")
    assert isinstance(paused, CellsPaused) and isinstance(abandoned, RoundAbandoned)
    (opened,) = world.tick(*range(6))
    assert isinstance(opened, RoundOpened)
    assert (opened.kind, opened.asked) == ("count", set(map(client, range(3))))


@pytest.mark.parametrize(("paused", "wrong"), [((3,), "does not have"), ((1, 2), "too few")])
def test_a_word_that_does_not_fit(paused, wrong):
    world = revealing(World.new(cell_rules(), 6))
    before = world.state
    with pytest.raises(ProtocolError, match=wrong):
        speak(world, *paused)
    assert world.state == before


def test_a_coordinator_that_is_killed_knows_it_still(tmp_path):
    """The pause, and whose updates the published round is over."""
    store = SqliteStore(tmp_path, IDENTITY)
    world = World.new(cell_rules(), 6)
    world.commit = lambda changes: store.commit(durable(changes), [entry(1)])
    revealing(world)
    speak(world, 2)
    store.close()
    store = SqliteStore(tmp_path, IDENTITY)
    try:
        loaded = store.load(cell_rules(), world.state.roster)
        record = store.published(loaded.published)
        of_next_epoch = store.load(replace(cell_rules(), epoch=2), world.state.roster)
    finally:
        store.close()
    assert loaded == world.state
    assert [cell.state for cell in loaded.rules.partition.cells] == ["active", "paused"]
    assert [cell.state for cell in of_next_epoch.rules.partition.cells] == ["active", "active"]
    assert record is not None and record.statement is not None
    assert record.statement.paused == (2,)
    assert {one.client_id for one in record.contributions} == set(map(client, range(3)))


def readable(**rounds: float) -> World:
    """Bring a round of four, whose updates the coordinator reads, to where it is summed."""
    world = World.new(rules(needs_reveal=False, minimum_clients=3, **rounds), 4)
    world.tick(0, 1, 2, 3)
    for number in range(4):
        world.upload(number)
    return world


def unfit(world: World, *numbers: int) -> tuple[object, ...]:
    assert world.state.current is not None
    clients = frozenset(map(client, numbers))
    event = UpdatesUnfit(now=world.now, round=world.state.current.number, clients=clients)
    return world.apply(event)


def test_a_readable_update_is_left_out_alone_and_its_client_for_a_while():
    world = readable(total=20)
    unfit(world, 3)
    assert isinstance(world.sum()[-1], RoundPublished)
    assert world.published[-1].counted == 3
    for _ in range(16):
        (opened,) = world.tick(0, 1, 2, 3)
        assert isinstance(opened, RoundOpened) and client(3) not in opened.asked
        for number in range(3):
            world.upload(number)
        world.sum()
    (opened,) = world.tick(0, 1, 2, 3)
    assert isinstance(opened, RoundOpened) and client(3) in opened.asked


def test_where_too_few_are_left_the_round_is_given_up():
    world = readable()
    (_, abandoned) = unfit(world, 2, 3)
    assert isinstance(abandoned, RoundAbandoned)
    assert abandoned.reason == "the sum is out of bounds, and one of these clients caused it"
    (opened,) = world.tick(0, 1, 2, 3)
    assert isinstance(opened, RoundOpened) and len(opened.asked) == 4, "all are asked again"
