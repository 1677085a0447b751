"""Clients that say goodbye, and the last count."""

from dataclasses import replace

import pytest
from server.rounds.test_backoff import cells_of
from world.machine import RUN, STEP_OF, World, client, rules, stepwise

from fedrec.errors import RoundClosed
from fedrec.identity.cells import Cell, Partition
from fedrec.wire.messages import StepMessage
from fedrec_server.rounds.changes import (
    CollectingEnded,
    RoundAbandoned,
    RoundOpened,
    RoundPublished,
    StepEnded,
)
from fedrec_server.rounds.endings import EPOCH_CHANGED
from fedrec_server.rounds.events import EpochInstalled, Failed, Polled, StepClosed, StepHeard, Tick
from fedrec_server.rounds.selection import awaited
from fedrec_server.rounds.state import State

DEADLINE = 120.0


def counted(*numbers, n_clients=5, **rounds):
    """Return a run whose count round is published, over these clients."""
    own = {"minimum_clients": 2, "total": 40, **rounds}
    world = World.new(rules(needs_reveal=False, exact=True, **own), n_clients)
    world.tick(*numbers)
    assert answered(world, *numbers).kind == "count"
    return world


def opened(world, *numbers, seconds=0.0):
    """Return what opens while these clients are live."""
    changes = world.tick(*numbers, seconds=seconds)
    assert len(changes) <= 1
    if not changes:
        return None
    assert isinstance(changes[0], RoundOpened)
    return changes[0]


def answered(world, *numbers):
    """Let clients upload and publish the round."""
    for number in numbers:
        world.upload(number)
    assert world.state.current is not None and world.state.current.phase == "summing"
    published = world.sum()[-1]
    assert isinstance(published, RoundPublished)
    return published


def who(found):
    assert found is not None
    return found.kind, {n for n in range(9) if client(n) in found.asked}


def test_a_round_is_over_whom_was_counted_and_waits_for_them():
    world = counted(0, 1, 2)
    assert who(opened(world, 0, 1, 2)) == ("train", {0, 1, 2})
    answered(world, 0, 1, 2)
    assert opened(world, 0, 1) is None
    assert "counted" in awaited(world.state, frozenset({client(0), client(1)}))
    assert opened(world, 0, 1, seconds=DEADLINE - 1) is None
    # It is back in time: nothing has changed, so nothing is counted.
    assert who(opened(world, 0, 1, 2)) == ("train", {0, 1, 2})


def test_no_other_client_takes_part_in_what_is_divided_by_a_count():
    world = counted(0, 1, 2)
    world.tick(0, 1, 2)
    assert world.apply(Polled(now=world.now, client_id=client(3))) == ()
    with pytest.raises(RoundClosed):
        world.upload(3)


def test_who_stays_away_longer_than_a_deadline_is_counted_without():
    world = counted(0, 1, 2)
    assert opened(world, 0, 1) is None
    assert who(opened(world, 0, 1, seconds=DEADLINE)) == ("count", {0, 1})
    rows = world.state.rows
    answered(world, 0, 1)
    assert world.state.rows == rows
    assert who(opened(world, 0, 1)) == ("train", {0, 1})
    answered(world, 0, 1)
    # Who comes back is counted in at once.
    assert who(opened(world, 0, 1, 2)) == ("count", {0, 1, 2})
    answered(world, 0, 1, 2)
    assert who(opened(world, 0, 1, 2)) == ("train", {0, 1, 2})


def test_who_is_asked_in_case_that_others_fail_is_no_newcomer():
    """Six of eight are asked and the first four counted: the other two count no client in."""
    world = World.new(
        rules(
            needs_reveal=False,
            exact=True,
            minimum_clients=2,
            total=40,
            clients_per_round=4,
            over_provision=1.5,
        ),
        8,
    )
    all_clients = range(8)
    kind, asked = who(opened(world, *all_clients))
    assert (kind, len(asked)) == ("count", 6)
    first = sorted(asked)[:4]
    answered(world, *first)
    for _ in range(3):
        assert who(opened(world, *all_clients)) == ("train", set(first))
        answered(world, *first)


