"""Detect a client or a coordinator with an older folder, by what both remember of each other.

A folder that was restored from an older copy, or two copies of one client's folder, continue as if
nothing had happened. The other side remembers more. Source: rule R13 of the trust model.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import structlog

from fedrec.errors import RoundError, StateWentBack
from fedrec.ids import ClientId, RoundId
from fedrec.wire.messages import NO_ROUND, Latest, Remembered, RevealStatement, UploadHeader
from fedrec_server.peers.admission import Admission
from fedrec_server.rounds.changes import Change, UpdateCounted
from fedrec_server.rounds.events import StatementShown
from fedrec_server.rounds.state import State
from fedrec_server.run.live_run import LiveRun


class RememberedUpdates:
    """Compare a client's memory with the stored updates.

    Attributes:
        former: replaced revealers, whose statements still count as evidence.
    """

    def __init__(self, run: LiveRun, admission: Admission) -> None:
        self._run = run
        self._admission = admission
        self._latest = run.store.latest()
        self.former = run.store.former_revealers()

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Remember the updates of a commit."""
        for change in changes:
            if isinstance(change, UpdateCounted):
                header = change.header
                self._latest[header.client_id] = (header.round, header.digest)

    def of(self, client_id: ClientId) -> Remembered:
        """Return the update that a client must remember."""
        round_id, digest = self._latest.get(client_id, (NO_ROUND, b""))
        return Remembered(acknowledged_round=round_id, acknowledged_digest=digest)

    def differs(self, client_id: ClientId, remembered: Remembered) -> bool:
        """Return whether the client remembers a different last update than the coordinator."""
        return self.of(client_id) != replace(remembered, statement=None, header=None)

    async def answer(self, client_id: ClientId, remembered: Remembered) -> Latest | None:
        """Return the client's own signed last update, if it remembers another one."""
        if not self.differs(client_id, remembered):
            return None
        held = self.of(client_id)
        # A client that was killed before its update was acknowledged reports that once.
        structlog.get_logger().warning(
            "client remembers another update",
            run=self._run.name,
            client=self._run.federation.keys.roster.holder(client_id).label or client_id[:16],
            remembered_round=remembered.acknowledged_round,
            held_round=held.acknowledged_round,
        )
        latest_header = self._run.store.latest_header
        return Latest(header=await self._run.work.in_thread(latest_header, client_id))

    async def compare(self, client_id: ClientId, remembered: Remembered) -> None:
        """Examine a member's evidence of rounds that this folder may not know.

        Raises:
            FedrecError: the evidence is not a statement of this run's key authority, or not the
                member's update.
        """
        if remembered.statement is not None:
            await self._hear(client_id, remembered.statement)
        if remembered.header is not None:
            await self._recall(client_id, remembered.header)

    async def _hear(self, client_id: ClientId, statement: RevealStatement) -> None:
        """Examine the key authority's statement on a round that this folder may lack.

        A folder that was just recovered continues from there. Any other is older than the run.
        """
        if not self._is_news(client_id, statement):
            return
        run = self._run
        if run.state.nothing_opened_since_recovery:
            await run.work.uninterrupted(self._learn(statement))
        if statement.round > run.state.published:
            self.halt(statement.round)

    def _is_news(self, client_id: ClientId, statement: RevealStatement) -> bool:
        """Return whether a statement of the key authority is about a round that is unknown here.

        The same statement on the round in progress may still come if all updates have arrived. Once
        the authority has accepted the published round, it does not.

        Args:
            client_id: the client that shows it.

        Raises:
            FedrecError: this run's key authority did not make the statement.
        """
        state = self._run.state
        current = state.current
        in_progress = current is not None and current.number == statement.round
        # No member sends an update for that round again, so collecting would wait in vain.
        in_progress = in_progress and current is not None and current.phase != "collecting"
        in_progress = in_progress and client_id != state.rules.revealer
        if statement.round <= state.published or in_progress:
            return False
        # A statement of an unknown revealer is neither evidence nor a lie.
        return self._admission.check_published_statement(statement, self.former)

    async def _learn(self, statement: RevealStatement) -> None:
        run = self._run
        async with run.lock:
            with suppress(RoundError):
                await run.apply(StatementShown(now=run.clock.now(), statement=statement))

    def halt(self, seen: RoundId) -> None:
        """End the process: this folder is older than the run."""
        run = self._run
        published = run.state.published
        if run.problem is None:
            log = structlog.get_logger()
            log.critical("state went back", seen_round=seen, published_round=published)
        run.halt(
            StateWentBack(
                f"A member has round {seen}, signed by the key authority, but this folder ends "
                f"with round {published}. It is older than the run.",
                remedy="Start the coordinator on the newest folder or backup. If it is lost, run "
                "`fedrec keys export-recovery FILE` at the key authority and `fedrec "
                "coordinator recover SETTINGS.toml FILE` here, which keeps this folder "
                "aside. Members wait and keep their data.",
            )
        )

    async def _recall(self, client_id: ClientId, header: UploadHeader) -> None:
        """Store a member's last update that a recovered folder lacks.

        Raises:
            FedrecError: the member did not sign the update, or signed it for a different run.
        """
        run, known = self._run, self._latest.get(client_id)
        if header.round > run.state.recovered or (known is not None and known[0] >= header.round):
            return
        self._admission.check_own(client_id, header)
        async with run.lock:
            await run.work.in_thread(run.store.keep_latest, header)
        self._latest[client_id] = (header.round, header.digest)
