"""What the key was used for, kept for good before it is used: a round is never opened as another.

It lies in the state that the revealer keeps of its run, beside the shared model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedrec.follower.private_store import PrivateStore
from fedrec.follower.stored_state import OpenedCell, OpenedRound, PausedCell, RevealedRound
from fedrec.ids import RoundId
from fedrec.wire.messages import RevealStatement


class OpenedSums:
    """The sums that this key authority opened, was about to open, or refused in this run."""

    def __init__(self, store: PrivateStore) -> None:
        self._store = store

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
        if self._store.state.revealed_as(round_id) is not None:
            self._store.change(refused_sums=self._store.state.refused_sums + tagged)
            return
        entry = RevealedRound(
            round=round_id, manifest_digest=manifest_digest, sum_digest=sum_digest
        )
        self._store.change(
            revealed=(*self._store.state.revealed, entry),
            refused_sums=self._store.state.refused_sums + tagged,
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
        known = self._store.state.revealed_as(round_id)
        if known is None:
            return False
        alike = (one for one in known.cells if (one.cell, one.core) == (cell, core))
        before = next(alike, None)
        if before is None:
            opened = OpenedCell(cell=cell, core=core, sum_digest=sum_digest)
            cells = (*known.cells, opened)
            self._store.change(revealed=self._revealed_with(round_id, cells=cells))
        return before is None or before.sum_digest == sum_digest

    def record_paused(
        self, round_id: RoundId, cells: tuple[int, ...], kept: bytes, *, newest: int
    ) -> None:
        """Keep for good which cells are paused, before anybody is told.

        Args:
            kept: digest of the round's contributions without theirs.
            newest: the last key epoch that was made.
        """
        known = {one.cell: one for one in self._store.state.paused}
        new = {cell: PausedCell(cell=cell, round=round_id, newest=newest) for cell in cells}
        found = {**new, **known}
        self._store.change(
            paused=tuple(found[cell] for cell in sorted(found)),
            revealed=self._revealed_with(round_id, kept=kept),
        )

    def keep_paused(self, cells: Iterable[int]) -> None:
        """Keep for good that cells were paused by another folder of this key authority."""
        known = {one.cell: one for one in self._store.state.paused}
        new = {cell: PausedCell(cell=cell, round=RoundId(0)) for cell in cells}
        found = {**new, **known}
        self._store.change(paused=tuple(found[cell] for cell in sorted(found)))

    def record_refused(self, round_id: RoundId, *, counted: bool = False) -> None:
        """Keep for good that the answer about a round is a refusal, and count it if asked to."""
        self._store.change(
            refused_sums=self._store.state.refused_sums + counted,
            revealed=self._revealed_with(round_id, refused=True),
        )

    def _revealed_with(self, round_id: RoundId, **changes: Any) -> tuple[RevealedRound, ...]:
        return tuple(
            entry.model_copy(update=changes) if entry.round == round_id else entry
            for entry in self._store.state.revealed
        )

    def record_statement(self, statement: RevealStatement) -> None:
        """Keep for good what is said next, or what was said by a key authority before this one."""
        self._store.change(head=statement)

    def record_opened(
        self, statement: RevealStatement, contributions: bytes, sealed: bytes, model: bytes
    ) -> None:
        """Keep what a sum was opened as, before anybody hears of it; see `OpenedRound`."""
        opened = OpenedRound(
            statement=statement,
            contributions=self._store.keep_file("contributions", contributions),
            sealed=self._store.keep_file("sealed", sealed),
            model=self._store.keep_file("model", model),
        )
        self._store.change(head=statement, opened=opened)

    def forgive_sum(self) -> None:
        """Take back what `record_reveal` counted: the tags were right."""
        self._store.change(refused_sums=self._store.state.refused_sums - 1)
