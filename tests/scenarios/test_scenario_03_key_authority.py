"""Scenario 3 where the key authority alone opens sums: the same attacks, and members that help.

The coordinator is hostile; the last attacks have a member with changed software on its side, which
knows the group key and the encryption key, as a thief of a member's state folder does.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from world.fake_authority import AuthorityWorld, refused
from world.fake_link import put_watch

from fedrec.errors import BadSignature
from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.protection.ciphertext_blocks import ResidueLayout
from fedrec.wire.chunks import Blob


@pytest.fixture
def world(tmp_path):
    return AuthorityWorld(tmp_path)


@pytest.fixture
def key(monkeypatch):
    return put_watch(monkeypatch)


def passed_off(world, round_, total):
    """Return the task to open these bytes as the sum of the round's contributions."""
    return world.reveal(round_, sum=Blob.of(total))


def added(world, *payloads):
    total = world.protection.accumulator(world.context)
    for payload in payloads:
        total.add(payload)
    return total.finish()


@pytest.mark.parametrize("times", [None, 1, 3])
def test_scenario_03_authority_one_clients_ciphertext(world, key, times):
    """Its message as it came, or as a sum, once and three times."""
    round_ = world.honest_round()
    victim = round_.contributions[world.puppets[0].client_id][1]
    total = victim if times is None else added(world, *[victim] * times)
    world.run_revealer(lambda: passed_off(world, round_, total))
    refused(world, key, "does not match the sum of its 3 contributions")


def counted_twice(world, round_):
    payloads = [payload for _, payload in round_.contributions.values()]
    return added(world, *payloads[:2], payloads[0])


def slots_masked(world, round_):
    """Change the body as whoever multiplies by a plaintext changes it: every residue."""
    total = bytearray(world.total(round_))
    body = np.frombuffer(total, dtype=np.uint8, offset=44)
    total[44:] = np.bitwise_and(body, 0x0F).tobytes()
    return bytes(total)


@pytest.mark.parametrize("forged", [counted_twice, slots_masked])
def test_scenario_03_another_sum_with_enough_valid_digests(world, key, forged):
    round_ = world.honest_round()
    total = forged(world, round_)
    assert total != world.total(round_)
    world.run_revealer(lambda: passed_off(world, round_, total))
    refused(world, key, "does not match the sum of its 3 contributions")


def test_scenario_03_exchanged_x25519_keys(world):
    """The coordinator lists a member with an exchange key of its own: the roster is signed."""
    roster = world.epoch.roster
    mine = Identity.create("coordinator")
    index = [m.client_id for m in roster.members].index(world.puppets[0].client_id)
    swapped = replace(roster.members[index], exchange_key=mine.public.exchange_key)
    members = (*roster.members[:index], swapped, *roster.members[index + 1 :])
    forged = replace(roster, members=members)
    honest = world.info
    world.info = lambda **changes: honest(roster_json=forged.to_json())  # type: ignore[method-assign]
    with pytest.raises(BadSignature):
        world.app().run()
    assert world.link.uploads == []


def test_scenario_03_authority_another_cohort_for_the_same_round(tmp_path, key):
    """The first list is opened; the second, which differs by a guest, never is."""
    world = AuthorityWorld(tmp_path)
    round_ = world.honest_round()
    world.put_vector(round_, world.identity, world.vector(8))
    world.run_revealer(lambda: world.reveal(round_))
    assert len(key.opened) == len(world.link.reveals) == 1
    round_.contributions.pop(world.identity.client_id)
    world.link.reveals.clear()
    key.opened.clear()
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "already opened with other contributions")


def test_scenario_03_authority_clients_that_the_coordinator_enrolled(world, key):
    round_ = world.open(1)
    world.contribute(round_, world.puppets[0])
    for name in ("sybil 1", "sybil 2"):
        payload = world.half(world.puppets[0]).protect(world.vector(1), b"name")
        world.put(round_, Identity.create(name), payload, nonce=b"n" * 16)
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "is not among the 4 members")


def test_scenario_03_authority_itself_as_a_contributor(world, key):
    """Whoever opens sums is no member, even where its own key signed an update."""
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[:2])
    payload = world.half(world.puppets[0]).protect(world.vector(1), b"name")
    world.put(round_, world.revealer, payload, nonce=b"n" * 16)
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "is not among the 4 members")


def nonce_of(member):
    return member.public.signing_key[:16]


DOUBLED = 6
TIMES = 2**DOUBLED


def multiplied(world, victim, thief):
    """Make a message that carries the victim's vector 64 times, with a counter of 1.

    The thief adds the ciphertext up with itself and encrypts what is missing in the counter's
    slot: it has the public key. The tags that it adds are those of an honest message of zeros.
    """
    layout = ResidueLayout.of_plan(world.protection.chosen)
    blocks = layout.unpack_all(memoryview(victim)[44:])
    known = world.membership(thief)
    half: Any = known.half
    cipher = half._open_cipher()
    counter = cipher.n_slots - world.protection.chosen.n_tags - 1
    own = np.zeros((len(blocks), cipher.n_slots), dtype=np.int64)
    own[:, counter] = 1
    name = known.tag_name(RoundId(1), thief.client_id, nonce_of(thief))
    own[:, counter + 1 :] = half._tagging.of_message(own[:, : counter + 1], name)
    own[:, counter] = 1 - TIMES
    frames = []
    for block, row in zip(blocks, own, strict=True):
        for _ in range(DOUBLED):
            layout.add_to(block, block.copy())
        layout.add_to(block, cipher.encrypt(row.tolist()))
        frames.append(layout.pack(block))
    return victim[:44] + b"".join(frames)


def test_scenario_03_authority_a_member_hands_in_a_multiple_of_anothers_update(world, key):
    """Every contribution is signed, and the sum is theirs: only the tags tell."""
    round_, thief = world.open(1), world.puppets[2]
    world.contribute(round_, *world.puppets[:2])
    victim = round_.contributions[world.puppets[0].client_id][1]
    world.put(round_, thief, multiplied(world, victim, thief), nonce=nonce_of(thief))
    total = world.total(round_)
    # Values of an update are below 3, so that the victim's are read off the sum.
    opened = world.half(world.revealer).reveal(total, 3)
    assert np.array_equal(opened // (TIMES + 1), world.vector(0))
    world.run_revealer(lambda: world.reveal(round_))
    assert world.link.reveals == []
    assert key.opened == [total]
    assert "tags don't match" in world.refusals()


def test_scenario_03_authority_a_replayed_update_under_another_name(world, key):
    """The thief signs the victim's very bytes as its own update."""
    round_, thief = world.open(1), world.puppets[2]
    world.contribute(round_, *world.puppets[:2])
    victim = round_.contributions[world.puppets[0].client_id]
    world.put(round_, thief, victim[1], nonce=victim[0].nonce)
    world.run_revealer(lambda: world.reveal(round_))
    assert world.link.reveals == []
    assert "tags don't match" in world.refusals()


def test_scenario_03_authority_names_of_tags_are_secrets_of_two(world):
    """A member cannot compute another's, so that it cannot take another's pads off."""
    victim, thief = world.puppets[0], world.puppets[1]
    seen = (RoundId(1), victim.client_id, nonce_of(victim))
    own = world.membership(victim).tag_name(*seen)
    assert world.membership(world.revealer).tag_name(*seen) == own
    assert world.membership(thief).tag_name(*seen) != own
    assert len(own) == 32
