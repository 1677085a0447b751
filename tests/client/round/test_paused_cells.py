"""What a client makes of a round whose sum leaves a paused cell out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from client.round.test_bounds import PLAN
from client.support.authority_federation import AuthorityWorld
from client.support.fake_federation import FakeRound
from world.cells import partition_of

from fedrec.errors import BadSignature, RefusedError
from fedrec.identity.cells import Standing
from fedrec.ids import RoundId
from fedrec.wire.messages import Wait
from fedrec_authority.opening.sum_opening import _UNFIT
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow


def named(world: AuthorityWorld, round_: FakeRound, *cells: int) -> None:
    """Publish a round whose statement pauses some cells."""
    published = world.publish(round_)
    assert published.statement is not None
    said = replace(published.statement, paused=cells)
    signed = world.membership(world.revealer).sign_statement(said)
    round_.published = replace(published, statement=signed)


def test_a_client_of_a_paused_cell_waits_and_says_for_what(tmp_path):
    """It rolls its round back, and answers no further one, whatever the coordinator asks."""
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    first = world.ask_to_train(1)

    def publish() -> Wait:
        for member in (world.identity, *world.puppets[:3]):
            del first.contributions[member.client_id]
        named(world, first, 1)
        return Wait()

    def ask_again() -> Any:
        return world.train(world.open(2))

    world.link.script += [publish, ask_again]
    world.app().run()
    assert [header.round for header, _ in world.link.uploads] == [1]
    (settled,) = [event for event in world.events if event.name == "published"]
    assert settled.detail == "not_counted: cell_paused"
    (told,) = [event for event in world.events if event.name == "cell_paused"]
    assert "waits until the key authority takes the cell in again" in told.detail
    with PrivateStore(world.state, read_only=True) as store:
        assert (store.state.version, store.state.private, store.state.staged) == (1, None, None)
    # It knows it still when it is started again.
    world.events.clear()
    world.link.script.append(ask_again)
    world.app().run()
    assert len(world.link.uploads) == 1 and "cell_paused" in world.event_names()


def test_a_client_of_another_cell_goes_on(tmp_path):
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    first = world.ask_to_train(1)

    def publish() -> Wait:
        for member in world.puppets[3:]:
            del first.contributions[member.client_id]
        named(world, first, 2)
        return Wait()

    world.link.script.append(publish)
    world.ask_to_train(2)
    world.app().run()
    assert [header.round for header, _ in world.link.uploads] == [1, 2]
    assert "cell_paused" not in world.event_names()
    (settled,) = [event for event in world.events if event.name == "published"]
    assert settled.detail == "counted"


@pytest.mark.parametrize(
    ("cells", "said"), [((2,), "is over clients of cells that are paused"), ((7,), "does not have")]
)
def test_a_word_that_does_not_fit_what_is_published(tmp_path, cells, said):
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    named(world, world.honest_round(), *cells)
    world.link.script.append(Wait)
    with pytest.raises(RefusedError, match=said):
        world.app().run()
    assert '"event":"published_round_refused"' in world.audit()


def test_a_newcomer_is_told_that_it_waits_for_others(tmp_path):
    world = AuthorityWorld(tmp_path, n_puppets=3, **PLAN)
    placed = partition_of(one.client_id for one in world.puppets)
    mine = Standing(client_id=world.identity.client_id)
    standings = (*placed.standings, mine)
    world.epoch = world.make_epoch(partition=replace(placed, standings=standings))
    world.app().run()
    (told,) = [event for event in world.events if event.name == "unplaced"]
    assert told.detail.startswith("a member, and in no sum yet: newcomers are summed with")
    assert told.detail.endswith("2 more have to join")


def test_a_pause_that_somebody_wrote_over_the_signed_word(tmp_path):
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    round_ = world.honest_round()
    published = world.publish(round_)
    assert published.statement is not None
    round_.published = replace(published, statement=replace(published.statement, paused=(3,)))
    world.link.script.append(Wait)
    with pytest.raises(BadSignature):
        world.app().run()


def test_it_says_that_a_round_was_given_up(tmp_path):
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    world.link.script.append(lambda: Wait(reason=_UNFIT, about=RoundId(4)))
    world.app().run()
    (told,) = [event for event in world.events if event.name == "round_refused"]
    assert (told.round, told.detail) == (4, _UNFIT)
