"""Cells: fixed groups of clients whose updates are only ever added up together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from fedrec.errors import BadSignature, KeysError, PartialCell
from fedrec.identity.document import Document, JsonValue, encode_bytes
from fedrec.identity.public import fingerprint, verify
from fedrec.ids import ClientId, canonical

CellState: TypeAlias = Literal["active", "paused", "retired"]

FEWEST_IN_CELL = 3


def guest_consent(federation: str, client_id: ClientId) -> bytes:
    """Return the statement that a client signs to consent to be missing from its cell's sums."""
    return canonical("fedrec guest v1", federation, client_id)


def consents(federation: str, signing_key: bytes, consent: bytes) -> bool:
    """Return whether the owner of a signing key consented to be missing from sums."""
    try:
        verify(signing_key, guest_consent(federation, fingerprint(signing_key)), consent)
    except BadSignature:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The roster's record of a client that is or was in a cell.

    Attributes:
        since: the epoch in which its party first joined a cell, or 0 while it waits for one.
        users_cap: the largest number of users that it may have, or 0 for the plan's limit.
        replaces: an earlier id of the same party, whose place it took.
        consent: its signature over `guest_consent`, or empty if it did not consent.
    """

    client_id: ClientId
    since: int = 0
    users_cap: int = 0
    replaces: ClientId | None = None
    consent: bytes = b""

    def fields(self) -> dict[str, JsonValue]:
        """Return the standing as a JSON object."""
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
        id: counts from 1 and is never reused.
        since: the epoch in which it was made.
        core: the members that must be in every sum of the cell. For a retired cell, its last core.
        guests: members that may be missing.
        left: former members of the core and former guests.
        state: a paused cell sits out until the authority resumes it. A retired one is in no further
            sum.
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
        """The core, then the guests."""
        return (*self.core, *self.guests)

    @property
    def all_clients(self) -> tuple[ClientId, ...]:
        """Current and former members."""
        return (*self.members, *self.left)

    def fields(self) -> dict[str, JsonValue]:
        """Return the cell as a JSON object."""
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
    """The cells of a roster, and the standings of current and former members.

    Attributes:
        cell_size: the smallest number of fresh parties in a cell, or 0 if sums need no cells.
        cells: all cells, including retired ones, by id.
        standings: one for each current or former member, by client id.
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
                f"The roster's cells are invalid: cell_size is {self.cell_size}, or an id appears "
                "twice.",
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
        """The members of all cells in use."""
        return frozenset(self._places)

    def cell_of(self, client_id: ClientId) -> Cell | None:
        """Return the cell in use that contains a client, or None if there is no such cell."""
        return self._places.get(client_id)

    def standing(self, client_id: ClientId) -> Standing | None:
        """Return a client's standing, or None if it has none."""
        index = bisect_left(self.standings, client_id, key=_by_client_id)
        if index < len(self.standings) and self.standings[index].client_id == client_id:
            return self.standings[index]
        return None

    def since(self, client_id: ClientId) -> int:
        """Return the epoch in which a client first joined a cell, or 0."""
        found = self.standing(client_id)
        return 0 if found is None else found.since

    def parties(self, clients: Collection[ClientId]) -> set[ClientId]:
        """Return the parties of these clients, each by its earliest id."""
        return {self._roots.get(one, one) for one in clients}

    def with_paused(self, cells: Collection[int]) -> Partition:
        """Return the partition with these active cells paused."""
        changed = tuple(
            replace(cell, state="paused") if cell.state == "active" and cell.id in cells else cell
            for cell in self.cells
        )
        return self if changed == self.cells else replace(self, cells=changed)

    def members_of(self, cells: Collection[int]) -> frozenset[ClientId]:
        """Return the members of these cells in use."""
        return frozenset(m for cell in self.in_use if cell.id in cells for m in cell.members)

    def thin(self) -> Cell | None:
        """Return a cell with too few fresh parties, or None if there is no such cell."""
        exposed = self.parties([m for each in self.cells for m in (*each.guests, *each.left)])
        for cell in self.cells:
            own = self.parties([one for one in cell.core if self.since(one) == cell.since])
            if len(own - exposed) < self.cell_size:
                return cell
        return None


def _by_client_id(standing: Standing) -> ClientId:
    return standing.client_id


def whole_cells(partition: Partition, clients: Collection[ClientId]) -> Iterator[Cell]:
    """Yield the active cells whose whole core is present."""
    here = frozenset(clients)
    for cell in partition.cells:
        if cell.state == "active" and here.issuperset(cell.core):
            yield cell


def whole_among(partition: Partition, clients: Collection[ClientId]) -> frozenset[ClientId]:
    """Return the clients whose updates may be added up: those of whole cells."""
    here = frozenset(clients)
    if not partition.cell_size:
        return here
    found = (here.intersection(cell.members) for cell in whole_cells(partition, here))
    return frozenset().union(*found)


def core_among(partition: Partition, clients: Collection[ClientId]) -> frozenset[ClientId]:
    """Return the clients that are not guests. A sum has to hide each client among these."""
    if not partition.cell_size:
        return frozenset(clients)
    return frozenset(clients).difference(*(cell.guests for cell in partition.cells))


def missing_from(partition: Partition, clients: Collection[ClientId]) -> frozenset[ClientId]:
    """Return the core members that are missing from the cells of these clients."""
    here = frozenset(clients)
    touched = (cell for cell in partition.in_use if not here.isdisjoint(cell.members))
    return frozenset().union(*(cell.core for cell in touched)) - here


def check_whole(
    partition: Partition,
    clients: Collection[ClientId],
    *,
    least: int,
    least_cells: int = 1,
    what: str,
) -> None:
    """Refuse a sum that, with an earlier one, would isolate fewer clients than a cell has.

    Args:
        clients: the clients whose updates are in the sum.
        least: the smallest allowed number of clients that are not guests.
        least_cells: the smallest allowed number of cells.
        what: a name for the sum, used in the error.

    Raises:
        PartialCell: core members are missing, a client is in no cell, or there are too few clients
            or cells.
    """
    here = frozenset(clients)
    core = len(core_among(partition, here))
    if core < least:
        raise PartialCell(
            f"{what} covers {core} clients that are not guests, expected at least {least}."
        )
    astray = here - whole_among(partition, here)
    if astray:
        missing = len(missing_from(partition, astray))
        raise PartialCell(
            f"{what} covers {len(astray)} clients without {missing} others of their cells. "
            "Its difference from another sum would isolate fewer clients than the roster allows.",
        )
    found = sum(1 for _ in whole_cells(partition, here))
    if partition.cell_size and found < least_cells:
        raise PartialCell(
            f"{what} covers {found} cells, expected at least {least_cells}: more than may be "
            "corrupt (federation.corrupt_cells)."
        )
