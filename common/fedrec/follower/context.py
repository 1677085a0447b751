"""What all work in one run and key epoch is done with."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.errors import FedrecError, SplitView
from fedrec.follower.follower_store import FollowerStore
from fedrec.follower.membership import Membership
from fedrec.follower.round_journal import AuditLog, RoundJournal
from fedrec.follower.shared_model import SharedModel
from fedrec.follower.stored_state import StoredState
from fedrec.ids import RoundId
from fedrec.wire.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext:
    """One follower's run and key epoch.

    Attributes:
        membership: what enrolment found.
        link: the coordinator; patient, so that it raises nothing that passes by itself.
        model: the model as it is here; with private parameters where this party trains.
        store: the state folder.
        audit: where refusals go.
        journal: where costs go, and who is told of events.
    """

    membership: Membership
    link: Link
    model: SharedModel
    store: FollowerStore[StoredState]
    audit: AuditLog
    journal: RoundJournal

    def refused(self, event: str, round_id: RoundId, error: FedrecError) -> None:
        """Note in the audit log what was refused, and why; a split view is named as such."""
        if isinstance(error, SplitView):
            event = "split_view"
            self.journal.tell("split_view", round_id, detail=str(error))
        self.audit.refused(event, run=self.membership.run, round_id=round_id, error=error)
