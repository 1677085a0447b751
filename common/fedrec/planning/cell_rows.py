"""The cells of a deployed federation where one process has all data, and the rows that they cost.

The key authority leaves rows out that too few users hold outside a sum's largest cells
(`fedrec.config.rows.held_widely`). A simulation takes the same partition, of parties by their
positions, and has the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.config.rows import held_widely
from fedrec.config.schema import Plan
from fedrec.data.interactions import user_groups
from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError
from fedrec.identity.cells import FEWEST_IN_CELL
from fedrec.identity.roster import Roster

Cells = tuple[tuple[int, ...], ...]
"""The parties of each cell by their positions; empty where there is no partition. A party of no
cell is counted in sums alone, as guests are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRows:
    """How many items a partition has trained.

    Attributes:
        n_trained: items that are trained.
        n_left_out: items that enough users hold, but not outside the largest cells.
    """

    n_trained: int
    n_left_out: int

    def sentence(self, plan: Plan) -> str:
        """Say it to the reader of a command."""
        least, corrupt = plan.federation.minimum_item_users, plan.federation.corrupt_cells
        largest = "cell" if corrupt == 1 else f"{corrupt} cells"
        return (
            f"{self.n_trained} items are trained; {self.n_left_out} more are held by {least} "
            f"users, but not outside the largest {largest} (federation.corrupt_cells = {corrupt})."
        )


def fewest_clients_of(plan: Plan, n_cells: int) -> int:
    """Return the fewest clients that `n_cells` cells have."""
    return n_cells * max(FEWEST_IN_CELL, plan.rounds.minimum_summands)


def deal_cells(plan: Plan, n_cells: int, n_clients: int) -> Cells:
    """Deal parties out to cells in turn: party i to cell i % n_cells.

    Raises:
        SettingsError: a cell would have too few parties; see `cells_in_use`, too.
    """
    least = fewest_clients_of(plan, n_cells)
    if n_clients < least:
        raise SettingsError(
            f"{n_clients} clients are too few for {n_cells} cells: each has at least "
            f"{least // n_cells}.",
            remedy=f"Ask for {least} clients or more, or for fewer cells.",
        )
    cells = tuple(tuple(range(cell, n_clients, n_cells)) for cell in range(n_cells))
    return cells_in_use(plan, cells, n_clients)


def cells_of_roster(roster: Roster, names: Sequence[str]) -> Cells:
    """Return the partition of a roster.

    Args:
        names: the parties' labels, in the order in which users are dealt out to them.

    Raises:
        SettingsError: the roster has other members.
    """
    labels = {member.client_id: member.label for member in roster.members}
    if sorted(labels.values()) != sorted(names):
        raise SettingsError(
            f"The roster's {len(labels)} members are not the {len(names)} in parties.clients.",
            remedy="Name the members' labels in parties.clients, each once, or give a number of "
            "cells.",
        )
    place = {name: position for position, name in enumerate(names)}
    return tuple(
        tuple(sorted(place[labels[client]] for client in cell.core))
        for cell in roster.partition.in_use
    )


def cells_in_use(plan: Plan, cells: Cells, n_clients: int) -> Cells:
    """Return the cells by which rows are counted; empty where a plan counts none, or has one.

    Raises:
        SettingsError: they are no parts of the parties, or no more than may be corrupt.
    """
    parties = [party for cell in cells for party in cell]
    if len(set(parties)) < len(parties) or not set(parties) <= set(range(n_clients)):
        raise SettingsError(
            f"The cells name parties twice, or others than the {n_clients} that there are.",
            remedy=f"Name each of 0 to {n_clients - 1} in one cell at most.",
        )
    if len(cells) < 2 or not plan.counts_by_cell:
        return ()
    corrupt = plan.federation.corrupt_cells
    if len(cells) <= corrupt:
        raise SettingsError(
            f"{len(cells)} cells are no more than may be corrupt (federation.corrupt_cells = "
            f"{corrupt}), so that no row would be trained.",
            remedy=f"Ask for {corrupt + 1} cells or more, or lower federation.corrupt_cells.",
        )
    return cells


def held_in_cells(
    plan: Plan, counts: Sequence[NDArray[np.int64]], cells: Cells
) -> NDArray[np.bool_]:
    """Tell which items enough users hold outside the largest cells, bool (n_items,).

    Args:
        counts: each party's holders of each item, (n_items,) each.
        cells: several.
    """
    nobody = np.zeros_like(counts[0])
    by_cell = [sum((counts[party] for party in cell), start=nobody) for cell in cells]
    return held_widely(plan, by_cell)


def trained_items(
    plan: Plan, users: UserSplit, n_items: int, *, n_clients: int, cells: Cells
) -> NDArray[np.bool_]:
    """Tell which items a simulation will train, from its users' data alone, bool (n_items,)."""
    holders = np.bincount(users.train_items, minlength=n_items)
    enough = np.asarray(holders >= plan.federation.minimum_item_users)
    if not cells:
        return enough
    groups = user_groups(users.user_ids, n_clients)
    counts = [np.bincount(users.select(one).train_items, minlength=n_items) for one in groups]
    return enough & held_in_cells(plan, counts, cells)


def cell_rows(
    plan: Plan, users: UserSplit, n_items: int, *, n_clients: int, cells: Cells
) -> CellRows:
    """Return how many items a simulation will train, from its users' data alone."""
    without = trained_items(plan, users, n_items, n_clients=n_clients, cells=())
    kept = trained_items(plan, users, n_items, n_clients=n_clients, cells=cells)
    return CellRows(n_trained=int(kept.sum()), n_left_out=int((without & ~kept).sum()))
