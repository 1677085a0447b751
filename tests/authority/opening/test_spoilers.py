"""An authority finds the cells that spoil a sum.

Of the two or three cells of puppets the spoiler is in the last.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from world.fake_authority import (
    ATTACKS,
    PLAN,
    AuthorityWorld,
    added,
    audited,
    check_published_over,
    inflated_row,
    killed_when_opened,
    spoilt,
    state_of,
)
from world.fake_link import Killed, put_watch

from fedrec.errors import RoundError
from fedrec.identity.authority import ROSTERS_FOLDER
from fedrec.identity.document import write_public
from fedrec.ids import RoundId
from fedrec.protection import VectorSpec
from fedrec.wire.messages import Wait
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.opening.revealer import STATE_FOLDER
from fedrec_authority.opening.sum_opening import _NOT_THEIRS, _UNFIT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("protection", ["bfv", "ckks", "paillier"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_cell_is_named_in_the_same_round(tmp_path, attack, protection, monkeypatch):
    """What is published is over the other cell; the key was used on three sums, each once."""
    key = put_watch(monkeypatch)
    world = AuthorityWorld(tmp_path, protection=protection, n_puppets=6, **PLAN)
    spoilt(world, attack, monkeypatch, 5)
    round_ = world.honest_round()
    world.run_revealer(lambda: world.reveal(round_))
    check_published_over(world, round_, (2,), 0, 1, 2)
    cells = [added(world, round_, 0, 1, 2), added(world, round_, 3, 4, 5)]
    assert key.opened == [world.total(round_), *cells]
    assert world.link.declined == []
    assert audited(world) == [("cell_paused", "sum_out_of_bounds")]
    assert "Cell 2 is paused: In the sum of a round of kind train" in world.refusals()
    (seen,) = [event for event in world.events if event.name == "cell paused"]
    assert seen.detail.startswith(
        "cell 2: one of its clients sent something that no honest client sends"
    )
    state = state_of(world)
    assert [(one.cell, one.round) for one in state.paused] == [(2, 1)]
    assert state.refused_sums == 0


def test_two_spoilers_in_two_cells(tmp_path, key, monkeypatch):
    world = AuthorityWorld(tmp_path, n_puppets=9, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 0, 8)
    round_ = world.honest_round()
    world.run_revealer(lambda: world.reveal(round_))
    check_published_over(world, round_, (1, 3), 3, 4, 5)
    assert len(key.opened) == 4


def test_it_follows_its_own_round_and_names_the_cell_from_then_on(tmp_path, key, monkeypatch):
    """The authority takes in what was published over the good cells, and goes on from there."""
    world = AuthorityWorld(tmp_path, n_puppets=9, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 8)
    first = world.honest_round(1)

    def publish():
        for puppet in world.puppets[6:]:
            del first.contributions[puppet.client_id]
        world.publish(first)
        ((text, sealed),) = world.link.reveals
        assert first.published is not None
        object.__setattr__(first.published, "statement", text)
        object.__setattr__(first.published, "blob", sealed)
        return Wait()

    def second(*numbers):
        def task():
            round_ = world.open(2 + (len(numbers) < 9))
            for number in numbers:
                world.put_vector(round_, world.puppets[number], world.vector(number, round_))
            return world.reveal(round_)

        return task

    world.run_revealer(lambda: world.reveal(first), publish, second(*range(9)), second(*range(6)))
    assert state_of(world).version == 1
    # A coordinator that asks the paused cell again hears that it is paused.
    (declined,) = world.link.declined
    assert declined.refused == "Round 2 has contributions from paused cells: cell 3."
    assert declined.paused == (3,)
    _, (again, _) = world.link.reveals
    assert (again.round, again.paused) == (3, (3,))
    assert len(key.opened) == 4 + 1, "the key was not used on the sum with a paused cell"


def test_a_paused_cell_is_in_no_round_of_a_lower_number(tmp_path, key, monkeypatch):
    """Rounds that were given up start from one model: presented from the last to the first, each
    would be another answer about the same cell.
    """
    world = AuthorityWorld(tmp_path, n_puppets=9, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 8)
    rounds = [world.honest_round(number) for number in (5, 4, 3)]
    world.run_revealer(*(lambda each=each: world.reveal(each) for each in rounds))
    assert len(key.opened) == 4
    ((text, _),) = world.link.reveals
    assert (text.round, text.paused) == (5, (3,))
    assert [(one.round, one.paused) for one in world.link.declined] == [(4, (3,)), (3, (3,))]
    assert all("paused cells: cell 3" in one.refused for one in world.link.declined)


def test_a_paused_cell_stays_so_in_another_run(tmp_path, key, monkeypatch):
    """Its rounds begin with 1, before the one in which the cell was paused, or with that number."""
    world = AuthorityWorld(tmp_path, n_puppets=9, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 8)
    bad = world.honest_round(2)
    world.run_revealer(lambda: world.reveal(bad))
    world.link.reveals.clear()
    known, world.run = len(key.opened), "run-2"
    for number in (1, 2):
        again = world.honest_round(number)
        world.run_revealer(lambda again=again: world.reveal(again), new_run=True)
    assert len(key.opened) == known and world.link.reveals == []
    # The new coordinator hears of it in this way, and asks the others.
    assert [(one.round, one.paused) for one in world.link.declined] == [(1, (3,)), (2, (3,))]


@pytest.mark.parametrize("made", [1, 2, 3])
def test_a_cell_that_is_paused_after_the_next_epoch_was_made(tmp_path, key, monkeypatch, made):
    """That epoch's roster cannot say so; where the pause came before, the roster has the word."""
    world = AuthorityWorld(tmp_path, n_puppets=9, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 8)
    rosters = world.keys.private / ROSTERS_FOLDER
    write_public(rosters / f"{made:08d}.json", world.make_epoch(epoch=made).roster.to_json())
    bad = world.honest_round(2)
    world.run_revealer(lambda: world.reveal(bad))
    world.epoch = world.make_epoch(epoch=2)
    assert world.keys.paused == (3,), "the roster that is made next names it"
    opened = len(key.opened)
    later = world.honest_round(3)
    world.run_revealer(lambda: world.reveal(later))
    if made == 1:
        # As where `fedrec keys roster resume` took it in again.
        assert len(key.opened) > opened
        return
    (declined,) = world.link.declined
    assert (declined.round, declined.epoch, declined.paused) == (3, 2, (3,))
    assert "paused cells: cell 3" in declined.refused and len(key.opened) == opened


