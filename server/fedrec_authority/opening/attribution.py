"""Find the cells that made a sum unfit, by adding up and opening each cell's contributions.

A cell is unfit if its sum does not open, has wrong tags or exceeds its bounds. Then one of its
members signed something that no honest client sends. The authority adds up signed messages, never
the coordinator's sum, so only a member can cause that. The sum of the good cells is a sum over
whole cells like any other.

Under noise this is not done: single cells carry less noise than the guarantee needs.

It does not find a client that stays within its cell's bounds but exceeds those of all cells
together, which is possible if clients have no users_cap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import FedrecError, ProtocolError, RefusedError
from fedrec.identity.cells import core_among, whole_cells
from fedrec.ids import ClientId
from fedrec.plan.travelling_rows import fewest_cells
from fedrec.wire.fields import MAX_PAUSED
from fedrec.wire.messages import Reveal, UploadHeader
from fedrec_authority.opening.cell_counts import (
    CellCounts,
    Contributions,
    OpeningContext,
    open_cell,
)

MOST_CELLS = 64
"""Sums over more cells are not examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFindings:
    """The result of examining the cells of a round.

    Attributes:
        good: the contributions of cells with valid sums.
        vectors: the sums of those cells.
        unfit: the problem of each other cell.
    """

    good: Contributions
    vectors: tuple[NDArray[np.int64], ...]
    unfit: Mapping[int, FedrecError]

    @property
    def total(self) -> NDArray[np.int64]:
        """The sum of the good cells."""
        return reduce(np.add, self.vectors)


class Attribution:
    """Find the cells that make a round's sum unfit."""

    def __init__(self, context: OpeningContext, counts: CellCounts) -> None:
        self._context = context
        self._counts = counts
        self._membership = context.membership
        self._store = context.store

    @property
    def paused(self) -> tuple[int, ...]:
        """The cells that are paused in this epoch."""
        return tuple(one.cell for one in self._store.state.paused)

    def listed(self, task: Reveal) -> set[int]:
        """Return the cells with contributions in a list that were paused in another round.

        Cells paused in a later round count, too, because abandoned rounds can be presented in any
        order.
        """
        before = {one.cell for one in self._store.state.paused if one.round != task.round}
        return before.intersection(self._by_cell(task))

    def is_useful(self, task: Reveal) -> bool:
        """Return whether opening a round's cells one by one can save the round.

        It can't if there is only one cell, or if every cell is needed.
        """
        if self._membership.plan.privacy.mechanism != "none":
            return False
        cells = self._by_cell(task)
        if not 1 < len(cells) <= MOST_CELLS or len(self._paused_with(task, ())) >= MAX_PAUSED:
            return False
        smallest = min(cells, key=lambda cell: self._core(cells[cell]))
        rest = [one for cell, own in cells.items() if cell != smallest for one in own]
        return self.is_enough(tuple(rest))

    def is_enough(self, contributions: Contributions) -> bool:
        """Return whether a sum of these contributions covers enough clients and cells."""
        member = self._membership
        cells = whole_cells(member.roster.partition, [one.client_id for one in contributions])
        enough = len(list(cells)) >= fewest_cells(member.plan, member.roster.partition)
        return enough and self._core(contributions) >= member.minimum_summands

    def may_pause(self, task: Reveal, cells: Mapping[int, FedrecError]) -> bool:
        """Return whether this many cells may be paused in one epoch.

        Each reveals a little about the key.
        """
        return len(self._paused_with(task, cells)) <= MAX_PAUSED

    def open_cells(self, task: Reveal) -> CellFindings:
        """Open the sum of each cell, recording each on disk before the key is used.

        Raises:
            RefusedError: the coordinator sent bytes that the member did not sign.
        """
        good: list[UploadHeader] = []
        vectors, unfit = [], {}
        for cell, contributions in sorted(self._by_cell(task).items()):
            try:
                vectors.append(open_cell(self._context, task, cell, contributions))
                self._counts.count(task, contributions)
                good += contributions
            except (ProtocolError, RefusedError) as error:
                unfit[cell] = error
        ordered = tuple(sorted(good, key=lambda header: header.client_id))
        return CellFindings(good=ordered, vectors=tuple(vectors), unfit=unfit)

    def _by_cell(self, task: Reveal) -> dict[int, Contributions]:
        partition = self._membership.roster.partition
        found: dict[int, list[UploadHeader]] = {}
        for header in task.contributions:
            cell = partition.cell_of(header.client_id)
            if cell is not None:
                found.setdefault(cell.id, []).append(header)
        return {cell: tuple(own) for cell, own in found.items()}

    def _core(self, contributions: Contributions) -> int:
        clients: list[ClientId] = [one.client_id for one in contributions]
        return len(core_among(self._membership.roster.partition, clients))

    def _paused_with(self, task: Reveal, cells: Mapping[int, FedrecError] | tuple[()]) -> set[int]:
        """Return the paused cells. Those of this round are taken from `cells` alone."""
        return {one.cell for one in self._store.state.paused if one.round != task.round} | {*cells}
