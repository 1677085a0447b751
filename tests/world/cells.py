"""Cells for the rosters of test federations: in the clients' order, so that tests can name them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fedrec.identity.cells import Cell, Partition, Standing, guest_consent
from fedrec.identity.identity import Identity
from fedrec.identity.public import PublicIdentity
from fedrec.ids import ClientId
from fedrec_authority.members.cell_placement import place


def partition_of(
    clients: Iterable[ClientId],
    cell_size: int = 3,
    since: int = 1,
    guests: Iterable[Standing] = (),
) -> Partition:
    """Return consecutive cells of `cell_size` clients; what is over comes to the last one.

    Clients that are too few for one cell wait. Guests come to the first cell.
    """
    found, more = list(clients), list(guests)
    number = len(found) // cell_size
    cuts = [place * cell_size for place in range(number)] + [len(found)]
    cells = tuple(
        Cell(
            id=place + 1,
            since=since,
            core=tuple(found[cuts[place] : cuts[place + 1]]),
            guests=() if place else tuple(one.client_id for one in more),
        )
        for place in range(number)
    )
    known = [Standing(client_id=client_id) for client_id in found] + more
    return Partition(
        cell_size=cell_size,
        cells=cells,
        standings=tuple(replace(one, since=since if number else 0) for one in known),
    )


def guest(identity: Identity, federation: str) -> Standing:
    """Return the standing of a client who agreed to be missing at times."""
    consent = identity.sign(guest_consent(federation, identity.client_id))
    return Standing(client_id=identity.client_id, consent=consent)


def partition_after(before: Partition, members: Iterable[PublicIdentity], epoch: int) -> Partition:
    """Return the authority's partition of a later epoch."""
    return place(before, [Standing(client_id=member.client_id) for member in members], epoch)