@pytest.mark.parametrize("known", [(), (1,)])
def test_an_authority_from_an_older_backup_learns_which_cells_were_paused(
    tmp_path, key, known, monkeypatch
):
    """What was said since by the lost folder; what the backup knew was for its operator to say."""
    world = AuthorityWorld(tmp_path, n_puppets=9, **PLAN)
    world.run_revealer(Wait)
    last = world.state_of(world.honest_round())[0]
    signs, seen = world.membership(world.revealer).sign_statement, world.info
    with OpenedSums(world.keys.revealer.folder / STATE_FOLDER) as store:
        store.record_statement(signs(replace(last, sequence=2, paused=known)))
    shown = signs(replace(last, round=RoundId(2), sequence=7, paused=(1, 3)))
    world.epoch = world.make_epoch(epoch=2)
    monkeypatch.setattr(world, "info", lambda **more: seen(**{"statement": shown} | more))
    rounds = [world.honest_round(number) for number in (3, 4)]
    new = tuple(cell for cell in (1, 3) if cell not in known)
    for puppet in [each for cell in new for each in world.puppets[3 * cell - 3 : 3 * cell]]:
        del rounds[1].contributions[puppet.client_id]
    world.run_revealer(*(lambda each=each: world.reveal(each) for each in rounds))
    (declined,) = world.link.declined
    assert (declined.round, declined.paused, declined.sequence) == (3, new, 8)
    assert "paused cells" in declined.refused
    ((text, _),) = world.link.reveals
    assert (text.round, text.paused) == (4, new)
    assert len(key.opened) == 1


