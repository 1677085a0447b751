"""A client under masks signs no two sums that differ by too few clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from client.masked_federation import MaskedWorld

from fedrec.errors import RevealRefused, StorageError
from fedrec.ids import ClientId
from fedrec_client.audit import AUDIT_FILE
from fedrec_client.opened_sets import OpenedSets


def refusals(world: MaskedWorld) -> list[tuple[int, str]]:
    path = world.state / AUDIT_FILE
    lines = path.read_text().splitlines() if path.exists() else []
    return [(found["round"], found["event"]) for found in map(json.loads, lines)]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("until", ["signature", "answer"])
def test_a_sum_without_one_client_of_an_earlier_one_is_not_opened(
    tmp_path: Path, until: str, restarted: bool
) -> None:
    """The coordinator opens a sum, says that it was given up, and wants it without a victim."""
    world = MaskedWorld(tmp_path)
    world.then(1, "count", until=until, given_up=True)  # type: ignore[arg-type]
    if restarted:
        assert world.app().run().version == 0
    world.then(2, "count", without=1)
    world.then(3, "count")
    assert world.app().run().version == 3
    assert refusals(world) == [(2, "survivors_refused")]
    assert "signature" not in world.played[2].sent


def test_another_kind_of_round_over_the_same_version_is_no_way_around(tmp_path: Path) -> None:
    world = MaskedWorld(tmp_path)
    world.then(1, "count", given_up=True)
    world.then(2, "train", without=1)
    assert world.app().run().version == 0
    assert refusals(world) == [(2, "survivors_refused")]


def test_over_the_next_version_others_may_be_there(tmp_path: Path) -> None:
    world = MaskedWorld(tmp_path)
    world.then(1, "count")
    world.then(2, without=1)
    world.then(3)
    assert world.app().run().version == 3
    assert refusals(world) == []


def test_a_set_before_it_was_signed_does_not_count(tmp_path: Path) -> None:
    world = MaskedWorld(tmp_path)
    world.then(1, "count", until="vector")
    world.then(2, "count", without=1)
    assert world.app().run().version == 2


def test_the_file_gives_back_what_was_signed() -> None:
    sets = tuple(frozenset(map(ClientId, names)) for names in ("abcdef", "abc"))
    kept = OpenedSets(model="m", sets=sets, counts=sets[:1])
    assert OpenedSets.from_bytes(kept.to_bytes()) == kept
    for damaged in (b"", b"{}", kept.to_bytes()[:-3], b"[1]"):
        with pytest.raises(StorageError):
            OpenedSets.from_bytes(damaged)
    other = frozenset(map(ClientId, "abcde"))
    with pytest.raises(RevealRefused, match="fewer than 3"):
        kept.with_one("m", "train", other, 3)
    assert kept.with_one("n", "train", other, 3).sets == (other,)
    with pytest.raises(RevealRefused, match="fewer than 3"):
        # Item counts are the same whatever the model is.
        kept.with_one("n", "count", other, 3)


def test_a_model_that_is_called_another_version_is_the_same(tmp_path: Path) -> None:
    """A coordinator that publishes nothing but zeros wants the sum again, without a victim."""
    world = MaskedWorld(tmp_path)
    world.then(1, "count")
    world.then(2, "evaluate")
    world.then(3, "evaluate", without=1)
    assert world.app().run().version == 2
    assert refusals(world) == [(3, "survivors_refused")]
