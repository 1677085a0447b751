"""Rounds whose sums the authority opens, with cells that pause."""

from dataclasses import replace

import pytest
from conformance.store_suite import IDENTITY, durable, entry
from world.cells import partition_of
from world.machine import AUTHORITY, World, blob, client, rules, statement

from fedrec.errors import NotInRoster, ProtocolError, RefusedError, RoundClosed
from fedrec.ids import RoundId
from fedrec.wire.messages import Finished, Reveal, Wait
from fedrec_server.polling import task_for
from fedrec_server.rounds.changes import (
    CellsPaused,
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
    UpdatesUnfit,
)
from fedrec_server.rounds.selection import awaited
from fedrec_server.store.sqlite import SqliteStore

REVEALER = client(AUTHORITY)


def run(n_clients=4, **rounds):
    found = rules(needs_reveal=True, **rounds)
    return World.new(replace(found, revealer=REVEALER), n_clients)


def revealing(**rounds):
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
    assert abandoned.reason == "1 clients that every sum needs did not answer in time"


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
    assert published.statement.client_id == REVEALER
    assert published.metrics == bytes(8)
    assert world.state.base_state == published.statement.state_tag


def test_no_other_party_is_asked_or_heard():
    world = revealing()
    for number in range(4):
        assert task_for(world.state, client(number), world.state.published, world.now) is None
        signed = statement(world.state, client(number))
        with pytest.raises(RefusedError, match="key authority alone"):
            world.apply(StatementReceived(now=world.now, statement=signed, blob=blob("honest")))


@pytest.mark.parametrize("sealed", [None, "another"])
def test_a_word_without_the_sealed_sum(sealed):
    world = revealing()
    signed = statement(world.state, REVEALER)
    found = None if sealed is None else blob(sealed)
    with pytest.raises(ProtocolError, match="sealed sum"):
        world.apply(StatementReceived(now=world.now, statement=signed, blob=found))


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


def test_it_catches_up_like_every_client():
    world = revealing()
    world.speak()
    world.apply(Tick(now=world.now, live=frozenset()))
    found = task_for(world.state, REVEALER, RoundId(0), world.now)
    assert found is not None and found.task == Wait(reason="catch up")


SECOND = frozenset(map(client, range(3, 6)))


def cell_rules(n_clients=6, *, exact=False, **rounds):
    found = rules(needs_reveal=True, exact=exact, **rounds)
    return replace(found, revealer=REVEALER, partition=partition_of(map(client, range(n_clients))))


def revealing_in_cells(world, n_clients=6):
    """Bring a round with all clients to where the authority is asked."""
    world.tick(*range(n_clients))
    for number in range(n_clients):
        world.upload(number)
    world.sum()
    return world


def statement_of(world, *paused, refused=""):
    found = replace(statement(world.state, REVEALER, refused=refused), paused=paused)
    if refused:
        return found
    left_out = world.state.rules.partition.members_of(paused)
    kept = world.state.current.manifest_digest("run", left_out)
    return replace(found, manifest_digest=kept)


def speak(world, *paused, refused=""):
    word = statement_of(world, *paused, refused=refused)
    sealed = None if refused else blob("honest")
    return world.apply(StatementReceived(now=world.now, statement=word, blob=sealed))


def test_the_round_is_published_over_the_others():
    world = revealing_in_cells(World.new(cell_rules(), 6))
    paused, published = speak(world, 2)
    assert isinstance(paused, CellsPaused) and isinstance(published, RoundPublished)
    assert (paused.cells, paused.left_out, paused.epoch) == ((2,), SECOND, 1)
    assert published.counted == 3


def test_no_client_of_it_is_asked_until_a_roster_resumes_it():
    world = revealing_in_cells(World.new(cell_rules(), 6))
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
    world = revealing_in_cells(World.new(cell_rules(), 6))
    paused, abandoned = speak(world, 2, refused="unfit")
    assert isinstance(paused, CellsPaused) and isinstance(abandoned, RoundAbandoned)
    (opened,) = world.tick(*range(6))
    assert isinstance(opened, RoundOpened) and opened.asked.isdisjoint(SECOND)


def test_without_a_counted_cell_the_others_are_counted_at_once():
    world = revealing_in_cells(World.new(cell_rules(exact=True), 6))
    speak(world)
    revealing_in_cells(world)
    paused, abandoned = speak(world, 2, refused="unfit")
    assert isinstance(paused, CellsPaused) and isinstance(abandoned, RoundAbandoned)
    (opened,) = world.tick(*range(6))
    assert isinstance(opened, RoundOpened)
    assert (opened.kind, opened.asked) == ("count", set(map(client, range(3))))


@pytest.mark.parametrize(("paused", "wrong"), [((3,), "does not have"), ((1, 2), "too few")])
def test_a_word_that_does_not_fit(paused, wrong):
    world = revealing_in_cells(World.new(cell_rules(), 6))
    before = world.state
    with pytest.raises(ProtocolError, match=wrong):
        speak(world, *paused)
    assert world.state == before


def test_a_coordinator_that_is_killed_knows_it_still(tmp_path):
    """The pause, and whose updates the published round is over."""
    store = SqliteStore(tmp_path, IDENTITY)
    world = World.new(cell_rules(), 6)
    world.commit = lambda changes: store.commit(durable(changes), [entry(1)])
    revealing_in_cells(world)
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


def readable(**rounds):
    """Bring a round of four, whose updates the coordinator reads, to where it is summed."""
    world = World.new(rules(needs_reveal=False, minimum_clients=3, **rounds), 4)
    world.tick(0, 1, 2, 3)
    for number in range(4):
        world.upload(number)
    return world


def unfit(world, *numbers):
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
