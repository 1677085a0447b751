"""Rounds of the papers' protocol: the sum is published as it is, and clients tell what is in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from server.support.made_messages import client, report, rules
from server.support.world import World

from fedrec.errors import ConflictingUpload, NotInRoster, ProtocolError, RefusedError, RoundError
from fedrec.ids import RoundId
from fedrec.wire.messages import Finished, Wait
from fedrec_server.polling import task_for
from fedrec_server.rounds.changes import (
    ReportKept,
    RoundAbandoned,
    RoundMeasured,
    RoundOpened,
    RoundPublished,
    RunFinished,
)
from fedrec_server.rounds.events import (
    EpochInstalled,
    ReportReceived,
    Restarted,
    Resumed,
    StatementReceived,
    StopRequested,
)
from fedrec_server.rounds.selection import awaited


def published(n_clients: int = 4, kind: str = "count", **rounds: float) -> World:
    """Return a run in which a round of a kind was just published."""
    world = World.new(rules(**{"report_seconds": 30.0, "total": 1, **rounds}), n_clients)
    while True:
        world.tick(*range(n_clients))
        for number in range(n_clients):
            world.upload(number)
        world.sum()
        if world.published[-1].kind == kind:
            return world
        world.report(0)
        world.report(1)


def measured(changes: tuple[object, ...]) -> RoundMeasured:
    (found,) = (change for change in changes if isinstance(change, RoundMeasured))
    return found


def test_the_sum_is_published_as_soon_as_it_stands():
    world = published()
    (change,) = world.published
    assert isinstance(change, RoundPublished)
    assert (change.statement, change.metrics, change.rows) == (None, b"", None)
    assert world.state.published == 1
    found = task_for(world.state, client(0), RoundId(0), world.now)
    assert found is not None and found.task == Wait(reason="catch up")
    assert task_for(world.state, client(0), RoundId(1), world.now) is None, "it has it"


def test_metrics_follow_when_two_clients_say_the_same():
    world = published()
    (kept,) = world.report(0)
    assert isinstance(kept, ReportKept)
    found = measured(world.report(3))
    assert found.agreed == report(replace(world.state, published=RoundId(1)), client(3)) or (
        found.agreed is not None and found.agreed.metrics == bytes(8)
    )
    assert (found.reason, world.state.reporting) == ("", None)
    assert world.state.base_state == found.agreed.state_tag
    assert world.report(2) == (), "a third is of no use any more"


def test_the_next_round_waits_for_their_word():
    world = published()
    world.report(0)
    assert world.tick(*range(4)) == ()
    live = frozenset(map(client, range(4)))
    assert awaited(world.state, live) == "two clients that say alike what is in the last sum"
    world.report(1)
    (opened,) = world.tick(*range(4))
    assert isinstance(opened, RoundOpened)


def test_the_same_client_twice_is_one_client():
    world = published()
    world.report(0)
    assert world.report(0) == ()
    with pytest.raises(ConflictingUpload):
        world.report(0, "lie")
    assert world.state.reporting is not None


@pytest.mark.parametrize("order", [("lie", "honest", "honest"), ("honest", "lie", "honest")])
def test_one_that_says_something_else_is_outvoted(order):
    world = published()
    for number, content in enumerate(order):
        changes = world.report(number, content)
    found = measured(changes)
    assert found.agreed is not None and not found.reason
    assert found.agreed.content() == report(world.state, client(0)).content()


def test_clients_disagree():
    """After the time that they have the run goes on: nobody knows which model they have."""
    world = published(kind="train")
    world.report(0, "honest")
    world.report(1, "lie")
    assert world.tick(*range(4), seconds=29.0) == ()
    found = measured(world.tick(*range(4), seconds=2.0))
    assert (found.agreed, found.reason) == (None, "clients disagree")
    assert world.state.base_state is None
    assert found.rows == world.published[0].rows or found.rows.n_rows == 0
    (opened,) = world.tick(*range(4))
    assert isinstance(opened, RoundOpened)


@pytest.mark.parametrize("n_reports", [0, 1])
def test_fewer_than_two_report(n_reports):
    world = published(kind="train")
    for number in range(n_reports):
        world.report(number)
    assert measured(world.tick(*range(4), seconds=31.0)).reason == (
        "fewer than two clients reported"
    )


def test_nothing_goes_on_without_a_word_on_the_count():
    """Which rows are trained is in that sum, which the coordinator cannot read."""
    world = published()
    assert world.tick(*range(4), seconds=3600.0) == ()
    world.report(0)
    assert world.tick(*range(4), seconds=3600.0) == ()
    found = measured(world.report(1))
    assert world.state.rows == found.rows


def test_a_disagreement_about_the_count_ends_the_run_until_somebody_else_speaks():
    world = published()
    world.report(0, "honest")
    world.report(1, "lie")
    (ended,) = world.tick(*range(4), seconds=31.0)
    assert isinstance(ended, RunFinished) and ended.failed
    assert ended.reason == "clients disagree about the items that they counted"
    assert measured(world.report(2)).agreed is not None
    world.apply(Resumed(now=world.now))
    (opened,) = world.tick(*range(4))
    assert isinstance(opened, RoundOpened)


def test_the_run_ends_once_its_last_round_was_told_of():
    world = published(kind="evaluate")
    assert world.tick(*range(4)) == ()
    assert world.state.ending is None
    world.report(0)
    world.report(1)
    (ended,) = world.tick(*range(4))
    assert isinstance(ended, RunFinished) and not ended.failed
    world.check_end()
    found = task_for(world.state, client(0), world.state.published, world.now)
    assert found is not None and isinstance(found.task, Finished)


def test_the_last_round_waits_for_so_long_only():
    world = published(kind="evaluate")
    assert measured(world.tick(seconds=31.0)).reason == "fewer than two clients reported"
    (ended,) = world.tick()
    assert isinstance(ended, RunFinished) and not ended.failed


@pytest.mark.parametrize("at_once", [False, True])
def test_an_operator_that_stops_the_run(at_once):
    world = published(kind="train", total=5)
    changes = world.apply(StopRequested(now=world.now, at_once=at_once))
    assert isinstance(changes[-1], RunFinished) == at_once
    world.report(0)
    found = measured(world.report(1))
    assert found.agreed is not None, "whatever was published can be told of"
    if not at_once:
        (ended,) = world.tick()
        assert isinstance(ended, RunFinished)
        assert ended.reason == "the operator stopped the run"


def test_a_restart_gives_them_their_time_again():
    world = published(kind="train")
    world.report(0)
    world.now += 1000.0
    world.apply(Restarted(now=world.now))
    assert world.tick(*range(4), seconds=29.0) == ()
    assert measured(world.report(1)).agreed is not None


def test_a_clock_that_was_set_back_gives_them_no_more():
    world = published(kind="train")
    world.now -= 100_000.0
    assert world.tick(*range(4)) == ()
    assert measured(world.tick(*range(4), seconds=31.0)).reason


def test_in_a_new_epoch_they_report_anew():
    """Words under two keys cannot be compared."""
    world = published()
    world.report(0)
    newer = replace(world.state.rules, epoch=2)
    world.apply(EpochInstalled(now=world.now, rules=newer, roster=world.state.roster))
    assert world.state.reporting is not None and not world.state.reporting.reports
    world.reports.clear()
    world.report(1)
    assert measured(world.report(0)).agreed is not None
    assert world.state.base_state is not None


def test_whose_word_is_refused():
    world = published()
    with pytest.raises(NotInRoster):
        world.report(99)
    ahead = replace(report(world.state, client(0)), round=RoundId(2))
    with pytest.raises(RoundError, match="not published"):
        world.apply(ReportReceived(now=world.now, report=ahead))
    world.report(0)
    world.report(1)
    world.tick(*range(4))
    for number in range(4):
        world.upload(number)
    world.sum()
    old = replace(report(world.state, client(0)), round=RoundId(1))
    assert world.apply(ReportReceived(now=world.now, report=old)) == ()
    other = replace(report(world.state, client(0)), n_rows=7)
    with pytest.raises(ProtocolError, match="since the count"):
        world.apply(ReportReceived(now=world.now, report=other))


def test_nobody_opens_a_sum_for_others():
    world = World.new(rules(), 3)
    world.tick(*range(3))
    for number in range(3):
        world.upload(number)
    assert world.state.current is not None
    from server.support.world import statement

    world.state = replace(world.state, current=replace(world.state.current, phase="revealing"))
    event = StatementReceived(now=world.now, statement=statement(world.state, client(0)), blob=None)
    with pytest.raises(RefusedError, match="key authority alone"):
        world.apply(event)


def test_a_member_that_is_removed_has_the_round_given_up():
    world = World.new(rules(), 4)
    world.tick(*range(4))
    world.upload(0)
    newer = replace(world.state.rules, epoch=2)
    left = world.state.roster - {client(3)}
    changes = world.apply(EpochInstalled(now=world.now, rules=newer, roster=left))
    assert isinstance(changes[0], RoundAbandoned)
