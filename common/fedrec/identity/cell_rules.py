"""Rules for a roster's cells: some hold for each roster, others compare it with the previous one.

Clients, coordinator and key authority check every new roster with the same function.
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
        old: the newest known roster, or None for the first. Rosters in between may be missing,
            because the rules also hold across several epochs.

    Raises:
        RosterBreaksCells: the roster breaks a rule. The message lists the first few.
    """
    problems = list(_alone(new))
    if old is not None:
        problems += _following(old, new)
    if problems:
        more = f" and {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
        raise RosterBreaksCells(
            f"The roster of epoch {new.epoch} breaks the rules of cells: "
            f"{'; '.join(problems[:_MOST_TOLD])}{more}.",
            remedy="Nothing is uploaded under it. Ask the key authority, not the coordinator, for "
            "a roster that continues the previous one (`fedrec keys rotate`).",
        )


def _alone(roster: Roster) -> Iterator[str]:
    """Yield the broken rules that concern this roster alone."""
    found = roster.partition
    members = {member.client_id for member in roster.members}
    replaced = [one.replaces for one in found.standings if one.replaces]
    if len(set(replaced)) < len(replaced) or members & set(replaced):
        yield "two client ids belong to one party"
    for one in found.standings:
        if one.replaces and found.since(one.replaces) not in (0, one.since):
            yield f"{_short(one.client_id)} does not have the place of the client that it replaces"
    seen: set[ClientId] = set()
    fresh: set[ClientId] = set()
    exposed = found.parties([m for cell in found.cells for m in (*cell.guests, *cell.left)])
    for cell in found.cells:
        all_clients = cell.all_clients
        known = [found.since(one) for one in all_clients]
        if len(set(all_clients)) < len(all_clients) or not all(known):
            yield f"cell {cell.id} lists a client twice or without a standing"
        if cell.since > roster.epoch or any(found.since(one) > cell.since for one in cell.core):
            yield (
                f"cell {cell.id} has an epoch after the roster's epoch, or before one of its "
                "members joined a cell"
            )
        if cell.state != "retired":
            here = {*cell.core, *cell.guests}
            if here & seen or not here <= members:
                yield f"cell {cell.id} has clients that are in other cells or are not members"
            seen |= here
            for guest in cell.guests:
                if not _consents(roster, guest):
                    yield (
                        f"{_short(guest)} is a guest of cell {cell.id} without its signed consent"
                    )
        own = found.parties([one for one in cell.core if found.since(one) == cell.since])
        own -= exposed
        if len(own - fresh) < found.cell_size:
            yield (
                f"cell {cell.id} has {len(own - fresh)} members that were never in another cell "
                f"and never left, expected at least {found.cell_size}"
            )
        fresh |= own


def _following(old: Roster, new: Roster) -> Iterator[str]:
    """Yield the broken rules that concern what changed since the previous roster."""
    before, after = old.partition, new.partition
    if not (before.cell_size or after.cell_size):
        return
    if new.epoch <= old.epoch:
        if new != old:
            yield f"it does not come after epoch {old.epoch}"
        return
    if new.epoch == old.epoch + 1 and new.previous != old.digest():
        yield "it names a different previous roster"
    if before.cell_size and after.cell_size != before.cell_size:
        yield f"cell_size was {before.cell_size} and is {after.cell_size}"
    for one in before.standings:
        now = after.standing(one.client_id)
        if one.since and (now is None or now.since != one.since or now.replaces != one.replaces):
            yield f"it changes the epoch since which {_short(one.client_id)} has been in a cell"
    present = {cell.id: cell for cell in after.cells}
    for cell in before.cells:
        found = present.pop(cell.id, None)
        if found is None or found.since != cell.since:
            yield f"cell {cell.id} is gone"
            continue
        core, guests, left = (after.parties(ids) for ids in (found.core, found.guests, found.left))
        was_core, was_guest = after.parties(cell.core), after.parties(cell.guests)
        if not core <= was_core or not was_core <= core | guests | left:
            yield f"the core of cell {cell.id} changed by more than the members that left"
        if not was_guest <= guests | left or not after.parties(cell.left) <= left:
            yield f"cell {cell.id} dropped a client from the list of those that left"
        if cell.state == "retired" and found != cell:
            yield f"cell {cell.id} was retired but changed"
    yield from (
        f"cell {cell.id} claims epoch {cell.since}, which is before epoch {old.epoch}"
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
