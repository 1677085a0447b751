"""Counts and tags of cells that an authority compares before it opens a sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from world.fake_authority import (
    APART,
    LEAST,
    MADE_UP,
    RARE,
    AuthorityWorld,
    CountedWorld,
    added,
    killed_when_opened,
    refused,
    state_of,
)
from world.fake_federation import FakeRound
from world.fake_link import Killed
from world.fake_parties import N_ITEMS

from fedrec.errors import RefusedError
from fedrec.plan.travelling_rows import held_widely
from fedrec.protection.ciphertext_blocks import ResidueLayout
from fedrec.protection.lattice import BlockMember
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import Wait
from fedrec_authority.folder import backup as backup_module
from fedrec_authority.folder.authority_folder import STATE_FOLDER, AuthorityFolder
from fedrec_authority.folder.backup import back_up, restore
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.opening import cell_counts
from fedrec_authority.opening.cell_counts import CellCounts

pytestmark = pytest.mark.slow


EVERYTHING = set(range(N_ITEMS))


def without_the_rule(monkeypatch):
    monkeypatch.setattr(CellCounts, "is_on", False)


def test_without_the_rule_one_member_has_a_rare_item_trained(tmp_path, monkeypatch):
    """One user holds it: what moves its row is that user's data."""
    without_the_rule(monkeypatch)
    world = CountedWorld(tmp_path, liars=(8,))
    assert world.counts()[RARE] == 1 + MADE_UP
    assert world.trains(2) == EVERYTHING


def test_one_member_alone_cannot(tmp_path, key):
    """Its count is not in the published total either, so that no client's rows would cover it."""
    world = CountedWorld(tmp_path, liars=(8,))
    found = world.counts()
    assert found[RARE] == 0 and found[APART] == 12
    assert set(np.delete(found, [RARE, APART])) == {18}
    round_ = world.rounds[1]
    cells = [added(world, round_, *range(first, first + 3)) for first in (0, 3, 6)]
    assert key.opened == [world.total(round_), *cells]
    kept = world.kept_counts()
    assert [kept[cell][RARE] for cell in "123"] == [1, 0, MADE_UP]
    assert [kept[cell][APART] for cell in "123"] == [6, 0, 6]
    assert world.trains(2) == EVERYTHING - {RARE}
    assert len(key.opened) == 4 + 1


@pytest.mark.parametrize(("corrupt", "is_trained"), [(1, True), (2, False)])
def test_two_members_of_two_cells_need_two_corrupt_cells(tmp_path, corrupt, is_trained):
    world = CountedWorld(tmp_path, liars=(5, 8), corrupt=corrupt)
    assert world.counts()[RARE] == is_trained * (1 + 2 * MADE_UP)
    # With two left out, six holders of the smallest cell are enough; of APART it has none.
    others = EVERYTHING - {RARE} - ({APART} if corrupt == 2 else set())
    assert world.trains(2) == others | ({RARE} if is_trained else set())


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_later_count_is_held_to_the_first_one(tmp_path, is_guarded, monkeypatch):
    """A member that was honest when cells were counted makes holders up in the next count."""
    if not is_guarded:
        without_the_rule(monkeypatch)
    world = CountedWorld(tmp_path)
    assert world.counts()[RARE] == (0 if is_guarded else 1)
    world.trains(2)
    world.liars = (8,)
    assert world.counts(3)[RARE] == (0 if is_guarded else 1 + MADE_UP)
    # Which rows travel follows from the first count for good.
    assert RARE not in world.trains(4)


def test_a_cell_is_opened_once_in_a_run(tmp_path, key):
    """The difference of two counts of a cell would be that of the users who came in between."""
    world = CountedWorld(tmp_path)
    world.counts(1, *range(6))
    assert len(key.opened) == 1 + 2 and world.kept_counts().keys() == {"1", "2"}
    kept = world.kept_counts()
    world.liars = (2,)
    # The third cell was not counted so far: it is, now, and the others are not again.
    world.counts(2)
    assert key.opened[3:] == [world.total(world.rounds[2]), added(world, world.rounds[2], 6, 7, 8)]
    assert all(np.array_equal(world.kept_counts()[cell], kept[cell]) for cell in "12")
    before = state_of(world).cell_counts
    world.counts(3)
    assert len(key.opened) == 5 + 1
    assert state_of(world).cell_counts == before


def test_rows_are_found_once_for_each_set_of_cells(tmp_path, monkeypatch):
    looked: list[int] = []

    def counting(plan, counts):
        looked.append(len(counts) - 1)
        return held_widely(plan, counts)

    monkeypatch.setattr(cell_counts, "held_widely", counting)
    world = CountedWorld(tmp_path)
    last: list[FakeRound] = []

    def round_of(number, kind, *numbers):
        for before in last:
            world.follow(before)
        round_ = world.open(number, kind)
        last[:] = [round_]
        for each in numbers:
            world.put_vector(round_, world.puppets[each], world.vector(each, round_))
        return world.reveal(round_)

    world.run_revealer(
        lambda: round_of(1, "count", *range(9)),
        lambda: round_of(2, "train", *range(9)),
        lambda: round_of(3, "train", *range(6)),
        lambda: round_of(4, "train", *range(9)),
        lambda: round_of(5, "train", *range(6)),
    )
    assert len(world.link.reveals) == 5 and looked == [3, 2]