def in_cells(*sizes, **rounds):
    """Return a run over cells of these sizes, whose members are numbered one cell after another."""
    cells, start = [], 0
    for number, size in enumerate(sizes, start=1):
        core = tuple(client(n) for n in range(start, start + size))
        cells.append(Cell(id=number, since=1, core=core))
        start += size
    partition = Partition(cell_size=3, cells=tuple(cells))
    found = rules(needs_reveal=False, exact=True, total=40, **rounds)
    return World.new(replace(found, partition=partition), sum(sizes))


@pytest.mark.parametrize("seed", range(8))
def test_a_round_that_is_divided_by_a_count_is_over_all_whom_it_counted(seed):
    """One cell a round is wanted and four clients are needed: cells of 3 and 4, in either order."""
    world = in_cells(3, 4, cells_per_round=1, minimum_clients=4)
    world.state = replace(world.state, rules=replace(world.state.rules, seed=seed))
    _, counted_ = who(opened(world, *range(7)))
    answered(world, *sorted(counted_))
    for _ in range(4):
        # What is drawn differs from round to round; whom training is divided by does not.
        kind, asked = who(opened(world, *range(7)))
        if kind == "count":
            assert len(asked) > len(counted_)
            counted_ = asked
        assert asked == counted_
        published = answered(world, *sorted(asked))
        assert published.counted == len(counted_)


def test_a_deadline_of_absence_is_one_in_a_row():
    world = counted(0, 1, 2)
    assert opened(world, 0, 1) is None
    assert opened(world, 0, 1, seconds=DEADLINE - 1) is None
    answered_once = opened(world, 0, 1, 2)
    assert who(answered_once) == ("train", {0, 1, 2})
    answered(world, 0, 1, 2)
    assert opened(world, 0, 1, seconds=2) is None
    assert opened(world, 0, 1, seconds=-3600) is None
    assert opened(world, 0, 1, seconds=DEADLINE - 1) is None
    assert who(opened(world, 0, 1, seconds=1)) == ("count", {0, 1})


def test_too_few_to_count_are_waited_for_and_then_train_at_once():
    world = counted(0, 1, 2, minimum_clients=3)
    assert opened(world, 0, 1) is None
    assert opened(world, 0, 1, seconds=10 * DEADLINE) is None
    assert awaited(world.state, frozenset({client(0), client(1)})) == "clients"
    assert who(opened(world, 0, 1, 2, seconds=1)) == ("train", {0, 1, 2})


def test_who_is_here_and_silent_is_counted_without():
    world = counted(0, 1, 2)
    world.tick(0, 1, 2)
    world.upload(0)
    world.upload(1)
    (abandoned,) = world.tick(0, 1, 2, seconds=DEADLINE)
    assert isinstance(abandoned, RoundAbandoned)
    assert abandoned.reason == "1 of the counted clients did not answer"
    # It is not asked in the next round, and then it is.
    assert who(opened(world, 0, 1, 2)) == ("count", {0, 1})
    answered(world, 0, 1)
    assert who(opened(world, 0, 1, 2)) == ("count", {0, 1, 2})
    world.upload(0)
    world.upload(1)
    world.tick(0, 1, 2, seconds=DEADLINE)
    world.sum()
    # It let the count pass as well: training goes on without it for a while, then it is asked.
    for _ in range(16):
        assert who(opened(world, 0, 1, 2)) == ("train", {0, 1})
        answered(world, 0, 1)
    assert who(opened(world, 0, 1, 2)) == ("count", {0, 1, 2})


def masked(world, *numbers):
    """Let clients send their messages of the present step."""
    number, phase = world.state.current.number, world.state.current.phase
    for who_ in numbers:
        if phase == "masking":
            world.upload(who_)
            continue
        message = StepMessage(
            federation="movies", run=RUN, round=number, epoch=1, client_id=client(who_),
            step=STEP_OF[phase], body=b"honest",
        )  # fmt: skip
        world.apply(StepHeard(now=world.now, message=message))


