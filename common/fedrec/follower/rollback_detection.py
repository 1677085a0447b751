"""Recognising a coordinator that was set back: it does not know a round that it published."""

from __future__ import annotations

from dataclasses import replace

from fedrec.errors import (
    CoordinatorWentBack,
)
from fedrec.follower.context import RoundContext
from fedrec.ids import RoundId
from fedrec.wire.messages import NOTHING, Remembered, Task


class RollbackDetection:
    """Recognises a coordinator that was set back, and waits for it."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._membership = context.membership
        self._store = context.store
        self._journal = context.journal
        self._went_back: tuple[RoundId, RoundId] | None = None

    def remembered(self) -> Remembered:
        """Return what to tell the coordinator with the next question."""
        if self._went_back is None:
            return NOTHING
        return replace(NOTHING, statement=self._store.state.statement)

    def agrees(self, task: Task) -> bool:
        """Tell whether the coordinator knows what it once published; wait for it where not."""
        if task.published_round < self._store.state.version:
            return self._wait_for(self._store.state.version, task.published_round)
        self._went_back = None
        return True

    def _wait_for(self, known: RoundId, said: RoundId) -> bool:
        if self._went_back != (known, said):
            self._went_back = (known, said)
            error = CoordinatorWentBack(
                f"The coordinator went back from round {known} to {said}. This client waits and "
                "keeps what it has."
            )
            self._context.refused("coordinator_went_back", known, error)
            self._journal.tell("coordinator_went_back", known, detail=error.message)
        return False
