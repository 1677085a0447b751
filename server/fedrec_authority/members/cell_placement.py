"""Choose the cells of a new epoch and their size."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, comb

from fedrec.errors import KeysError
from fedrec.identity.cells import FEWEST_IN_CELL, Cell, Partition, Standing
from fedrec.ids import ClientId
from fedrec.plan.schema import Plan

HONEST = 3
"""The number of honest clients that every cell should have, to hide each other."""


def too_few_honest(n_clients: int, corrupt_share: Fraction, size: int) -> Fraction:
    """Return a bound on the probability that some cell has fewer than `HONEST` honest clients.

    It is the exact probability for one cell, times the number of cells.

    Args:
        corrupt_share: share of corrupt clients, whose number is rounded up.
        size: size of the cells. Larger ones are safer.
    """
    corrupt = ceil(corrupt_share * n_clients)
    drawn = range(max(size - HONEST + 1, 0), min(size, corrupt) + 1)
    ways = sum(comb(corrupt, bad) * comb(n_clients - corrupt, size - bad) for bad in drawn)
    return min(Fraction(1), Fraction(n_clients // size * ways, comb(n_clients, size)))


def size_needed(n_clients: int, corrupt_share: Fraction, bits: int) -> int | None:
    """Return the smallest size with a probability below 2**-bits, or None if there is none."""
    return next(
        (
            size
            for size in range(HONEST, n_clients + 1)
            if too_few_honest(n_clients, corrupt_share, size) < Fraction(1, 2**bits)
        ),
        None,
    )


def counted_share(size: int, absent_share: float) -> float:
    """Return the share of clients in cells without absent members."""
    return float((1 - absent_share) ** size)


def cell_size_of(plan: Plan) -> int:
    """Return how many fresh members a cell needs, or 0 if sums need no cells."""
    return max(FEWEST_IN_CELL, plan.rounds.minimum_summands) if plan.has_cells else 0


def resumed(before: Partition, cell_id: int) -> Partition:
    """Return a partition with a paused cell resumed. If the cell is 0, nothing changes.

    Raises:
        KeysError: the cell does not exist or is not paused.
    """
    cell = next((cell for cell in before.cells if cell.id == cell_id), None)
    if cell_id and (cell is None or cell.state != "paused"):
        state = "there is none of that number" if cell is None else f"it is {cell.state}"
        paused = ", ".join(str(one.id) for one in before.cells if one.state == "paused") or "none"
        raise KeysError(
            f"Cell {cell_id} is not paused: {state}. Paused cells: {paused}.",
            remedy="See `fedrec keys roster list`.",
        )
    return before if cell is None else _with(before, replace(cell, state="active"))


def place(before: Partition, present: Sequence[Standing], epoch: int) -> Partition:
    """Return the partition of a new epoch.

    Args:
        before: the previous epoch's partition, or one without cells.
        present: the members. Their `since` is taken from `before` instead.
        epoch: the new epoch's number.
    """
    here = {one.client_id: _known(before, one) for one in present}
    kept = {one.client_id: one for one in before.standings if one.since} | here
    found = replace(before, standings=tuple(kept.values()))
    if not before.cell_size:
        return found
    successors = {one.replaces: one.client_id for one in present if one.replaces}
    found = replace(
        found,
        cells=tuple(
            cell if cell.state == "retired" else _with_successors(cell, successors)
            for cell in found.cells
        ),
    )
    for cell in found.in_use:
        left = _without_leavers(cell, here)
        if left == cell:
            continue
        shrunk = _with(found, left)
        # A client that waits for its new cell is in no sum from which the old cell's sums could be
        # subtracted.
        found = _with(found, replace(cell, state="retired")) if shrunk.thin() else shrunk
    found = _with_new_cells(found, here, epoch)
    return _with_guests(found, here, epoch)


def _known(before: Partition, one: Standing) -> Standing:
    since = before.since(one.client_id)
    if not since and one.replaces:
        since = before.since(one.replaces)
    return replace(one, since=since)


def _with_successors(cell: Cell, successors: dict[ClientId, ClientId]) -> Cell:
    return replace(
        cell,
        core=tuple(successors.get(one, one) for one in cell.core),
        guests=tuple(successors.get(one, one) for one in cell.guests),
    )


def _without_leavers(cell: Cell, here: dict[ClientId, Standing]) -> Cell:
    guests = {one for one in (*cell.core, *cell.guests) if one in here and here[one].consent}
    core = {one for one in cell.core if one in here} - guests
    return replace(
        cell,
        core=tuple(core),
        guests=tuple(guests),
        left=tuple({*cell.all_clients} - core - guests),
    )


def _with_new_cells(found: Partition, here: dict[ClientId, Standing], epoch: int) -> Partition:
    unplaced = [one for one in here.values() if one.client_id not in found.placed]
    core = [one.client_id for one in unplaced if not one.consent]
    secrets.SystemRandom().shuffle(core)
    fresh = [one for one in core if not found.since(one)]
    number = len(fresh) // found.cell_size
    if not number:
        return found
    # Members of retired cells are distributed among the new cells, which are complete already.
    dealt = [*fresh, *(one for one in core if found.since(one))]
    first = max((cell.id for cell in found.cells), default=0) + 1
    made = [
        Cell(id=first + place, since=epoch, core=tuple(dealt[place::number]))
        for place in range(number)
    ]
    return replace(
        found, cells=(*found.cells, *made), standings=_since(found, frozenset(fresh), epoch)
    )


def _with_guests(found: Partition, here: dict[ClientId, Standing], epoch: int) -> Partition:
    for one in here.values():
        if not one.consent or one.client_id in found.placed or not found.in_use:
            continue
        smallest = min(found.in_use, key=lambda cell: len(cell.core) + len(cell.guests))
        joined = replace(
            smallest,
            guests=(*smallest.guests, one.client_id),
            left=tuple(m for m in smallest.left if m != one.client_id),
        )
        new = frozenset() if one.since else frozenset({one.client_id})
        tried = replace(_with(found, joined), standings=_since(found, new, epoch))
        # A guest must not be among the members that keep an earlier cell alive.
        found = found if tried.thin() else tried
    return found


def _since(found: Partition, clients: frozenset[ClientId], epoch: int) -> tuple[Standing, ...]:
    return tuple(
        replace(one, since=epoch) if one.client_id in clients else one for one in found.standings
    )


def _with(found: Partition, cell: Cell) -> Partition:
    others = tuple(one for one in found.cells if one.id != cell.id)
    return replace(found, cells=(*others, cell))