def closed(world):
    """Close the present step; return what came of it."""
    number, phase = world.state.current.number, world.state.current.phase
    return world.apply(StepClosed(now=world.now, round=number, phase=phase))[0]


@pytest.mark.parametrize("at", ["collecting", "sharing", "masking", "unmasking"])
@pytest.mark.parametrize("closes", [True, False])
def test_who_vanishes_in_a_step_under_masks_is_counted_without(at, closes):
    world = World.new(stepwise(rules(needs_reveal=False, exact=True)), 5)
    all_clients = range(4)
    world.tick(*all_clients)
    for _ in range(5):
        masked(world, *all_clients)
        closed(world)
    world.sum()
    assert who(opened(world, *all_clients)) == ("train", {*all_clients})
    while world.state.current is not None and world.state.current.phase != at:
        masked(world, *all_clients)
        closed(world)
    masked(world, 0, 1, 2)
    assert world.state.current is not None
    if at == "unmasking" and closes:
        # The sum is over all of them: it is there.
        assert isinstance(closed(world), StepEnded)
        return
    number = world.state.current.number
    failed = Failed(now=world.now, round=number, reason="too few are left")
    found = closed(world) if closes else world.apply(failed)[0]
    assert isinstance(found, RoundAbandoned)
    # Whose answers were due is left out of one round; afterwards its share was.
    blamed = {3} if at in ("collecting", "sharing", "masking") else set()
    assert who(opened(world, *all_clients)) == ("count", {*all_clients} - blamed)


def test_who_is_removed_is_not_waited_for():
    world = counted(0, 1, 2)
    later = replace(world.state.rules, epoch=2)
    left = frozenset(client(n) for n in (0, 1, 3, 4))
    world.apply(EpochInstalled(now=world.now, rules=later, roster=left))
    assert who(opened(world, 0, 1)) == ("count", {0, 1})


def test_who_is_removed_in_the_middle_of_a_round():
    world = counted(0, 1, 2)
    world.tick(0, 1, 2)
    world.upload(0)
    later = replace(world.state.rules, epoch=2)
    left = frozenset(client(n) for n in (0, 1, 3, 4))
    abandoned, _ = world.apply(EpochInstalled(now=world.now, rules=later, roster=left))
    assert isinstance(abandoned, RoundAbandoned) and abandoned.reason == EPOCH_CHANGED
    assert who(opened(world, 0, 1)) == ("count", {0, 1})


def test_an_epoch_in_which_more_are_needed_counts_more():
    world = counted(0, 1, 2)
    rounds = world.state.rules.rounds.model_copy(update={"minimum_clients": 4})
    later = replace(world.state.rules, epoch=2, rounds=rounds)
    world.apply(EpochInstalled(now=world.now, rules=later, roster=world.state.roster))
    assert opened(world, 0, 1, 2) is None
    assert who(opened(world, 0, 1, 2, 3)) == ("count", {0, 1, 2, 3})


def test_whom_a_round_has_no_room_for_is_no_reason_to_count():
    limited = replace(rules(needs_reveal=False, exact=True, minimum_clients=2), most_summands=3)
    world = World.new(limited, 5)
    (first,) = world.tick(0, 1, 2, 3, 4)
    asked = who(first)[1]
    assert len(asked) == 3
    answered(world, *asked)
    assert who(opened(world, 0, 1, 2, 3, 4)) == ("train", asked)


def test_measuring_at_the_end_is_over_whoever_is_here():
    world = counted(0, 1, 2, total=1)
    world.tick(0, 1, 2)
    answered(world, 0, 1, 2)
    assert who(opened(world, 3, 4)) == ("evaluate", {3, 4})


