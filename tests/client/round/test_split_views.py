"""What a client refuses: split views, broken cells and an authority among the members.

The coordinator lies here. Its own selection is tested in
`tests/server/rounds/test_cell_histories.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import tenseal
from world.fake_authority import AuthorityWorld, refused
from world.fake_federation import World
from world.fake_link import follow, put_watch, version
from world.fake_masks import MaskedWorld

from fedrec.errors import (
    BadSignature,
    KeysError,
    PartialCell,
    ProtocolError,
    RefusedError,
    SplitView,
)
from fedrec.follower.enrolment import enrol
from fedrec.follower.round_journal import AUDIT_FILE, JOURNAL_FILE
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.protection.masks.messages import (
    INBOX,
    signatures_from_bytes,
    signatures_to_bytes,
)
from fedrec.protection.protection_plan import CONTEXT_BYTES
from fedrec.wire.messages import PublishedRound, Wait
from fedrec_client.state.private_store import PrivateStore

LIE = 1


def audited(world):
    """Return the audit log's events and codes, once the people at the terminal heard of each."""
    path = world.state / AUDIT_FILE
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    heard = [event for event in world.events if event.name == "split_view"]
    assert len(heard) == len(lines)
    for event, line in zip(heard, lines, strict=True):
        assert event.detail.startswith(line["message"]) and event.round == LIE
    return [(line["event"], line["code"]) for line in lines]


def lying(world, at, lie):
    honest = world.link.masks

    def masks(client_id, run, round_id, step):
        raw = honest(client_id, run, round_id, step)
        return lie(raw) if (round_id, step) == (LIE, at) else raw

    world.link.masks = masks  # type: ignore[method-assign]


def of_another_set(raw):
    """Return signatures over other survivors, as a second group would sign them."""
    other = Identity.create("x").sign(b"others survived")
    # A client doesn't look at its own, which may be any of them.
    return signatures_to_bytes(dict.fromkeys(signatures_from_bytes(raw), other))


def of_another_list(raw):
    """Return shares that were sealed for another list of keys."""
    inbox = INBOX.from_bytes(raw)
    return INBOX.to_bytes(
        replace(inbox, sealed=tuple(bytes([one[0] ^ 1, *one[1:]]) for one in inbox.sealed))
    )


@pytest.mark.parametrize(
    ("step", "lie", "kept"),
    [
        ("answer", of_another_set, {"answer"}),
        ("vector", of_another_list, {"vector", "signature", "answer"}),
    ],
)
def test_what_is_not_of_this_client_s_round_gets_no_answer(tmp_path, step, lie, kept):
    """What would open the sum stays here, and the vector where the list of keys is another one."""
    world = MaskedWorld(tmp_path)
    lying(world, step, lie)
    world.then(LIE, "count")
    assert world.app().run().version == 0
    assert audited(world) == [("split_view", "split_view")]
    assert kept.isdisjoint(world.played[LIE].sent)


@pytest.mark.parametrize(
    ("step", "lie", "event"),
    [
        ("vector", lambda raw: raw[:-1], "mask_inbox_refused"),
        ("answer", lambda raw: b"", "shares_refused"),
    ],
)
def test_what_a_step_cannot_use_is_named_by_the_step(tmp_path, step, lie, event):
    world = MaskedWorld(tmp_path)
    lying(world, step, lie)
    world.then(LIE, "count")
    assert world.app().run().version == 0
    assert [json.loads(line)["event"] for line in world.audit().splitlines()] == [event]
    assert step not in world.played[LIE].sent


@pytest.mark.parametrize(
    ("step", "refusal"),
    [("signature", BadSignature("not this")), ("vector", ProtocolError("something else"))],
)
def test_a_coordinator_that_holds_another_set_or_list(tmp_path, step, refusal):
    world = MaskedWorld(tmp_path)
    submit_masks, submit_update = world.link.submit_masks, world.link.submit_update

    def masks(message):
        if message.step == step:
            raise refusal
        return submit_masks(message)

    def update(*sent):
        if step == "vector":
            raise refusal
        return submit_update(*sent)  # type: ignore[arg-type]

    world.link.submit_masks, world.link.submit_update = masks, update  # type: ignore[method-assign]
    world.then(LIE, "count")
    assert world.app().run().version == 0
    assert audited(world) == [("split_view", "split_view")]


def test_a_round_that_others_agreed_on_otherwise(tmp_path):
    """This client's vector was taken, and the published list is one that it was never shown."""
    world = MaskedWorld(tmp_path)
    honest = world.link.published

    def published(client_id, run, after):
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
    with pytest.raises(SplitView, match="different list of keys"):
        world.app().run()
    assert audited(world) == [("split_view", "split_view")]


PROTECTIONS = ["bfv", "paillier", "ckks"]
PLANS: dict[str, dict[str, Any]] = {
    "paillier": {"update": {"structure": "dense"}, "algorithm": {"dim": 2}},
}


class Waiting(AuthorityWorld):
    """The client under test is one of those who have to be there."""

    tested_is_guest = False


@pytest.fixture
def key(monkeypatch):
    return put_watch(monkeypatch)


def cells_in(log):
    lines = [json.loads(line) for line in log.splitlines()]
    return [(line["event"], line["code"], line["round"]) for line in lines]


@pytest.mark.slow
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
    assert cells_in(world.refusals()) == [("reveal_refused", "partial_cell", 2)]


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_guest_comes_and_goes(tmp_path, key):
    """It said itself that what it contributed may become computable."""
    world = AuthorityWorld(tmp_path)
    first = world.honest_round(1)
    second = world.honest_round(2)
    world.put_vector(second, world.identity, world.vector(8))
    for round_ in (first, second):
        world.run_revealer(lambda: world.reveal(round_))  # noqa: B023 - called at once
    assert key.opened == [world.total(first), world.total(second)]


