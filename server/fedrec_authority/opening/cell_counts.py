"""Count each item's holders cell by cell, so that no cell alone can have rare items trained.

An opened sum bounds counts only from above: a member with changed software can add holders that it
does not have. So the authority opens the counts of each cell's core once a run. It removes from
every later sum the rows that too few users hold outside the sum's largest cells (`held_widely`).
These rows follow from the cells in the sum alone.

Guests are in a sum's total but not in their cells' counts, because they come and go and would leave
counts of absent holders behind. A cell that joined after the count has none until a round counts
it. A changed core is counted again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from fedrec.errors import RefusedError
from fedrec.follower.membership import Membership
from fedrec.follower.shared_model import RoundContext
from fedrec.identity.cells import Cell, whole_cells
from fedrec.ids import digest
from fedrec.plan.travelling_rows import held_widely
from fedrec.wire.chunks import Blob
from fedrec.wire.link import Link
from fedrec.wire.messages import Reveal, RoundKind, UploadHeader
from fedrec_authority.folder.opened_sums import OpenedSums

Contributions = tuple[UploadHeader, ...]
_KEPT_SETS = 8
"""The number of sets of cells whose rows are kept, at a byte for each item."""

Counts = Mapping[str, NDArray[np.int32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningContext(RoundContext):
    """The context for opening the sums of a run and key epoch."""

    store: OpenedSums


def fetch(link: Link, member: Membership, task: Reveal, header: UploadHeader) -> bytes:
    """Return a contribution exactly as its author signed it.

    Raises:
        RefusedError: the coordinator sent other bytes.
    """
    payload = link.contribution(member.client_id, member.run, task.round, header.client_id)
    if not header.blob.describes(payload):
        raise RefusedError(
            f"The contribution of {header.client_id[:16]} has {len(payload)} bytes that do not "
            "match its signature."
        )
    return payload


def open_cell(
    context: OpeningContext,
    task: Reveal,
    cell: int,
    contributions: Contributions,
    *,
    core: bool = False,
) -> NDArray[np.int64]:
    """Open the sum of one cell's contributions, recorded on disk before the key is used.

    Args:
        core: whether it is the sum without the cell's guests.

    Raises:
        ProtocolError: its members' messages have no sum.
        RefusedError: its members' users cannot reach it, or another sum was opened before.
    """
    member = context.membership
    vector = context.model.vector(task.kind)
    total = vector.accumulator()
    for payload in [fetch(context.link, member, task, one) for one in contributions]:
        total.add(payload)
    added = total.finish()
    if not context.store.record_cell(task.round, cell, Blob.of(added).digest, core=core):
        raise RefusedError(f"Another sum of cell {cell} was opened for round {task.round}.")
    names = member.tag_names(task.round, contributions) if member.is_tagged else None
    opened = vector.member.reveal(added, len(contributions), names)
    context.model.check_sum(task.kind, opened, contributions)
    return opened


class CellCounts:
    """Keep each cell's counts in this run, and derive the rows that a sum may have."""

    def __init__(self, context: OpeningContext) -> None:
        self._context = context
        self._roster = context.membership.roster
        self._counts: Counts = {}
        if context.store.state.cell_counts is not None:
            self._counts = load(context.store.read(context.store.state.cell_counts))
        # A cell's count never changes, and most rounds have the same cells.
        self._widely = lru_cache(maxsize=_KEPT_SETS)(self._held_widely)

    @property
    def is_on(self) -> bool:
        """Whether rows depend on cells: there are several now, or there were at the count."""
        several = len(self._roster.partition.in_use) > 1
        return self._context.membership.plan.counts_by_cell and (several or bool(self._counts))

    def count(self, task: Reveal, contributions: Contributions) -> None:
        """Open and store the counts of the cores that this run has not counted.

        Raises:
            ProtocolError: a cell's messages have no sum.
            RefusedError: a cell's users cannot reach its counts.
        """
        if task.kind != "count" or not self.is_on:
            return
        context, found = self._context, dict(self._counts)
        for cell in self._cells(contributions):
            core = tuple(one for one in contributions if one.client_id in cell.core)
            if _name(cell) not in found:
                opened = open_cell(context, task, cell.id, core, core=True)
                counts = context.model.counts(task.kind, opened)
                found[_name(cell)] = counts.astype(np.int32)
        if len(found) > len(self._counts):
            kept = context.store.keep_file("cell-counts", save(found))
            context.store.change(cell_counts=kept)
            self._counts = found

    def left_in(
        self, kind: RoundKind, aggregate: NDArray[np.int64], contributions: Contributions
    ) -> NDArray[np.int64]:
        """Return a sum without the rows that too few users hold outside its largest cells.

        Raises:
            RefusedError: no row would be left.
        """
        if kind == "evaluate" or not self.is_on:
            return aggregate
        plan, cells = self._context.membership.plan, self._cells(contributions)
        counted = tuple(name for cell in cells if (name := _name(cell)) in self._counts)
        widely = self._widely(counted)
        if kind == "train" and not widely.any():
            raise RefusedError(
                f"{len(counted)} of the {len(cells)} cells in the sum were counted in this run. "
                f"Outside {plan.federation.corrupt_cells} of them (federation.corrupt_cells) no "
                f"item has {plan.federation.minimum_item_users} holders.",
                remedy="Wait for the cells that were counted, or begin a new run.",
            )
        return self._context.model.with_rows(kind, aggregate, widely)

    def _held_widely(self, counted: tuple[str, ...]) -> NDArray[np.bool_]:
        nothing = np.zeros(self._context.model.n_items, dtype=np.int32)
        counts = [self._counts[name] for name in counted]
        return held_widely(self._context.membership.plan, [*counts, nothing])

    def _cells(self, contributions: Contributions) -> list[Cell]:
        here = [one.client_id for one in contributions]
        return list(whole_cells(self._roster.partition, here))


def _name(cell: Cell) -> str:
    """Return a name for a cell with its core, because another core has other counts."""
    return f"{cell.id}-{digest('fedrec counted core v1', *cell.core).hex()}"
