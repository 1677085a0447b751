"""Which item rows travel: those that are trained, padded so that their number says little.

Items that fewer than `federation.minimum_item_users` users hold are never trained, so that after
the count round their rows need not travel. The others are put together in the order of the
catalogue, and rows of zeros are added up to a multiple of 256.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedrec.config.schema import Plan
from fedrec.errors import SettingsError
from fedrec.identity.cells import Partition
from fedrec.ids import canonical, digest
from fedrec.model.state import SharedState
from fedrec.wire.fields import StatedRows

Number = TypeVar("Number", np.int64, np.float64)

ROW_STEP = 256
"""Vectors cover a multiple of so many rows: who sees a length learns the number of trained items
as nearly as that."""


OwnRows: TypeAlias = NDArray[np.bool_] | None
"""The rows of the catalogue that a client contributes to, bool (n_items,); None for all."""


def own_rows_of(holders: NDArray[np.int64], least: int) -> OwnRows:
    """Return the rows that enough of a client's own users hold.

    Args:
        holders: of the client's users, those who hold each item, (n_items,).
        least: `client.minimum_own_item_users`; 1 asks for nothing, not even for a holder.
    """
    return None if least <= 1 else holders >= least


def padded_rows(n_active: int) -> int:
    """Return how many rows travel for so many active items."""
    return -(-n_active // ROW_STEP) * ROW_STEP


def fewest_cells(plan: Plan, partition: Partition) -> int:
    """Return how many whole cells every sum of a roster needs.

    Without more cells than may be corrupt, no item would be held widely enough.
    """
    is_by_cell = plan.counts_by_cell and len(partition.in_use) > 1
    return plan.federation.corrupt_cells + 1 if is_by_cell else 1


def held_widely(plan: Plan, counts: Sequence[NDArray[np.integer]]) -> NDArray[np.bool_]:
    """Tell which items enough users hold, whichever cells report users they don't have.

    A corrupt cell may report any number for an item. Leaving out the `corrupt_cells` largest
    counts leaves at most what the honest cells report: if C are the corrupt cells and L the
    largest, then sum(all but L) <= sum(all but C), since both leave out as many cells.

    Args:
        counts: each cell's holders of each item, (n_items,) each; one cell at least.

    Returns:
        bool (n_items,).
    """
    n_trusted = max(0, len(counts) - plan.federation.corrupt_cells)
    smallest = np.sort(np.stack(counts), axis=0)[:n_trusted]
    least = plan.federation.minimum_item_users
    return np.asarray(smallest.sum(axis=0, dtype=np.int64) >= least)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActiveRows:
    """The rows of a vector: which item of the catalogue each of them belongs to.

    Attributes:
        n_items: items in the catalogue.
        index: their rows in the catalogue, ascending int64 (n_active,).
        n_rows: rows in the vector; those behind the active ones are zero.
    """

    n_items: int
    index: NDArray[np.int64]
    n_rows: int

    @classmethod
    def whole(cls, n_items: int) -> ActiveRows:
        """Return the rows of a vector that covers the catalogue: nobody has counted."""
        return cls(n_items=n_items, index=np.arange(n_items, dtype=np.int64), n_rows=n_items)

    @classmethod
    def counted(cls, holders: NDArray[np.int64], least: int) -> ActiveRows:
        """Return the rows of the items that so many users hold at least.

        Args:
            holders: users of each item, (n_items,).
        """
        index = np.nonzero(holders >= least)[0].astype(np.int64)
        return cls(n_items=len(holders), index=index, n_rows=padded_rows(len(index)))

    @classmethod
    def of(cls, plan: Plan, n_items: int, holders: NDArray[np.int64] | None) -> ActiveRows:
        """Return the rows of a version's training rounds.

        Args:
            holders: its item counts; None before the first round. Under noise nobody counts, so
                that all rows travel.
        """
        if holders is None or plan.privacy.mechanism != "none":
            return cls.whole(n_items)
        return cls.counted(holders, plan.federation.minimum_item_users)

    @property
    def is_whole(self) -> bool:
        """Whether every item has a row of its number."""
        return self.n_rows == self.n_items == len(self.index)

    def padded(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the active items' rows, (n_active, ...), as they travel."""
        if len(values) == self.n_rows:
            return values
        rows = np.zeros((self.n_rows, *values.shape[1:]), dtype=values.dtype)
        rows[: len(values)] = values
        return rows

    def scatter(self, rows: NDArray[Number]) -> NDArray[Number]:
        """Return a table of the catalogue from rows that travelled; zero where none did."""
        if self.is_whole:
            return rows
        values = np.zeros((self.n_items, *rows.shape[1:]), dtype=rows.dtype)
        values[self.index] = rows[: len(self.index)]
        return values

    def apart(self, shared: SharedState, names: Sequence[str]) -> SharedState:
        """Return the same version with these rows of item tables apart from the others.

        Args:
            names: of the item tables.
        """
        return shared if self.is_whole else shared.apart(self.index, names)

    def content(self) -> bytes:
        """Return an injective encoding of the list, of which parties state a digest."""
        return canonical("fedrec active rows v1", self.n_items, self.index.astype("<i8").tobytes())

    def stated(self, federation: str, run: str) -> StatedRows:
        """Return what is said of the list where the coordinator reads the counts itself."""
        if self.is_whole:
            return StatedRows.whole(self.n_items)
        named = digest("fedrec rows v1", federation, run, self.content())
        return StatedRows(n_rows=self.n_rows, digest=named)

    def check(self, plan: Plan) -> None:
        """Refuse to train nothing.

        Raises:
            SettingsError: naming `federation.minimum_item_users`.
        """
        if not len(self.index):
            raise no_active_rows(plan)


def no_active_rows(plan: Plan) -> SettingsError:
    """Return the error of a federation in which no item has enough holders."""
    least = plan.federation.minimum_item_users
    return SettingsError(
        f"After the count no item is held by {least} users "
        f"(federation.minimum_item_users = {least}), so that no row would be trained.",
        remedy="Lower federation.minimum_item_users, or wait for clients with more users.",
    )