@pytest.mark.slow
def test_guests_make_no_sum(tmp_path, key):
    """Two who wait for each other and a guest are three clients, and too few all the same."""
    world = AuthorityWorld(tmp_path)
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[:2])
    world.put_vector(round_, world.identity, world.vector(8))
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "covers 2 clients that are not guests, expected at least 3")


@pytest.mark.slow
def test_no_client_applies_a_round_over_half_a_cell(tmp_path):
    """Coordinator and authority may have agreed on it; the clients tell."""
    world = Waiting(tmp_path, n_puppets=5)
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[1:])
    world.publish(round_)
    with pytest.raises(PartialCell):
        follow(world)
    assert version(world) == 0
    assert cells_in(world.audit()) == [("published_partial_cell", "partial_cell", 1)]


@pytest.mark.slow
def test_who_is_left_out_with_its_cell_rolls_back(tmp_path):
    world = Waiting(tmp_path, n_puppets=5)
    world.whole_round(1, "count")
    world.app().run()
    before = PrivateStore(world.state, read_only=True).state.private
    round_ = world.ask_to_train(2)

    def without_the_first_cell():
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


@pytest.mark.slow
def test_a_world_without_cells_has_no_such_rule(tmp_path):
    """The papers' protocol: every client is taken to be honest but curious."""
    world = World(tmp_path, n_puppets=4)
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[1:])
    world.publish(round_)
    assert follow(world) == 1
    assert world.published_round == RoundId(1)


@pytest.fixture
def world(tmp_path):
    return AuthorityWorld(tmp_path)


def enrolled(world):
    return enrol(
        world.link,  # type: ignore[arg-type]
        world.identity,
        authority_key=world.authority.public_key,
        catalogue_cache=world.folder / "cached.csv",
        expected=world.plan,
    )


@pytest.mark.slow
@pytest.mark.parametrize("protection", ["bfv", "paillier"])
def test_what_a_member_holds_opens_no_clients_update(tmp_path, protection):
    """All that the epoch gives it, with another member's ciphertext and its own code changed."""
    world = AuthorityWorld(tmp_path, protection=protection)
    _, secrets = open_epoch(
        roster_json=world.epoch.roster.to_json(),
        server_context=world.context,
        wrapped=world.epoch.secrets_for(world.identity.client_id),
        identity=world.identity,
        pinned_authority_key=world.authority.public_key,
    )
    held = secrets.protection_secret
    round_ = world.honest_round()
    victim = round_.contributions[world.puppets[0].client_id][1]
    one = world.protection.accumulator(world.context)
    one.add(victim)
    with pytest.raises(KeysError, match="doesn't open sums"):
        enrolled(world).half.reveal(one.finish(), 1)
    with pytest.raises(KeysError):
        world.protection.member(world.context, held)
    if protection == "paillier":
        assert held == world.context, "the public modulus, which the coordinator has, too"
    else:
        keys = tenseal.context_from(held[CONTEXT_BYTES:])
        assert keys.has_public_key() and not keys.has_secret_key()
    for content in (held, world.epoch.to_json()):
        assert world.secret[len(world.context) :][-1000:] not in content
    # The key that opens it exists, and only the authority has it.
    opened = world.half(world.revealer).reveal(one.finish(), 1)
    assert (opened == world.vector(0)).all()


@pytest.mark.slow
def test_a_member_takes_part_and_believes_the_authority(world):
    world.whole_round(1, "count")
    world.whole_round(2)
    world.app().run()
    assert [header.round for header, _ in world.link.uploads] == [1, 2]
    assert world.audit() == ""
    assert world.event_names().count("published") == 2
    opened, _ = world.state_of(world.rounds[2])
    assert opened == world.rounds[2].published.statement  # type: ignore[union-attr]


def by_a_member(world, round_):
    """Let a member, who knows the group key, say what the authority would."""
    honest, _ = world.state_of(round_)
    unsigned = replace(honest, client_id=world.puppets[0].client_id)
    return replace(unsigned, signature=world.puppets[0].sign(unsigned.statement()))


@pytest.mark.slow
def test_a_members_word_is_not_the_authoritys(world):
    """It is refused, and recorded. See `test_catching_up` for other statements."""
    round_ = world.honest_round()
    published: PublishedRound = world.publish(round_)
    round_.published = replace(published, statement=by_a_member(world, round_))
    world.link.script.append(Wait)
    with pytest.raises((BadSignature, RefusedError)):
        world.app().run()
    assert "published_round_refused" in world.audit()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [World, AuthorityWorld])
def test_a_member_that_is_asked_to_open_a_sum(tmp_path, kind):
    """Members that share the key decrypt what is published, and nothing on demand."""
    world = kind(tmp_path)
    round_ = world.open(1)
    world.contribute(round_)
    world.link.script.append(lambda: world.reveal(round_))
    world.app().run()
    assert world.link.reveals == world.link.declined == []
    assert "contribution" not in world.link.calls


@pytest.mark.slow
def test_a_roster_whose_members_hold_the_key(world):
    """The plan says that the authority does: whichever is right, this client agreed to neither."""
    world.epoch = world.make_epoch(revealer=None, protection_secret=world.secret)
    with pytest.raises(KeysError, match="key holder 'members' instead of 'authority'"):
        enrolled(world)


@pytest.mark.slow
def test_a_roster_with_a_revealer_that_was_not_agreed_to(tmp_path):
    world = World(tmp_path)
    world.epoch = world.make_epoch(revealer=Identity.create("authority").public)
    with pytest.raises(KeysError, match="key holder 'authority' instead of 'members'"):
        enrolled(world)
