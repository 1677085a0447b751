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
from fedrec.wire.messages import NOTHING, Latest, Remembered, RevealStatement
from fedrec_server.admission import Admission
from fedrec_server.rounds.changes import Change, UpdateCounted
from fedrec_server.rounds.state import State
from fedrec_server.store.store import Store
from fedrec_server.work import Work

__all__ = ["Memories"]


class Memories:
    """Compares what a client remembers with what is stored here.

    Attributes:
        outdated: set once it is proved that this folder is older than the run.
    """

    def __init__(self, store: Store, work: Work) -> None:
        self._store = store
        self._work = work
        self._latest = store.latest()
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
        return self.of(client_id) != replace(remembered, statement=None)

    async def answer(self, client_id: ClientId, remembered: Remembered) -> Latest | None:
        """Return the client's last update, signed by itself, where it remembers another one."""
        if not self.differs(client_id, remembered):
            return None
        return Latest(header=await self._work.in_thread(self._store.latest_header, client_id))

    def hear(self, statement: RevealStatement, state: State, admission: Admission) -> None:
        """Look at the key authority's word on a round that a member has and this folder may not.

        Raises:
            FedrecError: the key authority of this run did not sign that.
        """
        current = state.current
        in_progress = current is not None and current.number == statement.round
        if statement.round <= state.published or in_progress:
            return
        admission.check_word(statement)
        self._seen, self._published = statement.round, state.published
        if not self.outdated.is_set():
            structlog.get_logger().critical(
                "state went back", seen_round=statement.round, published_round=state.published
            )
        self.outdated.set()

    def problem(self) -> StateWentBack:
        """Return what the operator has to know once `outdated` is set."""
        return StateWentBack(
            f"A member has round {self._seen}, signed by the key authority; this folder knows "
            f"rounds up to {self._published}: it is older than the run.",
            remedy="Stop every copy of it and start the coordinator on the newest folder, or on a "
            "newer backup. Members wait and keep what they have.",
        )
