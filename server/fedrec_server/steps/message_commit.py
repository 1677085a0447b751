"""Messages of a round's steps: those that wait together share a transaction, as updates do."""

from __future__ import annotations

from fedrec.errors import RoundClosed
from fedrec.wire.messages import StepMessage
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.events import StepHeard
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State
from fedrec_server.uploads.group_commit import GroupCommit

__all__ = ["StepMessageCommit"]


class StepMessageCommit(GroupCommit[StepMessage]):
    """Hands admitted messages to the collection.

    What follows from messages, such as the end of a step, is looked at once for all of a group.
    """

    def _take(self, state: State, what: StepMessage) -> tuple[State, tuple[Change, ...]]:
        after, changes = step(state, StepHeard(now=self._run.clock.now(), message=what))
        collection, round_ = self._collection, state.current
        if round_ is None:
            raise RoundClosed(f"Round {what.round} is over.")
        if not any(isinstance(change, AlreadyCounted) for change in changes):
            collection.hear(round_, what)
        return after, changes

    def _decided(self) -> None:
        self._run.advance_soon()
