"""Cells: who is summed with whom, for good.

Every opened sum is made of whole cells, so that no two sums differ by less than a cell. What a
roster says of them is checked by clients, coordinator and authority alike: once on its own and
once against the roster before.

A cell's core is in every sum of that cell whole; its guests may be missing, by their own word.
Whoever left is listed, because sums with it were opened. A party's place counts as fresh in the
first cell that it came into, and nowhere else. Every cell ever made keeps `cell_size` fresh parties
in its core that never were guests and never left: in whatever way sums are combined, the fresh ones
of the newest cell among them stay together.

What it does not give: nothing is promised among the parties of one cell, and parties that collude
count as one party less each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from fedrec.errors import BadSignature, KeysError, RosterBreaksCells
from fedrec.identity.document import Document, JsonValue, encode_bytes
from fedrec.identity.public import fingerprint, verify
from fedrec.ids import ClientId, canonical

if TYPE_CHECKING:
    from fedrec.identity.roster import Roster

__all__ = [
    "FEWEST_IN_CELL",
    "Cell",
    "CellState",
    "Partition",
    "Standing",
    "check",
    "consents",
    "guest_consent",
]

CellState: TypeAlias = Literal["active", "paused", "retired"]

FEWEST_IN_CELL = 3
_MOST_TOLD = 3


def guest_consent(federation: str, client_id: ClientId) -> bytes:
    """Return what a client signs that may be missing from sums of its cell."""
    return canonical("fedrec guest v1", federation, client_id)


def consents(federation: str, signing_key: bytes, consent: bytes) -> bool:
    """Tell whether the owner of a signing key signed that it may be missing from sums."""
    try:
        verify(signing_key, guest_consent(federation, fingerprint(signing_key)), consent)
    except BadSignature:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the roster remembers of somebody who is or was in a cell.

    Attributes:
        since: the epoch in which its party first came into a cell; 0 while it waits for one.
        users_cap: users that it has at most; 0 leaves it to the plan.
        replaces: an earlier id of the same party, whose place it has.
        consent: its signature over `guest_consent`; empty where it waits for the others.
    """

    client_id: ClientId
    since: int = 0
    users_cap: int = 0
    replaces: ClientId | None = None
    consent: bytes = b""

    def fields(self) -> dict[str, JsonValue]:
        """Return the fields of the JSON object."""
        return {
            "client_id": self.client_id,
            "since": self.since,
            "users_cap": self.users_cap,
            "replaces": self.replaces or "",
            "consent": encode_bytes(self.consent),
        }

    @classmethod
    def from_fields(cls, document: Document) -> Standing:
        """Read what `fields` returned."""
        found = cls(
            client_id=ClientId(document.text("client_id")),
            since=document.integer("since"),
            users_cap=document.integer("users_cap"),
            replaces=ClientId(document.text("replaces")) or None,
            consent=document.raw("consent"),
        )
        document.finish()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One part of the partition.

    Attributes:
        id: counts from 1; never given twice.
        since: the epoch in which it was made.
        core: who is in every sum of the cell; of a retired one, who was when it ended.
        guests: members who may be missing.
        left: who left the core, or was a guest, and is neither any more.
        state: paused ones wait for the authority's word, retired ones are in no sum any more.
    """

    id: int
    since: int
    core: tuple[ClientId, ...]
    guests: tuple[ClientId, ...] = ()
    left: tuple[ClientId, ...] = ()
    state: CellState = "active"

    def __post_init__(self) -> None:
        for name in ("core", "guests", "left"):
            object.__setattr__(self, name, tuple(sorted(getattr(self, name))))

    @property
    def members(self) -> tuple[ClientId, ...]:
        """Whoever is in it."""
        return (*self.core, *self.guests)

    @property
    def everybody(self) -> tuple[ClientId, ...]:
        """Whoever is or was in it."""
        return (*self.members, *self.left)

    def fields(self) -> dict[str, JsonValue]:
        """Return the fields of the JSON object."""
        return {
            "id": self.id,
            "since": self.since,
            "core": list(self.core),
            "guests": list(self.guests),
            "left": list(self.left),
            "state": self.state,
        }

    @classmethod
    def from_fields(cls, document: Document) -> Cell:
        """Read what `fields` returned."""
        state = document.text("state")
        if state not in get_args(CellState):
            raise document.problem(f"has the state {state!r}")
        found = cls(
            id=document.integer("id", minimum=1),
            since=document.integer("since", minimum=1),
            core=tuple(map(ClientId, document.texts("core"))),
            guests=tuple(map(ClientId, document.texts("guests"))),
            left=tuple(map(ClientId, document.texts("left"))),
            state=state,  # type: ignore[arg-type]  # one of its names, by the check above
        )
        document.finish()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The cells of a roster, and what is remembered of their members.

    Attributes:
        cell_size: fresh parties that each cell has at least; 0 where sums need no cells.
        cells: all that ever were, by id.
        standings: of members, and of whoever was in a cell, by client id.
    """

    cell_size: int = 0
    cells: tuple[Cell, ...] = ()
    standings: tuple[Standing, ...] = ()
    _roots: dict[ClientId, ClientId] = field(
        init=False, repr=False, compare=False, hash=False, default_factory=dict
    )
    _places: dict[ClientId, Cell] = field(
        init=False, repr=False, compare=False, hash=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", tuple(sorted(self.cells, key=lambda cell: cell.id)))
        standings = tuple(sorted(self.standings, key=_by_client_id))
        object.__setattr__(self, "standings", standings)
        wrong = 0 < self.cell_size < FEWEST_IN_CELL or (self.cells and not self.cell_size)
        wrong = wrong or len({cell.id for cell in self.cells}) < len(self.cells)
        if wrong or len({one.client_id for one in standings}) < len(standings):
            raise KeysError(
                f"The roster's cells cannot be used: cell_size is {self.cell_size}, or an id "
                "appears twice.",
                remedy="Ask the key authority for the file again.",
            )
        replaced = {one.client_id: one.replaces for one in standings if one.replaces}
        for client_id in replaced:
            first = client_id
            for _ in range(len(replaced)):
                first = replaced.get(first) or first
            self._roots[client_id] = first
        for cell in self.in_use:
            self._places.update(dict.fromkeys(cell.members, cell))

    @property
    def in_use(self) -> tuple[Cell, ...]:
        """The cells that are not retired."""
        return tuple(cell for cell in self.cells if cell.state != "retired")

    @property
    def placed(self) -> frozenset[ClientId]:
        """Who is in a cell in use."""
        return frozenset(self._places)

    def cell_of(self, client_id: ClientId) -> Cell | None:
        """Return the cell in use that somebody is in."""
        return self._places.get(client_id)

    def standing(self, client_id: ClientId) -> Standing | None:
        """Return what is remembered of somebody."""
        index = bisect_left(self.standings, client_id, key=_by_client_id)
        if index < len(self.standings) and self.standings[index].client_id == client_id:
            return self.standings[index]
        return None

    def since(self, client_id: ClientId) -> int:
        """Return the epoch of somebody's first cell, or 0."""
        found = self.standing(client_id)
        return 0 if found is None else found.since

    def parties(self, clients: Collection[ClientId]) -> set[ClientId]:
        """Return the parties of some ids, each by its first id."""
        return {self._roots.get(one, one) for one in clients}

    def thin(self) -> Cell | None:
        """Return a cell that lacks fresh parties."""
        exposed = self.parties([m for each in self.cells for m in (*each.guests, *each.left)])
        for cell in self.cells:
            own = self.parties([one for one in cell.core if self.since(one) == cell.since])
            if len(own - exposed) < self.cell_size:
                return cell
        return None


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


def _by_client_id(standing: Standing) -> ClientId:
    return standing.client_id
