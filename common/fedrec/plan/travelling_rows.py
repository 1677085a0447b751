"""Travelling rows: the item rows that are trained, padded to hide their exact number.

Items that fewer than `federation.minimum_item_users` users hold are never trained. After the count
round their rows do not travel. The others are joined in the order of the catalogue and padded with
rows of zeros to a multiple of 256.

The key authority leaves out rows that too few users hold outside a sum's largest cells
(`held_widely`). A simulation has all data in one process, takes the same partition, of parties by
their positions, and gets the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedrec.data.interactions import user_groups
from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError
from fedrec.identity.cells import FEWEST_IN_CELL, Partition
from fedrec.identity.roster import Roster
from fedrec.ids import canonical, digest
from fedrec.model.state import SharedState
from fedrec.plan.schema import Plan
from fedrec.wire.fields import StatedRows

Number = TypeVar("Number", np.int64, np.float64)

ROW_STEP = 256
"""Vectors cover a multiple of this many rows, so their length is a coarse hint."""


OwnRows: TypeAlias = NDArray[np.bool_] | None
"""The rows of the catalogue that a client contributes to, bool (n_items,), or None for all."""


def own_rows_of(holders: NDArray[np.int64], least: int) -> OwnRows:
    """Return the rows that enough of a client's own users hold.

    Args:
        holders: the number of the client's users that hold each item, (n_items,).
        least: `client.minimum_own_item_users`. 1 requires nothing, not even a holder.
    """
    return None if least <= 1 else holders >= least


def padded_rows(n_active: int) -> int:
    """Return how many rows travel for this many active items."""
    return -(-n_active // ROW_STEP) * ROW_STEP


def fewest_cells(plan: Plan, partition: Partition) -> int:
    """Return how many whole cells every sum of a roster needs.

    With no more cells than may be corrupt, no item could be held widely enough.
    """
    is_by_cell = plan.counts_by_cell and len(partition.in_use) > 1
    return plan.federation.corrupt_cells + 1 if is_by_cell else 1


def held_widely(plan: Plan, counts: Sequence[NDArray[np.integer]]) -> NDArray[np.bool_]:
    """Return a mask of the items with enough holders, even if some cells report false counts.

    A corrupt cell may report any number for an item. Leaving out the `corrupt_cells` largest counts
    leaves at most what the honest cells report: if C are the corrupt cells and L the largest, then
    sum(all but L) <= sum(all but C), since both leave out as many cells.

    Args:
        counts: each cell's holders of each item, (n_items,) each, for at least one cell.

    Returns:
        bool (n_items,).
    """
    n_trusted = max(0, len(counts) - plan.federation.corrupt_cells)
    smallest = np.sort(np.stack(counts), axis=0)[:n_trusted]
    least = plan.federation.minimum_item_users
    return np.asarray(smallest.sum(axis=0, dtype=np.int64) >= least)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActiveRows:
    """The rows of a vector, each with its item of the catalogue.

    Attributes:
        n_items: items in the catalogue.
        index: their rows in the catalogue, ascending int64 (n_active,).
        n_rows: rows in the vector. Those after the active ones are zero.
    """

    n_items: int
    index: NDArray[np.int64]
    n_rows: int

    @classmethod
    def whole(cls, n_items: int) -> ActiveRows:
        """Return the rows of a vector that covers the whole catalogue."""
        return cls(n_items=n_items, index=np.arange(n_items, dtype=np.int64), n_rows=n_items)

    @classmethod
    def counted(cls, holders: NDArray[np.int64], least: int) -> ActiveRows:
        """Return the rows of the items with at least `least` holders.

        Args:
            holders: users of each item, (n_items,).
        """
        index = np.nonzero(holders >= least)[0].astype(np.int64)
        return cls(n_items=len(holders), index=index, n_rows=padded_rows(len(index)))

    @classmethod
    def of(cls, plan: Plan, n_items: int, holders: NDArray[np.int64] | None) -> ActiveRows:
        """Return the rows of a version's training rounds.

        Args:
            holders: its item counts, or None before the first round. Under noise there is no count,
                and all rows travel.
        """
        if holders is None or plan.privacy.mechanism != "none":
            return cls.whole(n_items)
        return cls.counted(holders, plan.federation.minimum_item_users)

    @property
    def is_whole(self) -> bool:
        """Whether every item's row has the item's own number."""
        return self.n_rows == self.n_items == len(self.index)

    def padded(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the active items' rows, (n_active, ...), as they travel."""
        if len(values) == self.n_rows:
            return values
        rows = np.zeros((self.n_rows, *values.shape[1:]), dtype=values.dtype)
        rows[: len(values)] = values
        return rows

    def scatter(self, rows: NDArray[Number]) -> NDArray[Number]:
        """Return a table of the catalogue from the rows that travelled, with zeros elsewhere."""
        if self.is_whole:
            return rows
        values = np.zeros((self.n_items, *rows.shape[1:]), dtype=rows.dtype)
        values[self.index] = rows[: len(self.index)]
        return values

    def apart(self, shared: SharedState, names: Sequence[str]) -> SharedState:
        """Return the same version with these rows of item tables separated from the others.

        Args:
            names: the names of the item tables.
        """
        return shared if self.is_whole else shared.apart(self.index, names)

    def content(self) -> bytes:
        """Return an injective encoding of the list. Parties sign its digest."""
        return canonical("fedrec active rows v1", self.n_items, self.index.astype("<i8").tobytes())

    def stated(self, federation: str, run: str) -> StatedRows:
        """Return the statement about the list if the coordinator reads the counts itself."""
        if self.is_whole:
            return StatedRows.whole(self.n_items)
        named = digest("fedrec rows v1", federation, run, self.content())
        return StatedRows(n_rows=self.n_rows, digest=named)

    def check(self, plan: Plan) -> None:
        """Refuse to train no rows at all.

        Raises:
            SettingsError: no row is active. The message names `federation.minimum_item_users`.
        """
        if not len(self.index):
            raise no_active_rows(plan)


