"""Messages of rounds under masks: those that wait together share a transaction, as updates do."""

from __future__ import annotations

from fedrec.errors import ProtocolError
from fedrec.wire.messages import MaskMessage
from fedrec_server.masks.collection import MaskCollection
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.events import MaskHeard
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State
from fedrec_server.uploads.group_commit import GroupCommit

__all__ = ["MaskMessageCommit"]


class MaskMessageCommit(GroupCommit[MaskMessage]):
    """Hands admitted messages to the collection.

    What follows from messages, such as the end of a step, is looked at once for all of a group.
    """

    def _take(self, state: State, what: MaskMessage) -> tuple[State, tuple[Change, ...]]:
        after, changes = step(state, MaskHeard(now=self._run.clock.now(), message=what))
        collection, round_ = self._collection, state.current
        if not isinstance(collection, MaskCollection) or round_ is None:
            raise ProtocolError("The federation's protection takes no messages of this kind.")
        if not any(isinstance(change, AlreadyCounted) for change in changes):
            collection.hear(round_, what)
        return after, changes

    def _decided(self) -> None:
        self._run.advance_soon()
