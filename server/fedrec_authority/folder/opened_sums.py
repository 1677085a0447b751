"""A permanent record of each use of the key, so that no round is opened twice.

It is part of the revealer's state of its run, next to the shared model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from fedrec.follower.follower_store import FollowerStore
from fedrec.follower.stored_state import Content, FileRef, Record, StoredState
from fedrec.ids import RoundId
from fedrec.wire.messages import RevealStatement


class OpenedCell(Record):
    """The sum of a cell's contributions to a round, for which the key was used.

    Attributes:
        sum_digest: BLAKE3 of that sum.
        core: whether the cell's guests are left out of it.
    """

    cell: int
    sum_digest: bytes
    core: bool = False


class RevealedRound(Record):
    """A round whose sum was opened, or about to be, and that is never opened as another one.

    Attributes:
        manifest_digest: digest of the list of contributions.
        sum_digest: BLAKE3 of the sum for which the key was used, or empty if they do not add up.
        refused: whether the answer was a refusal, which is final.
        cells: the cells whose sums were opened, or about to be, to count their holders or because
            the whole sum was unfit.
        kept: digest of the contributions without those of unfit cells, or empty if no cell is
            unfit.
        provisional: whether it counts as a refused sum until the answer is known.
    """

    round: RoundId
    manifest_digest: bytes
    sum_digest: bytes
    refused: bool = False
    cells: tuple[OpenedCell, ...] = ()
    kept: bytes = b""
    provisional: bool = False


class PausedCell(Record):
    """A paused cell: one of its members made a sum unfit.

    Attributes:
        round: the round with the unfit sum, or 0 for an earlier run or another folder.
        newest: the last key epoch at that time. Its roster cannot name the cell. A later one does,
            unless the authority resumed the cell.
    """

    cell: int
    round: RoundId
    newest: int = 0


class OpenedRound(Record):
    """The last round whose sum this key authority opened, for recovering a lost coordinator.

    Attributes:
        statement: what was said of it.
        contributions: the headers of what was summed, as JSON.
        sealed: the sealed sum.
        model: the sealed copy of the model after it.
    """

    statement: RevealStatement
    contributions: FileRef
    sealed: FileRef
    model: FileRef


class OpeningState(StoredState):
    """Everything about one run whose sums a key authority opens.

    Attributes:
        head: the last statement that this key authority made, or knows of.
        opened: the last round that it opened.
        revealed: the rounds above `version` that it opened.
        refused_sums: sums in this epoch whose refusal told about the key.
        paused: cells that were paused in this epoch, by number.
        cell_counts: holders of each item by the cells that were counted in the run. See
            `fedrec_authority.opening.cell_counts`.
    """

    head: RevealStatement | None = None
    opened: OpenedRound | None = None
    revealed: tuple[RevealedRound, ...] = ()
    refused_sums: int = 0
    paused: tuple[PausedCell, ...] = ()
    cell_counts: FileRef | None = None

    def revealed_as(self, round_id: RoundId) -> RevealedRound | None:
        """Return the entry of a round above the current version, or None if it was not opened."""
        return next((entry for entry in self.revealed if entry.round == round_id), None)

    def in_epoch(self, epoch: int) -> Self:
        """Return the state of the same run at the beginning of a later key epoch."""
        settled = tuple(one.model_copy(update={"provisional": False}) for one in self.revealed)
        kept = {"refused_sums": 0, "revealed": settled, "paused": self._still_paused(epoch)}
        return super().in_epoch(epoch).model_copy(update=kept)

    def left_for(self, first: Self) -> Self:
        """Return the initial state for another run.

        Within the same key epoch, the count of refused sums is kept, because each refusal reveals
        something about the key. Paused cells stay paused.
        """
        same = first.epoch == self.epoch
        kept = {
            "refused_sums": self.refused_sums if same else 0,
            "paused": self._still_paused(first.epoch),
        }
        return super().left_for(first).model_copy(update=kept)

    def _still_paused(self, epoch: int) -> tuple[PausedCell, ...]:
        """Return the paused cells that the epoch's roster cannot name."""
        same = epoch == self.epoch
        # A new run has rounds with the same numbers.
        return tuple(
            one.model_copy(update={"round": RoundId(0)})
            for one in self.paused
            if same or one.newest >= epoch
        )


