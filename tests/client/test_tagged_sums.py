"""Sums of more updates than a key holder adds up, which it knows by their tags or refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client.fake_federation import FakeRound, World
from client.key_watch import KeyWatch, ask, put_watch, refused

from fedrec.ids import RoundId
from fedrec.protection.blocks import BlockMember
from fedrec.protection.modular import unpack_blocks
from fedrec.protection.residues import ResidueLayout
from fedrec.wire.chunks import Blob
from fedrec_client.private_store import PrivateStore

pytestmark = pytest.mark.slow


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> KeyWatch:
    return put_watch(monkeypatch)


TAGGED: dict[str, Any] = {
    "n_puppets": 5,
    "rounds": {"recompute_limit": 3, "clients_per_round": 6},
}


def tagged_round(world: World) -> FakeRound:
    """Open a round of more contributions than key holders add up themselves."""
    round_ = world.open(world.drawn_number(0))
    for n, member in enumerate(world.puppets):
        nonce = bytes([n]) * 16
        known = world.membership(member)
        name = known.tag_name(round_.number, member.client_id, nonce)
        payload = known.vector_of("train", len(known.catalogue)).member.protect(
            world.vector(n), name
        )
        world.put(round_, member, payload, nonce=nonce)
    return round_


def test_a_large_sum_is_opened_by_its_tags(tmp_path: Path, key: KeyWatch) -> None:
    world = World(tmp_path, **TAGGED)
    assert world.protection.chosen.n_tags
    round_ = tagged_round(world)
    ask(world, lambda: world.reveal(round_))
    ((statement, _),) = world.link.reveals
    expected, _ = world.state_of(round_, world.puppets[0])
    assert statement.content() == expected.content()
    assert world.link.calls.count("contribution") == 0
    assert world.link.calls.count("round_sum") == 1
    assert PrivateStore(world.state, read_only=True).state.refused_sums == 0


def test_the_clients_own_updates_are_tagged(tmp_path: Path) -> None:
    """Its nonce is its own and new, and the sum with the others' is opened by its tags."""
    world = World(tmp_path, **TAGGED)
    round_ = tagged_round(world)
    world.link.script.append(lambda: world.train(round_))
    ask(world, lambda: world.reveal(round_))
    ((header, _),) = world.link.uploads
    assert len(header.nonce) == 16 and any(header.nonce)
    assert len(world.link.reveals) == 1
    assert len(round_.contributions) == 6


def one_ciphertext(world: World, round_: FakeRound) -> bytes:
    """Present one client's update as the sum of all, with the counter multiplied up."""
    victim = round_.contributions[world.puppets[0].client_id][1]
    total = world.protection.accumulator(world.context)
    for _ in round_.contributions:
        total.add(victim)
    return total.finish()


def one_twice(world: World, round_: FakeRound) -> bytes:
    payloads = [payload for _, payload in round_.contributions.values()]
    total = world.protection.accumulator(world.context)
    for payload in (*payloads[:-1], payloads[0]):
        total.add(payload)
    return total.finish()


def another_cohort(world: World, round_: FakeRound) -> bytes:
    """Leave one client out and count a stranger's instead, made with the right key."""
    payloads = [payload for _, payload in round_.contributions.values()]
    total = world.protection.accumulator(world.context)
    stranger = world.half().protect(world.vector(9), b"stranger")
    for payload in (*payloads[:-1], stranger):
        total.add(payload)
    return total.finish()


def doubled(world: World, round_: FakeRound) -> bytes:
    """Add all residues to themselves modulo their primes, which multiplies every slot by 2."""
    chosen = world.protection.chosen
    layout = ResidueLayout.of_plan(chosen)
    total = world.total(round_)
    blocks = unpack_blocks(layout, memoryview(total)[44:])
    for block in blocks:
        layout.add_to(block, block.copy())
    return total[:44] + b"".join(layout.pack(block) for block in blocks)


def masked(world: World, round_: FakeRound) -> bytes:
    """Empty one slot of the sum; all others, the counter and the tags stay as they are.

    Multiplying by a plaintext with a single zero would do so, had the parameters room for its
    noise. What it would leave is made here with the members' key.
    """
    layout = ResidueLayout.of_plan(world.protection.chosen)
    member = world.membership(world.puppets[0]).member
    assert isinstance(member, BlockMember)
    cipher = member._open_cipher()
    total = world.total(round_)
    blocks = unpack_blocks(layout, memoryview(total)[44:])
    row = np.array(cipher.decrypt(blocks[0]), dtype=np.int64)
    slot = int(np.flatnonzero(row)[0])
    assert slot < len(row) - world.protection.chosen.n_tags - 1, "a value, no counter and no tag"
    change = np.zeros_like(row)
    change[slot] = -row[slot]
    layout.add_to(blocks[0], cipher.encrypt(change.tolist()))
    found = np.array(cipher.decrypt(blocks[0]), dtype=np.int64)
    assert np.flatnonzero(found != row).tolist() == [slot] and found[slot] == 0
    return total[:44] + b"".join(layout.pack(block) for block in blocks)