def test_cell_opening_under_dp(tmp_path, key, monkeypatch):
    """A single cell carries less noise than the promise counts on: it is never opened."""
    world = AuthorityWorld(
        tmp_path,
        n_puppets=6,
        **{**PLAN, "update": {**PLAN["update"], "clip": 0.25}},
        privacy={"mechanism": "gaussian", "epsilon": 8.0, "delta": 1e-6},
    )
    honest = world.vector

    def vector(seed, round_=None):
        found = honest(seed, round_)
        if seed == 5:
            found[world.layout.count_slice] = 1
        return found

    monkeypatch.setattr(world, "vector", vector)
    monkeypatch.setattr(VectorSpec, "validated", lambda self, vector: vector)
    round_ = world.honest_round()
    world.run_revealer(lambda: world.reveal(round_))
    assert key.opened == [world.total(round_)]
    assert world.link.reveals == []
    (declined,) = world.link.declined
    assert (declined.refused, declined.paused) == (_UNFIT, ())
    assert state_of(world).paused == ()


@pytest.mark.parametrize(("n_paused", "spoilers"), [(16, (8,)), (15, (0, 8))])
def test_the_seventeenth_cell_is_not_paused(tmp_path, key, n_paused, spoilers, monkeypatch):
    """Each tells a little about the key: from then on the round is given up until a new epoch."""
    world = AuthorityWorld(tmp_path, n_puppets=9, **PLAN)
    spoilt(world, inflated_row, monkeypatch, *spoilers)
    bad = world.honest_round(2)
    world.run_revealer(Wait)
    with OpenedSums(world.keys.revealer.folder / STATE_FOLDER) as store:
        cells = tuple(range(100, 100 + n_paused))
        store.record_paused(RoundId(1), cells, b"", newest=1)
    world.run_revealer(lambda: world.reveal(bad))
    assert world.link.reveals == []
    (declined,) = world.link.declined
    assert declined.refused == _UNFIT and len(declined.paused) == n_paused
    assert len(state_of(world).paused) == n_paused
    assert len(key.opened) == (1 if n_paused == 16 else 4)
    world.epoch = world.make_epoch(epoch=2)
    world.run_revealer(lambda: world.reveal(world.honest_round(3)))
    ((text, _),) = world.link.reveals
    assert len(text.paused) == len(spoilers)


def test_the_sixteenth_cell_is_paused(tmp_path, key, monkeypatch):
    world = AuthorityWorld(tmp_path, n_puppets=9, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 8)
    bad = world.honest_round(2)
    world.run_revealer(Wait)
    with OpenedSums(world.keys.revealer.folder / STATE_FOLDER) as store:
        store.record_paused(RoundId(1), tuple(range(100, 115)), b"", newest=1)
    world.run_revealer(lambda: world.reveal(bad))
    assert world.link.declined == []
    assert len(state_of(world).paused) == 16


def test_where_all_cells_are_needed_nothing_is_taken_apart(tmp_path, key, monkeypatch):
    world = AuthorityWorld(tmp_path, n_puppets=6, rounds={"minimum_clients": 6}, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 5)
    round_ = world.honest_round()
    world.run_revealer(lambda: world.reveal(round_))
    assert key.opened == [world.total(round_)] and world.link.reveals == []
    assert [text.refused for text in world.link.declined] == [_UNFIT]


def test_too_few_are_left(tmp_path, key, monkeypatch):
    """One cell could be spared, two cannot: no client is paused, and the round is given up."""
    world = AuthorityWorld(tmp_path, n_puppets=9, rounds={"minimum_clients": 6}, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 0, 8)
    round_ = world.honest_round()
    world.run_revealer(lambda: world.reveal(round_))
    assert len(key.opened) == 4 and world.link.reveals == []
    assert [(text.refused, text.paused) for text in world.link.declined] == [(_UNFIT, ())]
    assert state_of(world).paused == ()


