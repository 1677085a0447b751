"""A coordinator whose folder was made anew goes on from a later round that a member shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from server.support.made_messages import AUTHORITY, client, rules, statement
from server.support.world import World
from world.cells import partition_of

from fedrec.errors import RoundError
from fedrec.ids import RoundId
from fedrec.wire.messages import RevealStatement
from fedrec_server.rounds.changes import CellsPaused, Change, RoundLearnt, RoundOpened
from fedrec_server.rounds.events import StatementShown, Tick
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State

REVEALER = client(AUTHORITY)


def anew() -> World:
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


def word(state: State, round_id: int, **about: object) -> RevealStatement:
    """Return the key authority's word on a round of another folder's run."""
    opened = World.new(replace(rules(), revealer=REVEALER), 3)
    opened.tick(0, 1, 2)
    said = statement(opened.state, REVEALER)
    return replace(said, round=RoundId(round_id), trained=6, kind="train", **about)  # type: ignore[arg-type]


def shown(state: State, said: RevealStatement) -> tuple[State, RoundLearnt]:
    after, (change,) = step(state, StatementShown(now=9.0, statement=said))
    assert isinstance(change, RoundLearnt)
    return after, change


def opening(state: State) -> tuple[State, Change]:
    """Open the next round with everybody."""
    live = frozenset(map(client, range(3)))
    after, (opened,) = step(state, Tick(now=9.0, live=live))
    return after, opened


def test_it_goes_on_from_there():
    said = word(anew().state, 9, charged=4)
    after, change = shown(anew().state, said)
    assert (after.published, after.last_round, after.trained) == (9, 9, 6)
    assert (after.base_state, after.rows) == (said.state_tag, said.rows)
    # What is spent is the highest of all.
    assert (after.charged, change.charged, change.base_round) == (7, 7, 4)
    assert shown(anew().state, replace(said, charged=8))[0].charged == 8
    assert not after.evaluated
    assert shown(anew().state, replace(said, kind="evaluate"))[0].evaluated
    # It may learn of more, and the next round has a number that nobody used.
    assert after.may_learn
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
    said = word(state, 9, paused=(2,))
    after, (change, paused) = step(state, StatementShown(now=9.0, statement=said))
    assert isinstance(change, RoundLearnt) and isinstance(paused, CellsPaused)
    assert (paused.cells, paused.epoch, paused.left_out) == ((2,), 1, frozenset())
    assert [cell.state for cell in after.rules.partition.cells] == ["active", "paused"]
    # Told again, it changes nothing.
    _, changes = step(after, StatementShown(now=9.0, statement=replace(said, round=RoundId(11))))
    assert [type(one) for one in changes] == [RoundLearnt]
    later = replace(state, rules=replace(state.rules, epoch=2))
    after, changes = step(later, StatementShown(now=9.0, statement=said))
    assert [type(one) for one in changes] == [RoundLearnt]
    assert after.rules.partition == partition


def test_exact_sums_are_counted_again():
    """Nobody knows any more over whom training rounds are."""
    state = replace(anew().state, rules=replace(anew().state.rules, exact=True))
    after, _ = shown(state, word(state, 9))
    assert after.next_kind == "count"


def test_known_rounds_and_runs_that_went_on_are_left_alone():
    world = anew()
    with pytest.raises(RoundError, match="not what this run goes on from"):
        step(world.state, StatementShown(now=9.0, statement=word(world.state, 4)))
    began, _ = opening(world.state)
    assert began.current is not None
    with pytest.raises(RoundError, match="not what this run goes on from"):
        step(began, StatementShown(now=9.0, statement=word(began, 9)))
    given_up = replace(began, current=None)
    assert not given_up.may_learn
    never = World.new(world.state.rules, 3)
    assert not never.state.may_learn


@pytest.mark.parametrize(("epoch", "number"), [(1, 5), (2, 6), (3, 6)])
def test_an_epoch_after_the_recovery_skips_the_number_that_members_may_have_answered(epoch, number):
    """Round 4 is of epoch 1, and round 5 may have been in progress when the folder was lost."""
    state = anew().state
    state = replace(
        state,
        last_round=RoundId(4),
        begins_at=RoundId(4),
        known=(1, b"tag"),
        rules=replace(state.rules, epoch=epoch),
    )
    after, opened = opening(state)
    assert isinstance(opened, RoundOpened) and opened.round == number == after.last_round
    assert after.next_number == number + 1