@pytest.mark.parametrize("forge", [one_ciphertext, one_twice, another_cohort, doubled, masked])
def test_another_sum_than_the_tagged_one(
    tmp_path: Path, forge: Callable[[World, FakeRound], bytes]
) -> None:
    """The key is used, because the tags are inside, but nothing is said about the sum."""
    world = World(tmp_path, **TAGGED)
    round_ = tagged_round(world)
    total = forge(world, round_)
    world.link.round_sum = lambda *_: total  # type: ignore[method-assign]
    blob = Blob.of(total)
    ask(world, lambda: world.reveal(round_, sum_length=blob.length, sum_digest=blob.digest))
    assert world.link.reveals == []
    assert "tags are not those" in world.audit()
    assert PrivateStore(world.state, read_only=True).state.refused_sums == 1


def test_too_many_wrong_sums_end_the_answers(tmp_path: Path, key: KeyWatch) -> None:
    world = World(tmp_path, **TAGGED)
    round_ = tagged_round(world)
    ask(world, lambda: world.reveal(round_))
    with PrivateStore(world.state) as store:
        for number in (101, 102, 103):
            store.record_reveal(RoundId(number), b"m", b"s", tagged=True)
    world.link.reveals.clear()
    key.opened.clear()
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "every further answer would tell about the key")


def test_an_update_without_a_nonce_among_tagged_ones(tmp_path: Path, key: KeyWatch) -> None:
    world = World(tmp_path, **TAGGED)
    round_ = tagged_round(world)
    payload = round_.contributions[world.puppets[0].client_id][1]
    world.put(round_, world.puppets[0], payload)
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "0 bytes of nonce")


def test_one_list_has_one_sum(tmp_path: Path, key: KeyWatch) -> None:
    """Many sums under one list would be as many questions about the key: there is one answer."""
    world = World(tmp_path, **TAGGED)
    round_ = tagged_round(world)
    honest = world.total(round_)
    sums = iter([honest, one_twice(world, round_), masked(world, round_), honest])
    world.link.round_sum = lambda *_: next(sums)  # type: ignore[method-assign]
    for _ in range(4):
        ask(world, lambda: world.reveal(round_))
    assert key.opened == [honest, honest], "the key was used on another sum of the same list"
    assert len(world.link.reveals) == 2
    assert world.link.reveals[0] == world.link.reveals[1]
    assert world.audit().count("Another sum of round") == 2
    assert PrivateStore(world.state, read_only=True).state.refused_sums == 0


def test_a_refused_sum_stays_refused(tmp_path: Path, key: KeyWatch) -> None:
    """The coordinator asks again and again; the key was used once, and is not any more."""
    world = World(tmp_path, **TAGGED)
    round_ = tagged_round(world)
    wrong = one_twice(world, round_)
    world.link.round_sum = lambda *_: wrong  # type: ignore[method-assign]
    for _ in range(3):
        ask(world, lambda: world.reveal(round_))
    assert key.opened == [wrong]
    assert world.link.reveals == []
    assert PrivateStore(world.state, read_only=True).state.refused_sums == 1


def test_a_members_wild_values_do_not_lock_a_key_holder_out(tmp_path: Path) -> None:
    """Its tags are right, so the coordinator is not to blame, however often it asks."""
    world = World(tmp_path, **TAGGED)
    round_ = tagged_round(world)
    member = world.puppets[0]
    known = world.membership(member)
    wild = world.vector(0)
    wild[world.layout.metrics_slice] = world.plan.federation.maximum_users << 20
    name = known.tag_name(round_.number, member.client_id, b"w" * 16)
    world.put(
        round_,
        member,
        known.vector_of("train", len(known.catalogue)).member.protect(wild, name),
        nonce=b"w" * 16,
    )
    for _ in range(5):
        ask(world, lambda: world.reveal(round_))
    assert world.link.reveals == []
    assert PrivateStore(world.state, read_only=True).state.refused_sums == 0