@pytest.mark.parametrize("kind", ["count", "train"])
def test_a_coordinator_that_shows_one_cell_alone_is_refused(tmp_path, key, kind):
    world = CountedWorld(tmp_path)
    if kind == "train":
        world.counts()
    known = list(key.opened)
    world.ask(world.open(2, kind), 6, 7, 8)
    assert key.opened == known, "the key was not used"
    (declined,) = world.link.declined
    assert "covers 1 cells, expected at least 2" in declined.refused
    assert "federation.corrupt_cells" in world.refusals()


def test_two_corrupt_cells_need_three_cells(tmp_path, key):
    world = CountedWorld(tmp_path, corrupt=2)
    world.ask(world.open(1, "count"), *range(6))
    assert key.opened == [] and world.link.reveals == []
    assert "covers 2 cells, expected at least 3" in world.refusals()


def test_rows_that_need_an_absent_cell_are_zero(tmp_path):
    """Two cells hold the item: with one of them here, a lie of its members would be enough."""
    world = CountedWorld(tmp_path)
    assert world.counts()[APART] == 12
    assert world.trains(2) == EVERYTHING - {RARE}
    assert world.trains(3, *range(6)) == EVERYTHING - {RARE, APART}
    assert world.trains(4) == EVERYTHING - {RARE}


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_guest_adds_no_holders(tmp_path, key, is_guarded, monkeypatch):
    """Who may be missing is no holder on whom others count; its cell is opened without it."""
    if not is_guarded:
        without_the_rule(monkeypatch)
    world = CountedWorld(tmp_path, liars=(99,))
    found = world.counts(1, *range(9), guest=world.identity)
    assert found[RARE] == (0 if is_guarded else 1 + MADE_UP)
    assert found[0] == 18 + 2
    if is_guarded:
        assert added(world, world.rounds[1], 0, 1, 2) in key.opened
        assert world.kept_counts()["1"][RARE] == 1


def all_clients(world, number):
    return [one.public for one in (world.identity, *world.puppets[:number])]


def test_a_cell_that_joined_after_the_count_adds_nothing(tmp_path, key):
    """Until a round counts it; alone with it no other cell has a sum."""
    world = CountedWorld(tmp_path, n_puppets=12)
    world.epoch = world.make_epoch(members=all_clients(world, 9))
    world.counts()
    # It takes the published count in before the roster changes.
    world.run_revealer(Wait)
    world.epoch = world.make_epoch(epoch=2)
    assert world.trains(2, *range(3), *range(6, 12)) == EVERYTHING - {RARE}
    # The first cell and the second one hold nothing of APART in common.
    assert world.trains(3, *range(6), 9, 10, 11) == EVERYTHING - {RARE, APART}
    world.ask(world.open(4), 0, 1, 2, 9, 10, 11)
    (declined,) = world.link.declined
    assert declined.round == 4
    assert "1 of the 2 cells in the sum were counted in this run" in world.refusals()
    known = len(key.opened)
    world.counts(5, *range(12))
    last = added(world, world.rounds[5], 9, 10, 11)
    assert key.opened[known:] == [world.total(world.rounds[5]), last]
    assert world.trains(6, 0, 1, 2, 9, 10, 11) == EVERYTHING - {RARE}


@pytest.mark.parametrize("opened", [1, 2, 3])
def test_killed_while_it_counts_cells(tmp_path, key, opened):
    """Each sum was noted before the key was used: it opens the same ones again and no other."""
    world = CountedWorld(tmp_path, liars=(8,))
    round_ = world.open(1, "count")
    with killed_when_opened(opened):
        world.ask(round_)
    (noted,) = state_of(world).revealed
    assert [(one.cell, one.core) for one in noted.cells] == [(n + 1, True) for n in range(opened)]
    assert state_of(world).cell_counts is None
    first = key.opened[:]
    world.run_revealer(lambda: world.reveal(round_))
    world.follow(round_)
    cells = [added(world, round_, *range(first, first + 3)) for first in (0, 3, 6)]
    assert set(key.opened) == {world.total(round_), *cells} and set(first) <= set(key.opened)
    assert world.trains(2) == EVERYTHING - {RARE}


def test_killed_between_the_count_and_the_word(tmp_path, key, monkeypatch):
    """What was counted is on disk, and no cell is opened again."""
    world, keep = CountedWorld(tmp_path, liars=(8,)), OpenedSums.record_opened

    def killed(*_):
        raise Killed

    monkeypatch.setattr(OpenedSums, "record_opened", killed)
    round_ = world.open(1, "count")
    with pytest.raises(Killed):
        world.ask(round_)
    monkeypatch.setattr(OpenedSums, "record_opened", keep)
    kept = state_of(world).cell_counts
    assert kept is not None and len(key.opened) == 4
    world.run_revealer(lambda: world.reveal(round_))
    world.follow(round_)
    assert key.opened[4:] == [world.total(round_)]
    assert state_of(world).cell_counts == kept
    assert world.trains(2) == EVERYTHING - {RARE}


