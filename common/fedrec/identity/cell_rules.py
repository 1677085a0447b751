"""What a roster may say of its cells: checked once on its own and once against the roster before.

Clients, coordinator and key authority run the same function on every new roster.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedrec.errors import RosterBreaksCells
from fedrec.identity.cells import consents
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId

_MOST_TOLD = 3


def check(old: Roster | None, new: Roster) -> None:
    """Refuse a roster whose cells would let combined sums isolate fewer than a cell's clients.

    Args:
        old: the newest roster that was known; None for the first. Rosters in between may be
            missing: what holds from one to the next holds over several.

    Raises:
        RosterBreaksCells: saying what is wrong.
    """
    problems = list(_alone(new))
    if old is not None:
        problems += _following(old, new)
    if problems:
        more = f" and {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
        raise RosterBreaksCells(
            f"The roster of epoch {new.epoch} breaks the cells: "
            f"{'; '.join(problems[:_MOST_TOLD])}{more}.",
            remedy="Nothing is uploaded under it. Ask the key authority, not the coordinator, for "
            "a roster that goes on from the one before (`fedrec keys rotate`).",
        )


def _alone(roster: Roster) -> Iterator[str]:
    """Yield what is wrong with a roster whatever was before."""
    found = roster.partition
    members = {member.client_id for member in roster.members}
    replaced = [one.replaces for one in found.standings if one.replaces]
    if len(set(replaced)) < len(replaced) or members & set(replaced):
        yield "two ids stand for one party"
    for one in found.standings:
        if one.replaces and found.since(one.replaces) not in (0, one.since):
            yield f"{_short(one.client_id)} has not the place of whom it replaces"
    seen: set[ClientId] = set()
    fresh: set[ClientId] = set()
    exposed = found.parties([m for cell in found.cells for m in (*cell.guests, *cell.left)])
    for cell in found.cells:
        everybody = cell.everybody
        known = [found.since(one) for one in everybody]
        if len(set(everybody)) < len(everybody) or not all(known):
            yield f"cell {cell.id} lists somebody twice, or without a standing"
        if cell.since > roster.epoch or any(found.since(one) > cell.since for one in cell.core):
            yield f"cell {cell.id} is younger than it says"
        if cell.state != "retired":
            here = {*cell.core, *cell.guests}
            if here & seen or not here <= members:
                yield f"cell {cell.id} has members of another cell, or who are none"
            seen |= here
            for guest in cell.guests:
                if not _consents(roster, guest):
                    yield f"{_short(guest)} is a guest of cell {cell.id} without its own word"
        own = found.parties([one for one in cell.core if found.since(one) == cell.since])
        own -= exposed
        if len(own - fresh) < found.cell_size:
            yield (
                f"cell {cell.id} has {len(own - fresh)} members that were in no other cell and "
                f"never left, {found.cell_size} are needed"
            )
        fresh |= own


def _following(old: Roster, new: Roster) -> Iterator[str]:
    """Yield what a roster says otherwise than the one before."""
    before, after = old.partition, new.partition
    if not (before.cell_size or after.cell_size):
        return
    if new.epoch <= old.epoch:
        if new != old:
            yield f"it does not come after epoch {old.epoch}"
        return
    if new.epoch == old.epoch + 1 and new.previous != old.digest():
        yield "it names another roster as the one before"
    if before.cell_size and after.cell_size != before.cell_size:
        yield f"cell_size was {before.cell_size} and is {after.cell_size}"
    for one in before.standings:
        now = after.standing(one.client_id)
        if one.since and (now is None or now.since != one.since or now.replaces != one.replaces):
            yield f"it forgets how long {_short(one.client_id)} has been in a cell"
    present = {cell.id: cell for cell in after.cells}
    for cell in before.cells:
        found = present.pop(cell.id, None)
        if found is None or found.since != cell.since:
            yield f"cell {cell.id} is gone"
            continue
        core, guests, left = (after.parties(ids) for ids in (found.core, found.guests, found.left))
        was_core, was_guest = after.parties(cell.core), after.parties(cell.guests)
        if not core <= was_core or not was_core <= core | guests | left:
            yield f"the core of cell {cell.id} changed otherwise than by members who left"
        if not was_guest <= guests | left or not after.parties(cell.left) <= left:
            yield f"cell {cell.id} forgets who left it"
        if cell.state == "retired" and found != cell:
            yield f"cell {cell.id} was retired and changed"
    yield from (
        f"cell {cell.id} is said to be of epoch {cell.since}, before epoch {old.epoch}"
        for cell in present.values()
        if cell.since <= old.epoch
    )


def _consents(roster: Roster, client_id: ClientId) -> bool:
    found = roster.partition.standing(client_id)
    if found is None or not roster.contains(client_id):
        return False
    return consents(roster.federation, roster.member(client_id).signing_key, found.consent)


def _short(client_id: ClientId) -> str:
    return f"{client_id[:16]}"