def test_a_contribution_that_cannot_be_added(tmp_path, key):
    """Its author signed it, whatever coordinator took it in; there is no sum of all to open."""
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    round_ = world.honest_round()
    honest = world.reveal(round_)
    world.put(round_, world.puppets[5], bytes(world.protection.chosen.message_bytes))
    world.run_revealer(lambda: replace(honest, contributions=round_.headers))
    check_published_over(world, round_, (2,), 0, 1, 2)
    assert key.opened == [added(world, round_, 0, 1, 2)]


def test_other_bytes_than_the_signed_ones_blame_no_cell(tmp_path, key):
    """The coordinator alone can send them: it must not be able to bring a cell into that."""
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    round_ = world.honest_round()
    other, victim = world.half().protect(world.vector(8), b"any"), world.puppets[5].client_id
    world.link.payload_of = lambda who, payload: other if who == victim else payload
    world.run_revealer(lambda: world.reveal(round_))
    assert key.opened == [] and world.link.reveals == []
    assert "do not match its signature" in world.refusals()
    assert state_of(world).paused == ()


TAGGED: dict[str, Any] = {**PLAN, "rounds": {"recompute_limit": 3, "cells_per_round": 2}}


def wrongly_tagged(tmp_path, plan):
    """Return a world, and a round whose last update has another one's tags."""
    world = AuthorityWorld(tmp_path, n_puppets=6, **plan)
    round_, spoiler = world.honest_round(), world.puppets[5]
    member = world.round_vector(round_, spoiler).member
    world.put(round_, spoiler, member.protect(world.vector(5, round_), b"another name"))
    return world, round_


def test_above_the_limit_it_adds_up_itself_what_a_member_tagged_wrongly(tmp_path, key):
    world, round_ = wrongly_tagged(tmp_path, TAGGED)
    world.run_revealer(lambda: world.reveal(round_))
    check_published_over(world, round_, (2,), 0, 1, 2)
    assert world.link.calls.count("contribution") == 6
    assert state_of(world).refused_sums == 0, "it cost a cell"
    assert audited(world) == [("cell_paused", "wrong_tags")]


def test_above_the_limit_a_forged_sum_blames_no_cell(tmp_path, key):
    """Every cell is fit: it was the coordinator."""
    world = AuthorityWorld(tmp_path, n_puppets=6, **TAGGED)
    round_ = world.honest_round()
    world.link.round_sum = lambda *_: added(world, round_, 0, 0, 1, 2, 3, 4)  # type: ignore[method-assign]
    world.run_revealer(lambda: world.reveal(round_))
    assert world.link.reveals == []
    assert [(text.refused, text.paused) for text in world.link.declined] == [(_NOT_THEIRS, ())]
    assert state_of(world).refused_sums == 1


@pytest.mark.parametrize(("attack", "cost"), [(inflated_row, 0), (None, 1)])
def test_a_round_that_is_abandoned_meanwhile_costs_one_wrong_sum_at_most(
    tmp_path, attack, cost, monkeypatch
):
    """Asking again costs nothing more, and right tags nothing at all."""
    world = AuthorityWorld(tmp_path, n_puppets=6, **TAGGED)
    if attack is not None:
        spoilt(world, attack, monkeypatch, 5)
    round_ = world.honest_round()
    if attack is None:
        world.link.round_sum = lambda *_: added(world, round_, 0, 0, 1, 2, 3, 4)  # type: ignore[method-assign]

    def gone(*_):
        raise RoundError("The round has no contribution from that client.")

    monkeypatch.setattr(world.link, "contribution", gone)
    world.run_revealer(*[lambda: world.reveal(round_)] * 3)
    assert world.link.reveals == world.link.declined == []
    assert state_of(world).refused_sums == cost


