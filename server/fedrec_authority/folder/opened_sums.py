"""What the key was used for, kept for good before it is used: a round is never opened as another.

It lies in the state that the revealer keeps of its run, beside the shared model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from fedrec.follower.follower_store import FollowerStore
from fedrec.follower.stored_state import Content, FileRef, Record, StoredState
from fedrec.ids import RoundId
from fedrec.wire.messages import RevealStatement


class OpenedCell(Record):
    """The sum of one cell's contributions to a round, for which the key was used.

    Attributes:
        sum_digest: BLAKE3 of that sum.
        core: whether the cell's guests are left out of it.
    """

    cell: int
    sum_digest: bytes
    core: bool = False


class RevealedRound(Record):
    """A round whose sum this client opened, or was about to, and never opens as another one.

    Attributes:
        manifest_digest: of which contributions.
        sum_digest: BLAKE3 of the sum for which the key was used; empty where they do not add up.
        refused: whether the answer was a refusal, which it then stays.
        cells: whose sums were opened, or were about to be: to count their holders, or because the
            whole was unfit.
        kept: digest of the contributions without those of cells that were found unfit; empty where
            none was.
    """

    round: RoundId
    manifest_digest: bytes
    sum_digest: bytes
    refused: bool = False
    cells: tuple[OpenedCell, ...] = ()
    kept: bytes = b""


class PausedCell(Record):
    """A cell one of whose members made a sum unfit.

    Attributes:
        round: in which that was found; 0 where it was in an earlier run, or by another folder.
        newest: the last key epoch that had been made by then. Its roster cannot name the cell;
            that of a later one does, unless the authority took the cell in again.
    """

    cell: int
    round: RoundId
    newest: int = 0


class OpenedRound(Record):
    """The last round whose sum this key authority opened: what a lost coordinator begins with.

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
        opened: of the last round that it opened.
        revealed: rounds above `version` that it opened.
        refused_sums: sums in this epoch whose refusal told about the key.
        paused: cells that were paused in this epoch, by number.
        cell_counts: holders of each item by the cells that were counted in the run; see
            `fedrec_authority.opening.cell_counts`.
    """

    head: RevealStatement | None = None
    opened: OpenedRound | None = None
    revealed: tuple[RevealedRound, ...] = ()
    refused_sums: int = 0
    paused: tuple[PausedCell, ...] = ()
    cell_counts: FileRef | None = None

    def revealed_as(self, round_id: RoundId) -> RevealedRound | None:
        """Return as what a round above the present version was opened, or None."""
        return next((entry for entry in self.revealed if entry.round == round_id), None)

    def in_epoch(self, epoch: int) -> Self:
        """Return the state of the same run as a later key epoch begins."""
        kept = {"refused_sums": 0, "paused": self._still_paused(epoch)}
        return super().in_epoch(epoch).model_copy(update=kept)

    def left_for(self, first: Self) -> Self:
        """Return the first state of another run: what was learnt about the epoch's key stays."""
        same = first.epoch == self.epoch
        kept = {
            "refused_sums": self.refused_sums if same else 0,
            "paused": self._still_paused(first.epoch),
        }
        return super().left_for(first).model_copy(update=kept)

    def _still_paused(self, epoch: int) -> tuple[PausedCell, ...]:
        """Return the cells that are paused in an epoch whose roster cannot say so."""
        same = epoch == self.epoch
        # A new run, too, has a round of each of these numbers.
        return tuple(
            one.model_copy(update={"round": RoundId(0)})
            for one in self.paused
            if same or one.newest >= epoch
        )


class OpenedSums(FollowerStore[OpeningState]):
    """The sums that this key authority opened, was about to open, or refused in this run."""

    state_type = OpeningState

    def record_reveal(
        self,
        round_id: RoundId,
        manifest_digest: bytes,
        sum_digest: bytes,
        *,
        tagged: bool = False,
    ) -> None:
        """Keep for good, before the key is used, what is about to be opened.

        Args:
            tagged: count it as a sum with wrong tags, until `forgive_sum` says that they were
                right: a crash in between must not give another try for nothing.
        """
        if self.state.revealed_as(round_id) is not None:
            self.change(refused_sums=self.state.refused_sums + tagged)
            return
        entry = RevealedRound(
            round=round_id, manifest_digest=manifest_digest, sum_digest=sum_digest
        )
        self.change(
            revealed=(*self.state.revealed, entry),
            refused_sums=self.state.refused_sums + tagged,
        )

    def record_cell(
        self, round_id: RoundId, cell: int, sum_digest: bytes, *, core: bool = False
    ) -> bool:
        """Keep for good, before the key is used, which sum of a cell is about to be opened.

        Args:
            core: whether it is the sum without the cell's guests.

        Returns:
            Whether it may be: no other sum of this cell was opened for the round.
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
        """Keep for good which cells are paused, before anybody is told.

        Args:
            kept: digest of the round's contributions without theirs.
            newest: the last key epoch that was made.
        """
        known = {one.cell: one for one in self.state.paused}
        new = {cell: PausedCell(cell=cell, round=round_id, newest=newest) for cell in cells}
        found = {**new, **known}
        self.change(
            paused=tuple(found[cell] for cell in sorted(found)),
            revealed=self._revealed_with(round_id, kept=kept),
        )

    def keep_paused(self, cells: Iterable[int]) -> None:
        """Keep for good that cells were paused by another folder of this key authority."""
        known = {one.cell: one for one in self.state.paused}
        new = {cell: PausedCell(cell=cell, round=RoundId(0)) for cell in cells}
        found = {**new, **known}
        self.change(paused=tuple(found[cell] for cell in sorted(found)))

    def record_refused(self, round_id: RoundId, *, counted: bool = False) -> None:
        """Keep for good that the answer about a round is a refusal, and count it if asked to."""
        self.change(
            refused_sums=self.state.refused_sums + counted,
            revealed=self._revealed_with(round_id, refused=True),
        )

    def _revealed_with(self, round_id: RoundId, **changes: Any) -> tuple[RevealedRound, ...]:
        return tuple(
            entry.model_copy(update=changes) if entry.round == round_id else entry
            for entry in self.state.revealed
        )

    def record_statement(self, statement: RevealStatement) -> None:
        """Keep for good what is said next, or what was said by a key authority before this one."""
        self.change(head=statement)

    def record_opened(
        self, statement: RevealStatement, contributions: bytes, sealed: bytes, model: bytes
    ) -> None:
        """Keep what a sum was opened as, before anybody hears of it; see `OpenedRound`."""
        opened = OpenedRound(
            statement=statement,
            contributions=self.keep_file("contributions", contributions),
            sealed=self.keep_file("sealed", sealed),
            model=self.keep_file("model", model),
        )
        self.change(head=statement, opened=opened)

    def forgive_sum(self) -> None:
        """Take back what `record_reveal` counted: the tags were right."""
        self.change(refused_sums=self.state.refused_sums - 1)

    def _move(
        self,
        round_id: RoundId,
        shared: Content,
        metrics: bytes,
        statement: RevealStatement | None,
        **changes: Any,
    ) -> None:
        """Commit a later version of the model; how rounds up to it were opened is known to all."""
        above = tuple(entry for entry in self.state.revealed if entry.round > round_id)
        super()._move(round_id, shared, metrics, statement, revealed=above, **changes)