def test_what_is_drawn_anew_in_every_round_is_over_whoever_is_here():
    world = World.new(rules(needs_reveal=False, minimum_clients=2), 5)
    world.tick(0, 1, 2)
    answered(world, 0, 1, 2)
    assert who(opened(world, 0, 3)) == ("train", {0, 3})
    assert isinstance(world.state, State) and world.state.last_count is None


GUEST = 6
EVERYBODY = range(7)


def world_of(*, cells=True, exact=False):
    """Return a run of two cells of three and a guest, in its first round."""
    found = rules(
        needs_reveal=cells, exact=exact, deadline_seconds=100.0, minimum_clients=3, total=5
    )
    if cells:
        found = replace(found, partition=cells_of(7, 3, n_guests=1), revealer=client(90))
    world = World.new(found, 7)
    world.tick(*EVERYBODY)
    assert world.state.current is not None and len(world.state.current.asked) == 7
    return world


def tick(world, *gone, seconds=0.0):
    """Let time pass after goodbyes."""
    world.now += seconds
    here = frozenset(client(number) for number in EVERYBODY if number not in gone)
    return world.apply(Tick(now=world.now, live=here, gone=frozenset(map(client, gone))))


def answer(world, *silent):
    """Upload the updates of all others."""
    for number in EVERYBODY:
        if number not in silent:
            world.upload(number)


@pytest.mark.parametrize("cells", [True, False])
def test_a_round_that_lacks_a_guest_alone_closes_before_its_deadline(cells):
    world = world_of(cells=cells)
    answer(world, GUEST)
    assert tick(world) == (), "it has not said goodbye"
    (ended,) = (one for one in tick(world, GUEST) if isinstance(one, CollectingEnded))
    assert (ended.counted, ended.left_out) == (6, frozenset())


def test_others_get_their_time():
    world = world_of()
    answer(world, GUEST, 0)
    assert tick(world, GUEST) == ()
    assert [type(change) for change in world.upload(0)] != [CollectingEnded]
    assert any(isinstance(one, CollectingEnded) for one in tick(world, GUEST))


def test_a_core_member_is_waited_for_as_it_takes_its_cell_along():
    """Acknowledged updates of the others in its cell must not be lost before their time."""
    world = world_of()
    answer(world, 5, GUEST)
    assert tick(world, 5, GUEST) == ()
    assert tick(world, 5, GUEST, seconds=99.0) == ()
    # Back in time, and nothing was lost; the guest alone is missing then.
    world.upload(5)
    (ended,) = (one for one in tick(world, GUEST) if isinstance(one, CollectingEnded))
    assert (ended.counted, ended.left_out) == (6, frozenset())


def test_an_update_that_was_acknowledged_is_counted_whatever_its_client_says_then():
    world = world_of()
    answer(world, 0, 1)
    assert tick(world, GUEST, 2) == ()
    world.upload(0)
    changes = world.upload(1)
    (ended,) = (one for one in changes if isinstance(one, CollectingEnded))
    assert ended.counted == 7


@pytest.mark.parametrize("cells", [True, False])
def test_it_costs_what_not_answering_costs(cells):
    silent, text = world_of(cells=cells), world_of(cells=cells)
    for world in (silent, text):
        answer(world, GUEST)
    tick(silent, seconds=101.0)
    tick(text, GUEST)
    assert text.state.silences == silent.state.silences
    assert {one.times for one in text.state.silences.values()} == {1}


def test_one_without_whom_the_round_cannot_be_divided_has_it_counted_again_at_once():
    world = world_of(cells=False, exact=True)
    answer(world)
    world.sum()
    world.tick(*EVERYBODY)
    round_ = world.state.current
    assert round_ is not None and round_.kind == "train"
    answer(world, GUEST)
    changes = tick(world, GUEST)
    assert [type(change) for change in changes] == [RoundAbandoned]
    assert set(world.state.silences) == {frozenset({client(GUEST)})}, "nobody else is blamed"
    tick(world, GUEST)
    again = world.state.current
    assert again is not None and again.kind == "count" and client(GUEST) not in again.asked
