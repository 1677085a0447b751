"""Clients of a federation whose sums the key authority opens: what they have, and believe."""

from dataclasses import replace
from pathlib import Path

import pytest
import tenseal
from client.support.authority_federation import AuthorityWorld
from client.support.fake_federation import FakeRound, World

from fedrec.errors import BadSignature, KeysError, RefusedError
from fedrec.follower.enrolment import enrol
from fedrec.follower.membership import Membership
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.protection.protection_plan import CONTEXT_BYTES
from fedrec.wire.messages import PublishedRound, RevealStatement, Wait

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> AuthorityWorld:
    return AuthorityWorld(tmp_path)


def enrolled(world: World) -> Membership:
    return enrol(
        world.link,  # type: ignore[arg-type]
        world.identity,
        authority_key=world.authority.public_key,
        catalogue_cache=world.folder / "cached.csv",
        expected=world.plan,
    )


@pytest.mark.parametrize("protection", ["bfv", "paillier"])
def test_what_a_member_holds_opens_nobodys_update(tmp_path, protection):
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
    with pytest.raises(KeysError, match="none that opens sums"):
        enrolled(world).member.reveal(one.finish(), 1)
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


def test_a_member_takes_part_and_believes_the_authority(world):
    world.whole_round(1, "count")
    world.whole_round(2)
    world.app().run()
    assert [header.round for header, _ in world.link.uploads] == [1, 2]
    assert world.audit() == ""
    assert world.event_names().count("published") == 2
    opened, _ = world.state_of(world.rounds[2])
    assert opened == world.rounds[2].published.statement  # type: ignore[union-attr]


def by_a_member(world: AuthorityWorld, round_: FakeRound) -> RevealStatement:
    """Let a member, who knows the group key, say what the authority would."""
    honest, _ = world.state_of(round_)
    unsigned = replace(honest, client_id=world.puppets[0].client_id)
    return replace(unsigned, signature=world.puppets[0].sign(unsigned.statement()))


def by_another_authority(world: AuthorityWorld, round_: FakeRound) -> RevealStatement:
    honest, _ = world.state_of(round_)
    return replace(honest, signature=Identity.create("another").sign(honest.statement()))


def nobody(world: AuthorityWorld, round_: FakeRound) -> None:
    return None


def about_another_model(world: AuthorityWorld, round_: FakeRound) -> RevealStatement:
    honest, _ = world.state_of(round_)
    other = replace(honest, state_tag=bytes(32))
    return replace(other, signature=world.revealer.sign(other.statement()))


@pytest.mark.parametrize("said", [by_a_member, by_another_authority, nobody, about_another_model])
def test_nobody_elses_word_is_believed(world, said):
    round_ = world.honest_round()
    published: PublishedRound = world.publish(round_)
    round_.published = replace(published, statement=said(world, round_))
    world.link.script.append(Wait)
    with pytest.raises((BadSignature, RefusedError)):
        world.app().run()
    assert "published_round_refused" in world.audit()


def test_a_member_that_is_asked_to_open_a_sum(world):
    round_ = world.honest_round()
    world.link.script.append(lambda: world.reveal(round_))
    world.app().run()
    assert world.link.reveals == world.link.declined == []
    assert "contribution" not in world.link.calls


def test_a_roster_whose_members_hold_the_key(world):
    """The plan says that the authority does: whichever is right, this client agreed to neither."""
    world.epoch = world.make_epoch(revealer=None, protection_secret=world.secret)
    with pytest.raises(KeysError, match="key holder 'members' instead of 'authority'"):
        enrolled(world)


def test_a_roster_with_a_revealer_nobody_agreed_to(tmp_path):
    world = World(tmp_path)
    world.epoch = world.make_epoch(revealer=Identity.create("authority").public)
    with pytest.raises(KeysError, match="key holder 'authority' instead of 'members'"):
        enrolled(world)
