"""The outbox: what a round gets from this client, on disk before the first byte is sent.

Ciphertexts are randomised, so an update that was made again would be a second, different answer
to the round. After a crash the same bytes go out.
"""

from __future__ import annotations

from typing import Literal

from fedrec.errors import ConflictingUpload, RoundClosed
from fedrec.wire.link import Link
from fedrec.wire.messages import UploadHeader
from fedrec_client.state.durable import Parts
from fedrec_client.state.private_store import PrivateStore
from fedrec_client.state.stored_state import StagedRound

__all__ = ["Delivery", "Outbox"]

Delivery = Literal["accepted", "duplicate", "closed", "conflict"]


class Outbox:
    """Holds at most one update, that of the round in progress."""

    def __init__(self, store: PrivateStore, link: Link) -> None:
        self._store = store
        self._link = link

    @property
    def pending(self) -> StagedRound | None:
        """The round in progress, or None."""
        return self._store.state.staged

    @property
    def undelivered(self) -> StagedRound | None:
        """The round in progress if the coordinator has not answered to its update."""
        staged = self.pending
        return None if staged is None or staged.acknowledged or staged.closed else staged

    def put(
        self,
        header: UploadHeader,
        update: bytes,
        private: bytes | Parts,
        *,
        spent: bytes | None = None,
    ) -> None:
        """Keep a signed update, the private state that follows from it, and what it cost."""
        self._store.stage(header, update, private, spent=spent)

    def deliver(self) -> Delivery:
        """Send the pending update, the same bytes as every time before.

        A late update stays until the round's end is known: only the list of contributions says
        whether it was counted.
        """
        staged = self.pending
        if staged is None or staged.closed:
            return "closed"
        try:
            duplicate = self._link.submit_update(staged.header, self._store.read(staged.update))
        except RoundClosed:
            self._store.mark_staged(closed=True)
            return "closed"
        except ConflictingUpload:
            self._store.mark_staged(closed=True)
            return "conflict"
        self._store.mark_staged(acknowledged=True)
        return "duplicate" if duplicate else "accepted"
