"""Histories of rosters: what combined sums could isolate, by exact linear algebra."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace

import pytest
from world.invariants import smallest_isolated

from fedrec.errors import RosterBreaksCells
from fedrec.identity import roster as rosters
from fedrec.identity.cells import Cell, Partition, Standing, guest_consent
from fedrec.identity.document import VERSIONS
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster, check_cells
from fedrec.ids import ClientId
from fedrec_authority.members.cell_placement import place

PEOPLE = sorted((Identity.create(str(n)) for n in range(16)), key=lambda one: one.client_id)
NAMES = {one.client_id: number for number, one in enumerate(PEOPLE)}


def ids(*numbers: int) -> tuple[ClientId, ...]:
    return tuple(PEOPLE[number].client_id for number in numbers)


def standing(number: int, since: int = 0, replaces: int | None = None) -> Standing:
    return Standing(
        client_id=PEOPLE[number].client_id,
        since=since,
        replaces=None if replaces is None else PEOPLE[replaces].client_id,
    )


def guest(number: int, since: int = 0) -> Standing:
    consent = PEOPLE[number].sign(guest_consent("test", PEOPLE[number].client_id))
    return replace(standing(number, since), consent=consent)


def roster(
    epoch: int,
    members: tuple[int, ...],
    cells: tuple[Cell, ...],
    standings: tuple[Standing, ...],
    previous: Roster | None = None,
    size: int = 3,
) -> Roster:
    return Roster(
        federation="test",
        epoch=epoch,
        members=tuple(PEOPLE[number].public for number in members),
        minimum_summands=3,
        protection="masks",
        protection_fingerprint="00" * 32,
        context_sha256=bytes(32),
        secrets_sha256=bytes(32),
        authority_key=bytes(32),
        ca_sha256=bytes(32),
        previous=b"" if previous is None else previous.digest(),
        partition=Partition(cell_size=size, cells=cells, standings=standings),
    )


def one_cell(n: int, size: int = 3) -> Roster:
    """Return a first roster whose `n` members are one cell."""
    cells = (Cell(id=1, since=1, core=ids(*range(n))),)
    return roster(1, tuple(range(n)), cells, tuple(standing(k, 1) for k in range(n)), size=size)


FIRST = one_cell(3)


def refused(old: Roster | None, new: Roster, why: str) -> None:
    with pytest.raises(RosterBreaksCells, match=why) as caught:
        check_cells(old, new)
    assert caught.value.code == "roster_breaks_cells"


def test_a_roster_without_members_or_cells_is_one():
    empty = roster(1, (), (), ())
    check_cells(None, empty)
    assert Roster.from_json(empty.to_json()) == empty
    made = tuple(standing(n, 2) for n in range(3))
    check_cells(empty, roster(2, (0, 1, 2), (Cell(id=1, since=2, core=ids(0, 1, 2)),), made, empty))


def test_a_roster_survives_writing_and_names_the_one_before():
    again = Roster.from_json(FIRST.to_json())
    assert again == FIRST
    assert VERSIONS["fedrec roster"] == 2
    assert FIRST.digest() == hashlib.sha256(FIRST.to_json()).digest()
    check_cells(None, FIRST)
    check_cells(FIRST, replace(FIRST, epoch=2, previous=FIRST.digest()))


def test_refill_after_removal():
    cell = Cell(id=1, since=1, core=ids(0, 1, 3), left=ids(2))
    known = (*FIRST.partition.standings, standing(3, 2))
    refused(FIRST, roster(2, (0, 1, 3), (cell,), known, FIRST), "core of cell 1 changed")


def test_merge_remainder():
    both = roster(
        1,
        tuple(range(6)),
        (Cell(id=1, since=1, core=ids(0, 1, 2)), Cell(id=2, since=1, core=ids(3, 4, 5))),
        tuple(standing(n, 1) for n in range(6)),
    )
    one, two = both.partition.cells
    ended = (replace(one, state="retired"), replace(two, state="retired"))
    merged = Cell(id=3, since=2, core=ids(0, 1, 3, 4, 5))
    refused(
        both,
        roster(2, (0, 1, 3, 4, 5), (*ended, merged), both.partition.standings, both),
        "cell 3 has 0 members",
    )


def test_repair_with_too_few_fresh():
    ended = replace(FIRST.partition.cells[0], state="retired")
    for fresh in (2, 3):
        numbers = (0, 1, *range(3, 3 + fresh))
        made = Cell(id=2, since=2, core=ids(*numbers))
        known = (*FIRST.partition.standings, *(standing(n, 2) for n in range(3, 3 + fresh)))
        following = roster(2, numbers, (ended, made), known, FIRST)
        if fresh < 3:
            refused(FIRST, following, "cell 2 has 2 members")
        else:
            check_cells(FIRST, following)


def test_same_party_as_fresh():
    ended = replace(FIRST.partition.cells[0], state="retired")
    made = Cell(id=2, since=2, core=ids(3, 4, 5))
    known = (*FIRST.partition.standings, standing(3, 2, replaces=0), standing(4, 2), standing(5, 2))
    new = roster(2, (1, 2, 3, 4, 5), (ended, made), known, FIRST)
    refused(FIRST, new, "not have the place of the client")
    honest = (*FIRST.partition.standings, standing(3, 1, replaces=0), standing(4, 2))
    new = roster(2, (1, 2, 3, 4, 5), (ended, made), (*honest, standing(5, 2)), FIRST)
    refused(FIRST, new, "cell 2 has 2 members")


def test_who_replaces_keeps_the_place():
    kept = Cell(id=1, since=1, core=ids(1, 2, 3))
    known = (*FIRST.partition.standings, standing(3, 1, replaces=0))
    check_cells(FIRST, roster(2, (1, 2, 3), (kept,), known, FIRST))
    refused(
        FIRST, roster(2, (0, 1, 2, 3), (kept,), known, FIRST), "two client ids belong to one party"
    )


def test_roster_without_history():
    fresh = tuple(standing(n, 2) for n in range(3))
    new = roster(2, (0, 1, 2), (Cell(id=1, since=2, core=ids(0, 1, 2)),), fresh)
    refused(FIRST, new, "a different previous roster")
    refused(FIRST, replace(new, previous=FIRST.digest()), "changes the epoch since which")
    # Who was away for some epochs sees the same.
    refused(FIRST, replace(new, epoch=7), "changes the epoch since which")
    none = roster(7, (0, 1, 2), (), FIRST.partition.standings)
    refused(FIRST, none, "cell 1 is gone")
    refused(replace(FIRST, epoch=2), replace(FIRST, epoch=2, minimum_summands=4), "come after")


def test_split_cell_between_epochs():
    whole = one_cell(6)
    halves = (Cell(id=1, since=1, core=ids(0, 1, 2)), Cell(id=2, since=2, core=ids(3, 4, 5)))
    new = roster(2, tuple(range(6)), halves, whole.partition.standings, whole)
    refused(whole, new, "core of cell 1 changed")


def test_a_smaller_cell_size_is_refused():
    larger = one_cell(4, size=4)
    smaller = replace(larger.partition, cell_size=3)
    following = replace(larger, epoch=2, previous=larger.digest(), partition=smaller)
    refused(larger, following, "cell_size was 4 and is 3")


def test_a_core_member_becomes_a_guest_by_its_own_word_only():
    four = one_cell(4)
    moved = (Cell(id=1, since=1, core=ids(0, 1, 2), guests=ids(3)),)
    known = tuple(standing(n, 1) for n in range(3))
    check_cells(four, roster(2, tuple(range(4)), moved, (*known, guest(3, 1)), four))
    others = replace(guest(2), client_id=PEOPLE[3].client_id, since=1)
    for word in (standing(3, 1), others):
        refused(four, roster(2, tuple(range(4)), moved, (*known, word), four), "signed consent")


def test_a_guest_that_held_an_earlier_cell_is_refused():
    # Sums of cell 1 are {0,1,2}; with 2 as a guest, {1,..} minus 2 leaves {0,1}.
    ended = replace(FIRST.partition.cells[0], state="retired")
    made = Cell(id=2, since=2, core=ids(0, 1, 3, 4, 5), guests=ids(2))
    known = (standing(0, 1), standing(1, 1), guest(2, 1), *(standing(n, 2) for n in (3, 4, 5)))
    new = roster(2, tuple(range(6)), (ended, made), known, FIRST)
    refused(FIRST, new, "cell 1 has 2 members")


# What the authority places by itself, played at random.


def random_history(rng: random.Random, size: int) -> int:
    """Play joins, leaves and guests; return the smallest isolated set of core clients."""
    now = roster(1, (), (), (), size=size)
    present: dict[int, Standing] = {}
    exposed: set[int] = set()
    waiting = list(range(10))
    sums: list[set[int]] = []
    for epoch in range(2, 7):
        for _ in range(rng.randrange(1, 2 * size)):
            if waiting and rng.random() < 0.75:
                number = waiting.pop()
                present[number] = guest(number) if rng.random() < 0.15 else standing(number)
            elif present:
                number = rng.choice(sorted(present))
                if rng.random() < 0.5:
                    del present[number]
                else:
                    present[number] = guest(number)
        partition = place(now.partition, tuple(present.values()), epoch)
        following = roster(
            epoch, tuple(present), partition.cells, partition.standings, now, size=size
        )
        check_cells(now, following)
        check_cells(None, following)
        now = following
        exposed |= {NAMES[m] for c in now.partition.cells for m in (*c.guests, *c.left)}
        usable = now.partition.in_use
        for _ in range(3):
            if usable:
                chosen = rng.sample(usable, rng.randrange(1, len(usable) + 1))
                members = {NAMES[m] for cell in chosen for m in cell.core}
                members |= {NAMES[m] for c in chosen for m in c.guests if rng.random() < 0.5}
                sums.append(members)
    honest = [number for number in range(10) if number not in exposed]
    seen = [total & set(honest) for total in sums]
    if not any(seen):
        return size
    return smallest_isolated([total for total in seen if total], honest)


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.slow
def test_no_history_of_placed_cells_isolates_fewer_than_a_cell(size):
    rng = random.Random(size)
    assert min(random_history(rng, size) for _ in range(250)) >= size


@pytest.mark.slow
def test_without_the_fresh_rule_histories_isolate_clients(monkeypatch):
    # No client counts as exposed any more: leavers hold cells, and a guest may be any client.
    monkeypatch.setattr(Partition, "thin", lambda self: None)
    monkeypatch.setattr(rosters, "_alone", lambda roster: iter(()))
    rng = random.Random(3)
    assert min(random_history(rng, 3) for _ in range(250)) < 3


def test_who_is_too_few_waits_and_a_core_that_loses_too_many_is_retired():
    empty = Partition(cell_size=3)
    two = place(empty, (standing(0), standing(1)), 1)
    assert not two.cells
    five = place(two, tuple(standing(n) for n in range(5)), 2)
    assert [set(cell.core) for cell in five.cells] == [set(ids(*range(5)))]
    four = place(five, tuple(standing(n) for n in range(4)), 3)
    assert [(len(cell.core), len(cell.left), cell.state) for cell in four.cells] == [
        (4, 1, "active")
    ]
    two_left = place(four, (standing(0), standing(1)), 4)
    assert [(len(cell.core), cell.state) for cell in two_left.cells] == [(4, "retired")]
    again = place(two_left, tuple(standing(n) for n in (0, 1, 5, 6, 7)), 5)
    assert set(again.in_use[0].core) == set(ids(0, 1, 5, 6, 7))
    assert place(again, tuple(standing(n) for n in (0, 1, 5, 6, 7)), 6) == again


def test_members_are_cut_into_as_many_cells_as_there_can_be():
    found = place(Partition(cell_size=3), tuple(standing(n) for n in range(11)), 1)
    assert sorted(len(cell.core) for cell in found.cells) == [3, 4, 4]
    assert found.placed == set(ids(*range(11)))