def test_a_new_run_counts_again(tmp_path, key):
    world = CountedWorld(tmp_path)
    world.counts()
    world.run, world.published_round, known = "run-2", world.published_round * 0, len(key.opened)
    world.rounds.clear()
    world.liars = (8,)
    round_ = world.open(1, "count")
    for number in range(9):
        world.put_vector(round_, world.puppets[number], world.vector(number, round_))
    world.run_revealer(lambda: world.reveal(round_), new_run=True)
    world.follow(round_)
    assert len(key.opened) == known + 4
    assert world.kept_counts()["3"][RARE] == MADE_UP


def test_a_backup_keeps_the_counts(tmp_path, monkeypatch):
    """A restored authority would otherwise open every cell once more."""
    monkeypatch.setattr(backup_module, "COST", 2**10)
    (tmp_path / "world").mkdir()
    world = CountedWorld(tmp_path / "world")
    world.counts()
    kept, fresh = state_of(world).cell_counts, AuthorityFolder(tmp_path / "fresh")
    assert kept is not None
    back_up(world.keys, tmp_path / "copy", "a passphrase of some words")
    restore(tmp_path / "copy", fresh, "a passphrase of some words")
    store = OpenedSums(fresh.revealer.folder / STATE_FOLDER, read_only=True)
    assert store.state.cell_counts == kept
    with OpenedSums(world.keys.revealer.folder / STATE_FOLDER, read_only=True) as before:
        assert store.read(kept) == before.read(kept)


def test_one_cell_has_no_other_to_hide_rows_from(tmp_path, key):
    """Where the roster has one cell, every client's users are counted together."""
    world = CountedWorld(tmp_path, n_puppets=3)
    found = world.counts(1, 0, 1, 2)
    assert found[RARE] == 1 < LEAST and found[APART] == 6
    assert len(key.opened) == 1 and state_of(world).cell_counts is None
    assert world.trains(2, 0, 1, 2) == EVERYTHING - {RARE}


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


def refused_sums(world):
    folder = world.keys.revealer.folder / STATE_FOLDER
    return OpenedSums(folder, read_only=True).state.refused_sums


def one_ciphertext(world, round_):
    """Present one client's update as the sum of all, with the counter multiplied up."""
    victim = round_.contributions[world.puppets[0].client_id][1]
    total = world.protection.accumulator(world.context)
    for _ in round_.contributions:
        total.add(victim)
    return total.finish()


def one_twice(world, round_):
    payloads = [payload for _, payload in round_.contributions.values()]
    total = world.protection.accumulator(world.context)
    for payload in (*payloads[:-1], payloads[0]):
        total.add(payload)
    return total.finish()


def another_cohort(world, round_):
    """Leave one client out and count a stranger's instead, made with the right key."""
    payloads = [payload for _, payload in round_.contributions.values()]
    total = world.protection.accumulator(world.context)
    stranger = world.half().protect(world.vector(9), b"stranger")
    for payload in (*payloads[:-1], stranger):
        total.add(payload)
    return total.finish()


def doubled(world, round_):
    """Add all residues to themselves modulo their primes, which multiplies every slot by 2."""
    chosen = world.protection.chosen
    layout = ResidueLayout.of_plan(chosen)
    total = world.total(round_)
    blocks = layout.unpack_all(memoryview(total)[44:])
    for block in blocks:
        layout.add_to(block, block.copy())
    return total[:44] + b"".join(layout.pack(block) for block in blocks)


def masked(world, round_):
    """Empty one slot of the sum; all others, the counter and the tags stay as they are.

    Multiplying by a plaintext with a single zero would do so, had the parameters room for its
    noise. What it would leave is made here with the authority's key.
    """
    layout = ResidueLayout.of_plan(world.protection.chosen)
    member = world.membership(world.revealer).half
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
    assert "tags don't match" in world.refusals()
    assert refused_sums(world) == 1


def test_an_update_without_a_nonce_among_tagged_ones(tmp_path, key):
    world = AuthorityWorld(tmp_path, **TAGGED)
    round_ = world.honest_round()
    payload = round_.contributions[world.puppets[0].client_id][1]
    world.put(round_, world.puppets[0], payload, nonce=b"")
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "a nonce of 0 bytes, expected 16")


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
    text = {"sequence": 0, "previous": b"", "signature": b""}
    assert replace(first, **text) == replace(second, **text)
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


def test_a_sum_without_rows_earns_no_further_wrong_sum(tmp_path, monkeypatch):
    """Its tags were right, which is credited once."""
    world = AuthorityWorld(tmp_path, **TAGGED)
    round_ = world.honest_round()

    def nothing_is_left(*_):
        raise RefusedError("No row is left.")

    monkeypatch.setattr(CellCounts, "left_in", nothing_is_left)
    world.run_revealer(lambda: world.reveal(round_))
    assert world.link.reveals == [] and "No row is left." in world.refusals()
    assert refused_sums(world) == 0
