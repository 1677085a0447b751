"""Sums over part of those who are always summed together: the key is not used, nobody applies them.

The coordinator lies here; its own selection is tested in
`tests/server/rounds/test_cell_histories.py`, clients under masks in
`tests/client/round/test_masked_cells.py`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from client.support.authority_federation import AuthorityWorld, refused
from client.support.fake_federation import World
from client.support.following import follow, version
from client.support.key_watch import KeyWatch, put_watch

from fedrec.errors import PartialCell
from fedrec.follower.round_journal import JOURNAL_FILE
from fedrec.ids import RoundId
from fedrec.wire.messages import Wait
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow

PROTECTIONS = ["bfv", "paillier", "ckks"]
PLANS: dict[str, dict[str, Any]] = {
    "paillier": {"update": {"structure": "dense"}, "algorithm": {"dim": 2}},
}


class Waiting(AuthorityWorld):
    """The client under test is one of those who have to be there."""

    tested_is_guest = False


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> KeyWatch:
    return put_watch(monkeypatch)


def told(log: str) -> list[tuple[str, str, int]]:
    lines = [json.loads(line) for line in log.splitlines()]
    return [(line["event"], line["code"], line["round"]) for line in lines]


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("kind", ["count", "train", "evaluate"])
def test_difference_of_one_client(tmp_path, key, kind, protection):
    """Of four who are always together, a sum of three and one of all would tell about the fourth:
    over the same model, called given up, or in another kind of round.
    """
    world = AuthorityWorld(
        tmp_path, protection=protection, n_puppets=4, **PLANS.get(protection, {})
    )
    first = world.honest_round(1, kind)
    world.run_revealer(lambda: world.reveal(first))
    assert key.opened == [world.total(first)], "whole, it is opened"
    world.link.reveals.clear()
    key.opened.clear()
    second = world.open(2, kind)
    world.contribute(second, *world.puppets[1:])
    world.run_revealer(lambda: world.reveal(second))
    refused(world, key)
    assert told(world.refusals()) == [("reveal_refused", "partial_cell", 2)]


def test_survivors_with_half_a_cell(tmp_path, key):
    """One cell whole, of the other two of three: refused whole, not cut down in silence."""
    world = AuthorityWorld(tmp_path, n_puppets=6)
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[:5])
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "partial_cell", "2 clients without 1 others")
    whole = world.open(2)
    world.contribute(whole, *world.puppets[3:])
    world.run_revealer(lambda: world.reveal(whole))
    assert key.opened == [world.total(whole)], "the other cell alone is a sum of three"


def test_a_guest_comes_and_goes(tmp_path, key):
    """It said itself that what it contributed may become computable."""
    world = AuthorityWorld(tmp_path)
    first = world.honest_round(1)
    second = world.honest_round(2)
    world.put_vector(second, world.identity, world.vector(8))
    for round_ in (first, second):
        world.run_revealer(lambda: world.reveal(round_))  # noqa: B023 - called at once
    assert key.opened == [world.total(first), world.total(second)]


def test_guests_make_no_sum(tmp_path, key):
    """Two who wait for each other and a guest are three clients, and too few all the same."""
    world = AuthorityWorld(tmp_path)
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[:2])
    world.put_vector(round_, world.identity, world.vector(8))
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "covers 2 clients that are not guests, expected at least 3")


def test_nobody_applies_a_round_over_half_a_cell(tmp_path):
    """Coordinator and authority may have agreed on it; the clients tell."""
    world = Waiting(tmp_path, n_puppets=5)
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[1:])
    world.publish(round_)
    with pytest.raises(PartialCell):
        follow(world)
    assert version(world) == 0
    assert told(world.audit()) == [("published_partial_cell", "partial_cell", 1)]


def test_who_is_left_out_with_its_cell_rolls_back(tmp_path):
    world = Waiting(tmp_path, n_puppets=5)
    world.whole_round(1, "count")
    world.app().run()
    before = PrivateStore(world.state, read_only=True).state.private
    round_ = world.ask_to_train(2)

    def without_the_first_cell() -> Wait:
        for member in (world.identity, *world.puppets[:2]):
            round_.contributions.pop(member.client_id, None)
        world.publish(round_)
        return Wait()

    world.link.script.append(without_the_first_cell)
    assert world.app().run().version == 2
    state = PrivateStore(world.state, read_only=True).state
    assert (state.staged, state.private) == (None, before)
    lines = [json.loads(line) for line in (world.state / JOURNAL_FILE).read_text().splitlines()]
    assert [(line["round"], line["outcome"]) for line in lines][-1] == (2, "not_counted")
    details = [event.detail for event in world.events if event.name == "published"]
    assert "not_counted: cell_incomplete" in details


def test_a_world_without_cells_has_no_such_rule(tmp_path):
    """The papers' protocol: everybody is taken to be honest but curious."""
    world = World(tmp_path, n_puppets=4)
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[1:])
    world.publish(round_)
    assert follow(world) == 1
    assert world.published_round == RoundId(1)