def no_active_rows(plan: Plan) -> SettingsError:
    """Return the error of a federation in which no item has enough holders."""
    least = plan.federation.minimum_item_users
    return SettingsError(
        f"After the count no item is held by {least} users (federation.minimum_item_users = "
        f"{least}), so no row would be trained.",
        remedy="Lower federation.minimum_item_users, or wait for clients with more users.",
    )


Cells = tuple[tuple[int, ...], ...]
"""The parties of each cell by their positions, or empty if there is no partition.

A party without a cell is counted in sums alone, as guests are.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRows:
    """How many items are trained under a partition.

    Attributes:
        n_trained: items that are trained.
        n_left_out: items with enough holders, but not outside the largest cells.
    """

    n_trained: int
    n_left_out: int

    def sentence(self, plan: Plan) -> str:
        """Return the numbers as a sentence."""
        least, corrupt = plan.federation.minimum_item_users, plan.federation.corrupt_cells
        largest = "cell" if corrupt == 1 else f"{corrupt} cells"
        return (
            f"{self.n_trained} items are trained. {self.n_left_out} more are held by {least} "
            f"users, but not outside the largest {largest} (federation.corrupt_cells = {corrupt})."
        )


def fewest_clients_of(plan: Plan, n_cells: int) -> int:
    """Return the smallest number of clients that `n_cells` cells can have."""
    return n_cells * max(FEWEST_IN_CELL, plan.rounds.minimum_summands)


def deal_cells(plan: Plan, n_cells: int, n_clients: int) -> Cells:
    """Assign parties to cells in turn: party i to cell i % n_cells.

    Raises:
        SettingsError: a cell would have too few parties, or as for `cells_in_use`.
    """
    least = fewest_clients_of(plan, n_cells)
    if n_clients < least:
        raise SettingsError(
            f"{n_clients} clients are too few for {n_cells} cells: each has at least "
            f"{least // n_cells}.",
            remedy=f"Use at least {least} clients, or fewer cells.",
        )
    cells = tuple(tuple(range(cell, n_clients, n_cells)) for cell in range(n_cells))
    return cells_in_use(plan, cells, n_clients)


def cells_of_roster(roster: Roster, names: Sequence[str]) -> Cells:
    """Return the partition of a roster.

    Args:
        names: the parties' labels, in the order in which users are assigned to them.

    Raises:
        SettingsError: the roster has other members.
    """
    labels = {member.client_id: member.label for member in roster.members}
    if sorted(labels.values()) != sorted(names):
        raise SettingsError(
            f"The roster's {len(labels)} members do not match the {len(names)} in parties.clients.",
            remedy="Name the members' labels in parties.clients, each once, or give a number of "
            "cells.",
        )
    place = {name: position for position, name in enumerate(names)}
    return tuple(
        tuple(sorted(place[labels[client]] for client in cell.core))
        for cell in roster.partition.in_use
    )


def cells_in_use(plan: Plan, cells: Cells, n_clients: int) -> Cells:
    """Return the cells by which rows are counted, or empty if the plan counts none or has one.

    Raises:
        SettingsError: the cells don't partition the parties, or all of them may be corrupt, or the
            number of clients isn't an integer.
    """
    if not isinstance(n_clients, int | np.integer):
        raise SettingsError(f"n_clients is {n_clients!r}.", remedy="Pass an integer.")
    parties = [party for cell in cells for party in cell]
    if len(set(parties)) < len(parties) or not all(0 <= one < n_clients for one in parties):
        raise SettingsError(
            f"The cells name a party twice, or one that isn't among the {n_clients} of this run.",
            remedy=f"Name each of 0 to {n_clients - 1} in at most one cell.",
        )
    if len(cells) < 2 or not plan.counts_by_cell:
        return ()
    corrupt = plan.federation.corrupt_cells
    if len(cells) <= corrupt:
        raise SettingsError(
            f"{len(cells)} cells are no more than may be corrupt (federation.corrupt_cells = "
            f"{corrupt}), so no row would be trained.",
            remedy=f"Use at least {corrupt + 1} cells, or lower federation.corrupt_cells.",
        )
    return cells


def held_in_cells(
    plan: Plan, counts: Sequence[NDArray[np.int64]], cells: Cells
) -> NDArray[np.bool_]:
    """Return a mask of the items with enough holders outside the largest cells, bool (n_items,).

    Args:
        counts: each party's holders of each item, (n_items,) each.
        cells: two or more cells.
    """
    zeros = np.zeros_like(counts[0])
    by_cell = [sum((counts[party] for party in cell), start=zeros) for cell in cells]
    return held_widely(plan, by_cell)


def trained_items(
    plan: Plan, users: UserSplit, n_items: int, *, n_clients: int, cells: Cells
) -> NDArray[np.bool_]:
    """Return a mask of the items that a simulation will train, bool (n_items,)."""
    holders = users.item_counts(n_items)
    enough = np.asarray(holders >= plan.federation.minimum_item_users)
    if not cells:
        return enough
    groups = user_groups(users.user_ids, n_clients)
    counts = [users.select(one).item_counts(n_items) for one in groups]
    return enough & held_in_cells(plan, counts, cells)


def cell_rows(
    plan: Plan, users: UserSplit, n_items: int, *, n_clients: int, cells: Cells
) -> CellRows:
    """Return how many items a simulation will train, from its users' data alone."""
    without = trained_items(plan, users, n_items, n_clients=n_clients, cells=())
    kept = trained_items(plan, users, n_items, n_clients=n_clients, cells=cells)
    return CellRows(n_trained=int(kept.sum()), n_left_out=int((without & ~kept).sum()))
