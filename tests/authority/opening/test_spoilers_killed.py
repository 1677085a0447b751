"""An authority that is killed while it opens cells names the same cell, and opens nothing twice."""

from __future__ import annotations

from typing import Any

import pytest
from authority.opening.spoiling import added, check_published_over, inflated_row, spoilt, state_of
from client.round.test_bounds import PLAN
from client.support.authority_federation import AuthorityWorld
from client.support.fake_link import Killed
from client.support.key_watch import KeyWatch, put_watch

from fedrec_authority.folder.opened_sums import OpenedSums

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_killed_between_noting_and_opening(tmp_path, opened, monkeypatch):
    """It opens the same sums again and says the same; nothing else was ever opened."""
    key = put_watch(monkeypatch)
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 5)
    round_ = world.honest_round()
    cells = [added(world, round_, 0, 1, 2), added(world, round_, 3, 4, 5)]
    reveal = KeyWatch.reveal

    def killed(watch: KeyWatch, total: bytes, n_summands: int, names: Any = None) -> Any:
        if len(watch.opened) == opened:
            raise Killed
        return reveal(watch, total, n_summands, names)

    monkeypatch.setattr(KeyWatch, "reveal", killed)
    with pytest.raises(Killed):
        world.run_revealer(lambda: world.reveal(round_))
    (noted,) = state_of(world).revealed
    assert [one.cell for one in noted.cells] == [1, 2][:opened]
    monkeypatch.setattr(KeyWatch, "reveal", reveal)
    world.run_revealer(lambda: world.reveal(round_))
    check_published_over(world, round_, (2,), 0, 1, 2)
    assert set(key.opened) == {world.total(round_), *cells}
    (noted,) = state_of(world).revealed
    assert [one.cell for one in noted.cells] == [1, 2]


def test_killed_between_the_pause_and_the_word(tmp_path, key, monkeypatch):
    """What is paused is on disk before anybody hears of it; another list is refused for good."""
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 5)
    round_ = world.honest_round()

    def killed(name: str) -> None:
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
    assert "was opened with other contributions before" in world.refusals()


@pytest.mark.parametrize("at", ["record_opened", "opened", "submit_reveal"])
def test_killed_around_the_word_the_chain_stays_one(tmp_path, at, monkeypatch):
    """Asked again with the full list, it says the same, or for the first time."""
    world = AuthorityWorld(tmp_path, n_puppets=6, **PLAN)
    spoilt(world, inflated_row, monkeypatch, 5)
    round_ = world.honest_round()
    keep = OpenedSums.record_opened

    def killed(store: OpenedSums, *what: Any) -> None:
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


def _kill_at(name: str, wanted: str) -> None:
    if name == wanted:
        raise Killed
