"""Counting updates that lie durable in the spool: those that wait together share a transaction."""

from __future__ import annotations

from collections.abc import Callable

from fedrec.errors import DamagedFile, RoundClosed
from fedrec.wire.messages import UploadHeader
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.events import Uploaded
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State
from fedrec_server.uploads.group_commit import GroupCommit

__all__ = ["UpdateCounting"]

Update = tuple[UploadHeader, Callable[[], bytes]]
"""An admitted header, and what returns its bytes; called in the store's thread."""


class UpdateCounting(GroupCommit[Update]):
    """Adds updates to the sum."""

    def _take(self, state: State, what: Update) -> tuple[State, tuple[Change, ...]]:
        header, read = what
        counted = state.current.accepted if state.current is not None else {}
        after, changes = step(state, Uploaded(now=self._run.clock.now(), header=header))
        if not any(isinstance(change, AlreadyCounted) for change in changes):
            self._collection.add(counted, header, read())
        return after, changes

    async def _failure_of(self, error: Exception) -> Exception:
        """Abandon the round where its sum cannot be made any more, and return what to tell."""
        run = self._run
        if not isinstance(error, DamagedFile) or run.state.current is None:
            return error
        number = run.state.current.number
        try:
            await run.fail(number, "a stored update is damaged", error)
        except Exception as failure:
            return failure
        return RoundClosed(f"Round {number} was abandoned.")