class OpenedSums(FollowerStore[OpeningState]):
    """The sums that this key authority opened, was about to open, or refused in this run."""

    state_type = OpeningState

    def record_reveal(self, round_id: RoundId, manifest_digest: bytes, sum_digest: bytes) -> None:
        """Record permanently, before the key is used, which sum is about to be opened.

        It counts as a refused sum until `settle`. A crash in between then allows no other try, and
        neither does a coordinator that withholds the updates of single cells.
        """
        known = self.state.revealed_as(round_id)
        entry = known or RevealedRound(
            round=round_id, manifest_digest=manifest_digest, sum_digest=sum_digest
        )
        charged = not entry.provisional
        entry = entry.model_copy(update={"provisional": True})
        others = tuple(one for one in self.state.revealed if one.round != round_id)
        self.change(revealed=(*others, entry), refused_sums=self.state.refused_sums + charged)

    def settle(self, round_id: RoundId, *, refused: bool = False, counts: bool = False) -> None:
        """Record permanently how a sum was found, in place of its provisional count.

        Args:
            refused: whether it stays refused.
            counts: whether it is one of the epoch's refused sums.
        """
        known = self.state.revealed_as(round_id)
        provisional = known is not None and known.provisional
        if refused or provisional:
            self.change(
                refused_sums=self.state.refused_sums + counts - provisional,
                revealed=self._revealed_with(round_id, refused=refused, provisional=False),
            )

    def record_cell(
        self, round_id: RoundId, cell: int, sum_digest: bytes, *, core: bool = False
    ) -> bool:
        """Record permanently, before the key is used, which sum of a cell is about to be opened.

        Args:
            core: whether it is the sum without the cell's guests.

        Returns:
            Whether it may be opened: no other sum of this cell was opened for the round.
        """
        known = self.state.revealed_as(round_id)
        if known is None:
            return False
        alike = (one for one in known.cells if (one.cell, one.core) == (cell, core))
        before = next(alike, None)
        if before is None:
            opened = OpenedCell(cell=cell, core=core, sum_digest=sum_digest)
            cells = (*known.cells, opened)
            self.change(revealed=self._revealed_with(round_id, cells=cells))
        return before is None or before.sum_digest == sum_digest

    def record_paused(
        self, round_id: RoundId, cells: tuple[int, ...], kept: bytes, *, newest: int
    ) -> None:
        """Record permanently which cells are paused, before announcing it.

        Args:
            kept: digest of the round's contributions without theirs.
            newest: the last key epoch.
        """
        known = {one.cell: one for one in self.state.paused}
        new = {cell: PausedCell(cell=cell, round=round_id, newest=newest) for cell in cells}
        found = {**new, **known}
        self.change(
            paused=tuple(found[cell] for cell in sorted(found)),
            revealed=self._revealed_with(round_id, kept=kept),
        )

    def keep_paused(self, cells: Iterable[int]) -> None:
        """Record permanently that another folder of this key authority paused cells."""
        known = {one.cell: one for one in self.state.paused}
        new = {cell: PausedCell(cell=cell, round=RoundId(0)) for cell in cells}
        found = {**new, **known}
        self.change(paused=tuple(found[cell] for cell in sorted(found)))

    def _revealed_with(self, round_id: RoundId, **changes: Any) -> tuple[RevealedRound, ...]:
        return tuple(
            entry.model_copy(update=changes) if entry.round == round_id else entry
            for entry in self.state.revealed
        )

    def record_statement(self, statement: RevealStatement) -> None:
        """Record permanently the next statement, or one from an earlier key authority."""
        self.change(head=statement)

    def record_opened(
        self, statement: RevealStatement, contributions: bytes, sealed: bytes, model: bytes
    ) -> None:
        """Record how a sum was opened, before announcing it, as described in `OpenedRound`."""
        opened = OpenedRound(
            statement=statement,
            contributions=self.keep_file("contributions", contributions),
            sealed=self.keep_file("sealed", sealed),
            model=self.keep_file("model", model),
        )
        self.change(head=statement, opened=opened)

    def _move(
        self,
        round_id: RoundId,
        shared: Content,
        metrics: bytes,
        statement: RevealStatement | None,
        **changes: Any,
    ) -> None:
        """Commit a later version of the model. Openings of rounds up to it are public."""
        above = tuple(entry for entry in self.state.revealed if entry.round > round_id)
        super()._move(round_id, shared, metrics, statement, revealed=above, **changes)
