"""What all work in one run and key epoch is done with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from fedrec.errors import FedrecError, SplitView
from fedrec.follower.membership import Membership
from fedrec.follower.private_store import PrivateStore
from fedrec.follower.round_journal import AuditLog, RoundJournal
from fedrec.follower.shared_model import SharedModel
from fedrec.ids import RoundId
from fedrec.wire.link import Link

ModelT = TypeVar("ModelT", bound=SharedModel, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext(Generic[ModelT]):
    """One client's run and key epoch.

    Attributes:
        membership: what enrolment found.
        link: the coordinator; patient, so that it raises nothing that passes by itself.
        model: the local model; with private parameters where this client trains.
        store: the state folder.
        audit: where refusals go.
        journal: where costs go, and who is told of events.
    """

    membership: Membership
    link: Link
    model: ModelT
    store: PrivateStore
    audit: AuditLog
    journal: RoundJournal

    def refused(self, event: str, round_id: RoundId, error: FedrecError) -> None:
        """Note in the audit log what was refused, and why; a split view is named as such."""
        if isinstance(error, SplitView):
            event = "split_view"
            self.journal.tell("split_view", round_id, detail=str(error))
        self.audit.refused(event, run=self.membership.run, round_id=round_id, error=error)