def test_a_coordinator_that_withholds_single_updates_has_no_free_tries(tmp_path, monkeypatch):
    """It lets the authority add up a colluder's wrongly tagged update, and hides the cells'."""
    world, round_ = wrongly_tagged(tmp_path, PLAN)
    fetched, fetch = count(1), world.link.contribution

    def withheld(*asked):
        if next(fetched) % 7 == 0:
            raise RoundError("The round has no contribution from that client.")
        return fetch(*asked)

    monkeypatch.setattr(world.link, "contribution", withheld)
    world.run_revealer(*[lambda: world.reveal(round_)] * 3)
    assert next(fetched) == 22, "each time the whole sum, and one more"
    assert world.link.reveals == world.link.declined == []
    assert state_of(world).refused_sums == 1


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_killed_between_noting_and_opening(tmp_path, opened, monkeypatch):
    """It opens the same sums again and says the same; nothing else was ever opened."""
    key = put_watch(monkeypatch)
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 5)
    round_ = world.honest_round()
    cells = [added(world, round_, 0, 1, 2), added(world, round_, 3, 4, 5)]
    with killed_when_opened(opened):
        world.run_revealer(lambda: world.reveal(round_))
    (noted,) = state_of(world).revealed
    assert [one.cell for one in noted.cells] == [1, 2][:opened]
    world.run_revealer(lambda: world.reveal(round_))
    check_published_over(world, round_, (2,), 0, 1, 2)
    assert set(key.opened) == {world.total(round_), *cells}
    (noted,) = state_of(world).revealed
    assert [one.cell for one in noted.cells] == [1, 2]


def test_killed_between_the_pause_and_the_word(tmp_path, key, monkeypatch):
    """What is paused is on disk before it is announced; another list is refused for good."""
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 5)
    round_ = world.honest_round()

    def killed(name):
        if name == "submit_reveal":
            raise Killed

    world.link.before = killed
    with pytest.raises(Killed):
        world.run_revealer(lambda: world.reveal(round_))
    world.link.before = lambda name: None
    assert [one.cell for one in state_of(world).paused] == [2]
    known = set(key.opened)
    world.run_revealer(lambda: world.reveal(round_))
    check_published_over(world, round_, (2,), 0, 1, 2)
    del round_.contributions[world.puppets[5].client_id]
    world.put_vector(round_, world.puppets[5], world.vector(1))
    world.run_revealer(lambda: world.reveal(round_))
    assert len(world.link.reveals) == 1 and set(key.opened) == known
    assert "already opened with other contributions" in world.refusals()


@pytest.mark.parametrize("at", ["record_opened", "opened", "submit_reveal"])
def test_killed_around_the_word_the_chain_stays_one(tmp_path, at, monkeypatch):
    """Asked again with the full list, it says the same, or for the first time."""
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 5)
    round_ = world.honest_round()
    keep = OpenedSums.record_opened

    def killed(store, *what):
        if at == "opened":
            keep(store, *what)
        raise Killed

    if at == "submit_reveal":
        world.link.before = lambda name: _kill_at(name, "submit_reveal")
    else:
        monkeypatch.setattr(OpenedSums, "record_opened", killed)
    with pytest.raises(Killed):
        world.run_revealer(lambda: world.reveal(round_))
    world.link.before = lambda name: None
    monkeypatch.setattr(OpenedSums, "record_opened", keep)
    before = state_of(world)
    assert [one.cell for one in before.paused] == [2]
    world.run_revealer(lambda: world.reveal(round_), lambda: world.reveal(round_))
    (first, sealed), (second, again) = world.link.reveals
    assert (first, sealed) == (second, again)
    assert (first.sequence, first.paused) == (1, (2,)) and before.head in (None, first)
    assert state_of(world).head == first


def _kill_at(name, wanted):
    if name == wanted:
        raise Killed
