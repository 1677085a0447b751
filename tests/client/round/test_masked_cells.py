"""A client under masks that is asked for a sum over part of a cell."""

from __future__ import annotations

import json

import pytest
from client.support.masked_federation import MaskedWorld

from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.protection.masks import KeyList
from fedrec.protection.masks.messages import (
    KEY_LIST,
    key_list_from_bytes,
    pack,
    unpack,
)

pytestmark = pytest.mark.slow

LIE = 2
"""The round in which the coordinator leaves somebody out."""


class Lied(MaskedWorld):
    """Four clients who are always together; one of them is under test, another is left out."""

    tested_is_guest = False

    def lie(self, at: str) -> None:
        """Leave a puppet out of what the client is given for a step."""
        honest, out = self.link.masks, self.puppets[0].client_id

        def masks(client_id: str, run: str, round_id: int, step: str) -> bytes:
            raw = honest(client_id, run, round_id, step)
            if (round_id, step) != (LIE, at):
                return raw
            everybody = sorted(member.client_id for member in self.epoch.roster.members)
            if step == "shares":
                keys = key_list_from_bytes(raw).keys
                return KEY_LIST.to_bytes(KeyList(tuple(k for k in keys if k.client_id != out)))
            left = unpack(raw, len(everybody)) - {everybody.index(out)}
            return pack(left, len(everybody))

        self.link.masks = masks  # type: ignore[method-assign]

    def refusals(self) -> list[tuple[str, str, int]]:
        path = self.state / AUDIT_FILE
        lines = path.read_text().splitlines() if path.exists() else []
        return [(one["event"], one["code"], one["round"]) for one in map(json.loads, lines)]


@pytest.mark.parametrize("kind", ["count", "train", "evaluate"])
def test_difference_of_one_client(tmp_path, kind):
    """The sum of all four was opened; that of three would be the fourth's update."""
    world = Lied(tmp_path)
    world.lie("shares")
    world.then(1, kind, given_up=True)
    world.then(LIE, kind)
    assert world.app().run().version == 0
    assert world.refusals() == [("partial_cell", "partial_cell", LIE)]
    assert list(world.played[LIE].sent) == ["keys"], "no share and no vector left the client"


@pytest.mark.parametrize("kind", ["count", "train", "evaluate"])
def test_survivors_with_half_a_cell(tmp_path, kind):
    """It gave its vector away, masked; what would take the masks off it keeps."""
    world = Lied(tmp_path)
    world.lie("signature")
    world.then(1, kind, given_up=True)
    world.then(LIE, kind)
    assert world.app().run().version == 0
    assert world.refusals() == [("partial_cell", "partial_cell", LIE)]
    assert list(world.played[LIE].sent) == ["keys", "shares", "vector"]


def test_without_a_lie_all_is_well(tmp_path):
    world = Lied(tmp_path)
    for number, kind in enumerate(("count", "train", "evaluate"), 1):
        world.then(number, kind)
    assert world.app().run().version == 3
    assert world.refusals() == []
