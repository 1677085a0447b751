"""Rounds as the papers have them, and whether a run learns."""

from dataclasses import replace

import pytest
from world.cells import partition_of
from world.machine import AUTHORITY, World, client, report, rules, statement

from fedrec.errors import ConflictingUpload, NotInRoster, ProtocolError, RefusedError, RoundError
from fedrec.ids import RoundId
from fedrec.wire.messages import Finished, Wait
from fedrec_server.polling import task_for
from fedrec_server.rounds.changes import (
    CellsPaused,
    ReportKept,
    RoundAbandoned,
    RoundLearnt,
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
    StatementShown,
    StopRequested,
    Tick,
)
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.selection import awaited
from fedrec_server.rounds.state import KnownModel


def published(n_clients=4, kind="count", **rounds):
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


def measured(changes):
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
    assert awaited(world.state, live) == "two clients that agree on the content of the last sum"
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
    """When their time is over, the run continues, because no client knows which model they have."""
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


def test_a_disagreement_about_the_count_ends_the_run_until_another_client_speaks():
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
    with pytest.raises(ProtocolError, match="count round led to"):
        world.apply(ReportReceived(now=world.now, report=other))


def test_no_party_opens_a_sum_for_others():
    world = World.new(rules(), 3)
    world.tick(*range(3))
    for number in range(3):
        world.upload(number)
    assert world.state.current is not None
    from world.machine import statement

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


REVEALER = client(AUTHORITY)


def anew():
    """Return a run that was recovered up to round 4, of which nothing was opened since."""
    found = World.new(replace(rules(), revealer=REVEALER), 3)
    state = replace(
        found.state,
        published=RoundId(4),
        last_round=RoundId(5),
        recovered=RoundId(4),
        begins_at=RoundId(5),
        counted=True,
        trained=3,
        charged=7,
    )
    found.state = state
    return found


def word(state, round_id, **about):
    """Return the key authority's word on a round of another folder's run."""
    opened = World.new(replace(rules(), revealer=REVEALER), 3)
    opened.tick(0, 1, 2)
    text = statement(opened.state, REVEALER)
    return replace(text, round=RoundId(round_id), trained=6, kind="train", **about)  # type: ignore[arg-type]


def shown(state, text):
    after, (change,) = step(state, StatementShown(now=9.0, statement=text))
    assert isinstance(change, RoundLearnt)
    return after, change


def opening(state):
    """Open the next round with every client."""
    live = frozenset(map(client, range(3)))
    after, (opened,) = step(state, Tick(now=9.0, live=live))
    return after, opened


def test_it_goes_on_from_there():
    text = word(anew().state, 9, charged=4)
    after, change = shown(anew().state, text)
    assert (after.published, after.last_round, after.trained) == (9, 9, 6)
    assert (after.base_state, after.rows) == (text.state_tag, text.rows)
    # What is spent is the highest of all.
    assert (after.charged, change.charged, change.base_round) == (7, 7, 4)
    assert shown(anew().state, replace(text, charged=8))[0].charged == 8
    assert not after.evaluated
    assert shown(anew().state, replace(text, kind="evaluate"))[0].evaluated
    # It may learn of more, and the next round has a number that is not used yet.
    assert after.nothing_opened_since_recovery
    assert shown(after, word(after, 11))[0].published == 11
    _, opened = opening(after)
    assert isinstance(opened, RoundOpened) and (opened.round, opened.base_round) == (10, 9)


def test_after_a_change_of_epoch_another_round_may_have_been_in_progress():
    state = anew().state
    state = replace(state, rules=replace(state.rules, epoch=2))
    after, _ = shown(state, word(state, 9))
    assert (after.published, after.last_round) == (9, 10)
    assert after.base_state is None


def test_cells_that_the_word_pauses_are_left_out():
    """Of this epoch; what was said in an earlier one is in the roster, or was taken back there."""
    state = anew().state
    partition = partition_of(map(client, range(6)))
    state = replace(state, rules=replace(state.rules, partition=partition))
    text = word(state, 9, paused=(2,))
    after, (change, paused) = step(state, StatementShown(now=9.0, statement=text))
    assert isinstance(change, RoundLearnt) and isinstance(paused, CellsPaused)
    assert (paused.cells, paused.epoch, paused.left_out) == ((2,), 1, frozenset())
    assert [cell.state for cell in after.rules.partition.cells] == ["active", "paused"]
    # Told again, it changes nothing.
    _, changes = step(after, StatementShown(now=9.0, statement=replace(text, round=RoundId(11))))
    assert [type(one) for one in changes] == [RoundLearnt]
    later = replace(state, rules=replace(state.rules, epoch=2))
    after, changes = step(later, StatementShown(now=9.0, statement=text))
    assert [type(one) for one in changes] == [RoundLearnt]
    assert after.rules.partition == partition


def test_exact_sums_are_counted_again():
    """No client knows any more over whom training rounds are."""
    state = replace(anew().state, rules=replace(anew().state.rules, exact=True))
    after, _ = shown(state, word(state, 9))
    assert after.next_kind == "count"


def test_known_rounds_and_runs_that_went_on_are_left_alone():
    world = anew()
    with pytest.raises(RoundError, match="cannot continue from"):
        step(world.state, StatementShown(now=9.0, statement=word(world.state, 4)))
    began, _ = opening(world.state)
    assert began.current is not None
    with pytest.raises(RoundError, match="cannot continue from"):
        step(began, StatementShown(now=9.0, statement=word(began, 9)))
    given_up = replace(began, current=None)
    assert not given_up.nothing_opened_since_recovery
    never = World.new(world.state.rules, 3)
    assert not never.state.nothing_opened_since_recovery


@pytest.mark.parametrize(("epoch", "number"), [(1, 5), (2, 6), (3, 6)])
def test_an_epoch_after_the_recovery_skips_the_number_that_members_may_have_answered(epoch, number):
    """Round 4 is of epoch 1, and round 5 may have been in progress when the folder was lost."""
    state = anew().state
    state = replace(
        state,
        last_round=RoundId(4),
        begins_at=RoundId(4),
        known=KnownModel(epoch=1, digest=b"tag"),
        rules=replace(state.rules, epoch=epoch),
    )
    after, opened = opening(state)
    assert isinstance(opened, RoundOpened) and opened.round == number == after.last_round
    assert after.next_number == number + 1
