"""Sums of more updates than the authority adds up, which it knows by their tags or refuses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from client.support.authority_federation import AuthorityWorld, refused
from client.support.fake_federation import FakeRound

from fedrec.ids import RoundId
from fedrec.protection.ciphertext_blocks import ResidueLayout
from fedrec.protection.lattice import BlockMember
from fedrec.wire.chunks import Blob
from fedrec_authority.folder.authority_folder import STATE_FOLDER
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.opening.sum_opening import MOST_REFUSED

pytestmark = pytest.mark.slow


TAGGED: dict[str, Any] = {
    "n_puppets": 5,
    "rounds": {"recompute_limit": 3, "cells_per_round": 2},
}


def test_the_clients_own_updates_are_tagged(tmp_path):
    """Its nonce is its own and new, and the sum with the others' is opened by its tags."""
    world = AuthorityWorld(tmp_path, **TAGGED)
    round_ = world.honest_round()
    world.link.script.append(lambda: world.train(round_))
    world.app().run()
    ((header, _),) = world.link.uploads
    assert len(header.nonce) == 16 and any(header.nonce)
    assert len(round_.contributions) == 6
    world.run_revealer(lambda: world.reveal(round_))
    assert len(world.link.reveals) == 1


def refused_sums(world: AuthorityWorld) -> int:
    folder = world.keys.revealer.folder / STATE_FOLDER
    return OpenedSums(folder, read_only=True).state.refused_sums


def one_ciphertext(world: AuthorityWorld, round_: FakeRound) -> bytes:
    """Present one client's update as the sum of all, with the counter multiplied up."""
    victim = round_.contributions[world.puppets[0].client_id][1]
    total = world.protection.accumulator(world.context)
    for _ in round_.contributions:
        total.add(victim)
    return total.finish()


def one_twice(world: AuthorityWorld, round_: FakeRound) -> bytes:
    payloads = [payload for _, payload in round_.contributions.values()]
    total = world.protection.accumulator(world.context)
    for payload in (*payloads[:-1], payloads[0]):
        total.add(payload)
    return total.finish()


def another_cohort(world: AuthorityWorld, round_: FakeRound) -> bytes:
    """Leave one client out and count a stranger's instead, made with the right key."""
    payloads = [payload for _, payload in round_.contributions.values()]
    total = world.protection.accumulator(world.context)
    stranger = world.half().protect(world.vector(9), b"stranger")
    for payload in (*payloads[:-1], stranger):
        total.add(payload)
    return total.finish()


def doubled(world: AuthorityWorld, round_: FakeRound) -> bytes:
    """Add all residues to themselves modulo their primes, which multiplies every slot by 2."""
    chosen = world.protection.chosen
    layout = ResidueLayout.of_plan(chosen)
    total = world.total(round_)
    blocks = layout.unpack_all(memoryview(total)[44:])
    for block in blocks:
        layout.add_to(block, block.copy())
    return total[:44] + b"".join(layout.pack(block) for block in blocks)


def masked(world: AuthorityWorld, round_: FakeRound) -> bytes:
    """Empty one slot of the sum; all others, the counter and the tags stay as they are.

    Multiplying by a plaintext with a single zero would do so, had the parameters room for its
    noise. What it would leave is made here with the authority's key.
    """
    layout = ResidueLayout.of_plan(world.protection.chosen)
    member = world.membership(world.revealer).member
    assert isinstance(member, BlockMember)
    cipher = member._open_cipher()
    total = world.total(round_)
    blocks = layout.unpack_all(memoryview(total)[44:])
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
def test_another_sum_than_the_tagged_one(tmp_path, forge):
    """The key is used, because the tags are inside, but nothing is said about the sum."""
    world = AuthorityWorld(tmp_path, **TAGGED)
    round_ = world.honest_round()
    total = forge(world, round_)
    world.link.round_sum = lambda *_: total  # type: ignore[method-assign]
    blob = Blob.of(total)
    world.run_revealer(lambda: world.reveal(round_, sum=blob))
    assert world.link.reveals == []
    assert "tags are not those" in world.refusals()
    assert refused_sums(world) == 1


def test_too_many_wrong_sums_end_the_answers(tmp_path, key):
    world = AuthorityWorld(tmp_path, **TAGGED)
    round_ = world.honest_round()
    world.run_revealer()
    with OpenedSums(world.keys.revealer.folder / STATE_FOLDER) as store:
        for number in range(101, 101 + MOST_REFUSED):
            store.record_reveal(RoundId(number), b"m", b"s", tagged=True)
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "Every further answer would reveal something about the key")


def test_an_update_without_a_nonce_among_tagged_ones(tmp_path, key):
    world = AuthorityWorld(tmp_path, **TAGGED)
    round_ = world.honest_round()
    payload = round_.contributions[world.puppets[0].client_id][1]
    world.put(round_, world.puppets[0], payload, nonce=b"")
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "0 bytes of nonce")


def test_one_list_has_one_sum(tmp_path, key):
    """Many sums under one list would be as many questions about the key: there is one answer."""
    world = AuthorityWorld(tmp_path, **TAGGED)
    round_ = world.honest_round()
    honest = world.total(round_)
    sums = iter([honest, one_twice(world, round_), masked(world, round_), honest])
    world.link.round_sum = lambda *_: next(sums)  # type: ignore[method-assign]
    for _ in range(4):
        world.run_revealer(lambda: world.reveal(round_))
        with OpenedSums(world.keys.revealer.folder / STATE_FOLDER) as store:
            # As after a crash between the opening and its record; else what was said is said again.
            store.change(opened=None)
    assert key.opened == [honest, honest], "the key was used on another sum of the same list"
    assert len(world.link.reveals) == 2
    (first, sealed), (second, again) = world.link.reveals
    assert sealed == again
    said = {"sequence": 0, "previous": b"", "signature": b""}
    assert replace(first, **said) == replace(second, **said)
    assert world.refusals().count("Another sum of round") == 2
    assert refused_sums(world) == 0


def test_a_refused_sum_stays_refused(tmp_path, key):
    """The coordinator asks again and again; the key was used once, and is not any more."""
    world = AuthorityWorld(tmp_path, **TAGGED)
    round_ = world.honest_round()
    wrong = one_twice(world, round_)
    world.link.round_sum = lambda *_: wrong  # type: ignore[method-assign]
    for _ in range(3):
        world.run_revealer(lambda: world.reveal(round_))
    assert key.opened == [wrong]
    assert world.link.reveals == []
    assert refused_sums(world) == 1
