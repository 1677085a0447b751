"""Whose updates may be added up: whole cores of active cells, and any of their guests.

Nothing has to be remembered of earlier sums: whatever two sums are made in this way, they differ by
whole cores, or by guests, who agreed to that. Where a roster has no cells, because a party that
reads sums could read single updates, too, anybody may be summed with anybody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fedrec.errors import PartialCell
from fedrec.identity.cells import Cell, Partition
from fedrec.ids import ClientId

__all__ = ["check_whole", "core_among", "missing_from", "whole_among", "whole_cells"]


def whole_cells(partition: Partition, clients: Collection[ClientId]) -> Iterator[Cell]:
    """Yield the active cells of which nobody is missing who has to be in a sum."""
    here = frozenset(clients)
    for cell in partition.cells:
        if cell.state == "active" and here.issuperset(cell.core):
            yield cell


def whole_among(partition: Partition, clients: Collection[ClientId]) -> frozenset[ClientId]:
    """Return those of some clients whose updates may be added up."""
    here = frozenset(clients)
    if not partition.cell_size:
        return here
    found = (here.intersection(cell.members) for cell in whole_cells(partition, here))
    return frozenset().union(*found)


def core_among(partition: Partition, clients: Collection[ClientId]) -> frozenset[ClientId]:
    """Return those of some clients who are no guests; a sum has to hide one among these."""
    if not partition.cell_size:
        return frozenset(clients)
    return frozenset(clients).difference(*(cell.guests for cell in partition.cells))


def missing_from(partition: Partition, clients: Collection[ClientId]) -> frozenset[ClientId]:
    """Return who is missing from cells that some clients are of."""
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
    """Refuse a sum that, with another one, would be that of fewer clients than a cell has.

    Args:
        clients: whose updates are in the sum.
        least: how many it must have that are no guests.
        least_cells: how many cells it must have.
        what: the sum, for the error.

    Raises:
        PartialCell: naming how many are missing, or are in no cell.
    """
    here = frozenset(clients)
    core = len(core_among(partition, here))
    if core < least:
        raise PartialCell(
            f"{what} is over {core} clients that have to be in it, expected at least {least}."
        )
    astray = here - whole_among(partition, here)
    if astray:
        missing = len(missing_from(partition, astray))
        raise PartialCell(
            f"{what} is over {len(astray)} clients without the {missing} others with whom they "
            "are always summed: with another sum it would tell about fewer than the roster allows.",
        )
    found = sum(1 for _ in whole_cells(partition, here))
    if partition.cell_size and found < least_cells:
        raise PartialCell(
            f"{what} is over {found} cells, expected at least {least_cells}: more than may be "
            "corrupt (federation.corrupt_cells)."
        )
