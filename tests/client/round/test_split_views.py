"""A coordinator that tells clients of one round different things is named by those that see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from client.support.masked_federation import MaskedWorld

from fedrec.errors import BadSignature, ProtocolError, SplitView
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.identity.identity import Identity
from fedrec.protection.masks.messages import (
    INBOX,
    signatures_from_bytes,
    signatures_to_bytes,
)
from fedrec.wire.messages import PublishedRound, StepMessage

LIE = 1


def told(world: MaskedWorld) -> list[tuple[str, str]]:
    """Return the audit log's events and codes, once the people at the terminal heard of each."""
    path = world.state / AUDIT_FILE
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    heard = [event for event in world.events if event.name == "split_view"]
    assert len(heard) == len(lines)
    for event, line in zip(heard, lines, strict=True):
        assert event.detail.startswith(line["message"]) and event.round == LIE
    return [(line["event"], line["code"]) for line in lines]


def lying(world: MaskedWorld, at: str, lie: Callable[[bytes], bytes]) -> None:
    honest = world.link.masks

    def masks(client_id: str, run: str, round_id: int, step: str) -> bytes:
        raw = honest(client_id, run, round_id, step)
        return lie(raw) if (round_id, step) == (LIE, at) else raw

    world.link.masks = masks  # type: ignore[method-assign]


def of_another_set(raw: bytes) -> bytes:
    """Return signatures over other survivors, as a second group would sign them."""
    other = Identity.create("x").sign(b"others survived")
    # A client doesn't look at its own, which may be any of them.
    return signatures_to_bytes(dict.fromkeys(signatures_from_bytes(raw), other))


def of_another_list(raw: bytes) -> bytes:
    """Return shares that were sealed for another list of keys."""
    inbox = INBOX.from_bytes(raw)
    return INBOX.to_bytes(
        replace(inbox, sealed=tuple(bytes([one[0] ^ 1, *one[1:]]) for one in inbox.sealed))
    )


def test_signatures_over_another_set(tmp_path):
    world = MaskedWorld(tmp_path)
    lying(world, "answer", of_another_set)
    world.then(LIE, "count")
    assert world.app().run().version == 0
    assert told(world) == [("split_view", "split_view")]
    assert "answer" not in world.played[LIE].sent, "what would open the sum stays here"


def test_shares_for_another_list_of_keys(tmp_path):
    world = MaskedWorld(tmp_path)
    lying(world, "vector", of_another_list)
    world.then(LIE, "count")
    assert world.app().run().version == 0
    assert told(world) == [("split_view", "split_view")]
    assert list(world.played[LIE].sent) == ["keys", "shares"], "no vector left the client"


@pytest.mark.parametrize(
    ("step", "refusal"),
    [("signature", BadSignature("not this")), ("vector", ProtocolError("something else"))],
)
def test_a_coordinator_that_holds_another_set_or_list(tmp_path, step, refusal):
    world = MaskedWorld(tmp_path)
    submit_masks, submit_update = world.link.submit_masks, world.link.submit_update

    def masks(message: StepMessage) -> bool:
        if message.step == step:
            raise refusal
        return submit_masks(message)

    def update(*sent: object) -> bool:
        if step == "vector":
            raise refusal
        return submit_update(*sent)  # type: ignore[arg-type]

    world.link.submit_masks, world.link.submit_update = masks, update  # type: ignore[method-assign]
    world.then(LIE, "count")
    assert world.app().run().version == 0
    assert told(world) == [("split_view", "split_view")]


def test_a_round_that_others_agreed_on_otherwise(tmp_path):
    """This client's vector was taken, and the published list is one that it was never shown."""
    world = MaskedWorld(tmp_path)
    honest = world.link.published

    def published(client_id: str, run: str, after: int) -> PublishedRound | None:
        found = honest(client_id, run, after)
        if found is None:
            return None
        others = []
        for header in found.contributions:
            person = next(
                one for one in (world.identity, *world.puppets) if one.client_id == header.client_id
            )
            if person is world.identity:
                continue
            other = replace(header, key_list=b"\x07" * 32)
            others.append(replace(other, signature=person.sign(other.statement())))
        return replace(found, contributions=tuple(others))

    world.link.published = published  # type: ignore[method-assign]
    world.then(LIE, "count")
    with pytest.raises(SplitView, match="another list of keys"):
        world.app().run()
    assert told(world) == [("split_view", "split_view")]


def test_nobody_is_named_where_all_is_well(tmp_path):
    world = MaskedWorld(tmp_path)
    for number, kind in enumerate(("count", "train", "evaluate"), 1):
        world.then(number, kind)
    assert world.app().run().version == 3
    assert told(world) == []
