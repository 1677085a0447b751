"""What clients and the coordinator remember of each other: who forgot something is recognised.

A folder that was restored from an older copy, and two copies of one client's folder, go on as if
nothing had happened; the other side remembers more. Source: rule R13 of the trust model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import structlog

from fedrec.errors import StateWentBack
from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import NOTHING, Latest, Remembered, RevealStatement, UploadHeader
from fedrec_server.membership.admission import Admission
from fedrec_server.rounds.changes import Change, UpdateCounted
from fedrec_server.rounds.state import State
from fedrec_server.run.work import Work
from fedrec_server.store.store import Store

__all__ = ["RollbackDetection"]


class RollbackDetection:
    """Compares what a client remembers with what is stored here.

    Attributes:
        outdated: set once it is proved that this folder is older than the run.
        former: revealers that were replaced, whose word still counts as evidence.
    """

    def __init__(self, store: Store, work: Work) -> None:
        self._store = store
        self._work = work
        self._latest = store.latest()
        self.former = store.former_revealers()
        self._seen = RoundId(0)
        self._published = RoundId(0)
        self.outdated = asyncio.Event()

    def note(self, changes: Iterable[Change]) -> None:
        """Remember what was just committed."""
        for change in changes:
            if isinstance(change, UpdateCounted):
                header = change.header
                self._latest[header.client_id] = (header.round, header.digest)

    def of(self, client_id: ClientId) -> Remembered:
        """Return what a client has to remember."""
        found = self._latest.get(client_id)
        return NOTHING if found is None else Remembered(round=found[0], digest=found[1])

    def differs(self, client_id: ClientId, remembered: Remembered) -> bool:
        """Tell whether the client remembers another last update than this coordinator."""
        return self.of(client_id) != replace(remembered, statement=None, header=None)

    async def answer(self, client_id: ClientId, remembered: Remembered) -> Latest | None:
        """Return the client's last update, signed by itself, where it remembers another one."""
        if not self.differs(client_id, remembered):
            return None
        return Latest(header=await self._work.in_thread(self._store.latest_header, client_id))

    def is_news(
        self, client_id: ClientId, statement: RevealStatement, state: State, admission: Admission
    ) -> bool:
        """Tell whether a statement is the key authority's word on a round that is not known here.

        On the round in progress its word may come yet, the same; once the authority has taken the
        published round itself, it does not.

        Args:
            client_id: who shows it.

        Raises:
            FedrecError: it is no word of this run's key authority.
        """
        current = state.current
        in_progress = current is not None and current.number == statement.round
        in_progress = in_progress and client_id != state.rules.revealer
        if statement.round <= state.published or in_progress:
            return False
        # Of a revealer that nobody here knows it is no evidence, and no lie either.
        return admission.check_word(statement, self.former)

    def note_outdated(self, seen: RoundId, published: RoundId) -> None:
        """Note that this folder is older than the run."""
        self._seen, self._published = seen, published
        if not self.outdated.is_set():
            structlog.get_logger().critical(
                "state went back", seen_round=seen, published_round=published
            )
        self.outdated.set()

    def is_forgotten(
        self, client_id: ClientId, header: UploadHeader, state: State, admission: Admission
    ) -> bool:
        """Tell whether a member shows an update from before this folder was made anew.

        Raises:
            FedrecError: the member did not sign it, or for another run.
        """
        known = self._latest.get(client_id)
        if header.round > state.recovered or (known is not None and known[0] >= header.round):
            return False
        admission.check_own(client_id, header)
        return True

    def recall(self, header: UploadHeader) -> None:
        """Remember what a member showed."""
        self._latest[header.client_id] = (header.round, header.digest)

    def problem(self) -> StateWentBack:
        """Return what the operator has to know once `outdated` is set."""
        return StateWentBack(
            f"A member has round {self._seen}, signed by the key authority; this folder knows "
            f"rounds up to {self._published}: it is older than the run.",
            remedy="Start the coordinator on the newest folder or backup. Where that is lost, run "
            "`fedrec keys export-recovery FILE` at the key authority and `fedrec coordinator "
            "recover SETTINGS.toml FILE` here; this folder is kept aside. Members wait and keep "
            "what they have.",
        )
