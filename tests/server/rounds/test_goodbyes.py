"""A client that says goodbye in a round did not answer it: that is known sooner, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from server.rounds.test_backoff import cells_of
from server.support.made_messages import client, rules
from server.support.world import World

from fedrec_server.rounds.changes import Change, CollectingEnded, RoundAbandoned
from fedrec_server.rounds.events import Tick

GUEST = 6
EVERYBODY = range(7)


def world_of(*, cells: bool = True, exact: bool = False) -> World:
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


def tick(world: World, *gone: int, seconds: float = 0.0) -> tuple[Change, ...]:
    """Let time pass after goodbyes."""
    world.now += seconds
    here = frozenset(client(number) for number in EVERYBODY if number not in gone)
    return world.apply(Tick(now=world.now, live=here, gone=frozenset(map(client, gone))))


def answer(world: World, *silent: int) -> None:
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
    silent, said = world_of(cells=cells), world_of(cells=cells)
    for world in (silent, said):
        answer(world, GUEST)
    tick(silent, seconds=101.0)
    tick(said, GUEST)
    assert said.state.silences == silent.state.silences
    assert {one.times for one in said.state.silences.values()} == {1}


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
