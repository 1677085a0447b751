"""Taking an unfit sum apart: the same round's contributions, added up and opened cell by cell.

A cell whose sum does not open, has wrong tags or leaves its bounds has a member who signed what no
honest client sends: the authority added up what members signed, never what the coordinator says is
their sum, so that nobody else can bring a cell into that. What the good cells add up to is a sum of
whole cells like any other.

Under noise nothing is taken apart: single cells carry less of it than the promise counts on.

What it does not find: a client that stays within its cell's bounds and leaves those of all cells
together, as where nobody said how many users a client has at most.
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
"""A sum of more cells is not taken apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFindings:
    """What the cells of a round turned out to be.

    Attributes:
        good: contributions of cells whose sums are as they should be.
        vectors: those sums.
        unfit: what is wrong with each other cell's.
    """

    good: Contributions
    vectors: tuple[NDArray[np.int64], ...]
    unfit: Mapping[int, FedrecError]

    @property
    def total(self) -> NDArray[np.int64]:
        """The sum of the good cells."""
        return reduce(np.add, self.vectors)


class Attribution:
    """Finds the cells that make a round's sum unfit."""

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
        """Return which cells a list has contributions of that were paused in another round.

        A later one counts, too: what was given up can be presented in any order.
        """
        before = {one.cell for one in self._store.state.paused if one.round != task.round}
        return before.intersection(self._by_cell(task))

    def is_of_use(self, task: Reveal) -> bool:
        """Tell whether a round may be taken apart, and would be a round without one of its cells.

        With one cell, or where all of them are needed, the key would be used for nothing.
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
        """Tell whether a sum of these contributions is over enough clients and cells."""
        member = self._membership
        cells = whole_cells(member.roster.partition, [one.client_id for one in contributions])
        enough = len(list(cells)) >= fewest_cells(member.plan, member.roster.partition)
        return enough and self._core(contributions) >= member.minimum_summands

    def may_pause(self, task: Reveal, cells: Mapping[int, FedrecError]) -> bool:
        """Tell whether so many may be paused in one epoch: each tells a little about the key."""
        return len(self._paused_with(task, cells)) <= MAX_PAUSED

    def take_apart(self, task: Reveal) -> CellFindings:
        """Open the sum of each cell, each of them noted on disk before the key is used.

        Raises:
            RefusedError: the coordinator sent other bytes than a member signed.
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
        """Return the paused cells, those of this round by `cells` alone: it may come again."""
        return {one.cell for one in self._store.state.paused if one.round != task.round} | {*cells}
