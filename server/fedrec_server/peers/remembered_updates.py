"""What clients and the coordinator remember of each other: who forgot something is recognised.

A folder that was restored from an older copy, and two copies of one client's folder, go on as if
nothing had happened; the other side remembers more. Source: rule R13 of the trust model.
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
    """Compares what a client remembers with what is stored here.

    Attributes:
        former: revealers that were replaced, whose word still counts as evidence.
    """

    def __init__(self, run: LiveRun, admission: Admission) -> None:
        self._run = run
        self._admission = admission
        self._latest = run.store.latest()
        self.former = run.store.former_revealers()

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Remember what was just committed."""
        for change in changes:
            if isinstance(change, UpdateCounted):
                header = change.header
                self._latest[header.client_id] = (header.round, header.digest)

    def of(self, client_id: ClientId) -> Remembered:
        """Return what a client has to remember."""
        round_id, digest = self._latest.get(client_id, (NO_ROUND, b""))
        return Remembered(acknowledged_round=round_id, acknowledged_digest=digest)

    def differs(self, client_id: ClientId, remembered: Remembered) -> bool:
        """Tell whether the client remembers another last update than this coordinator."""
        return self.of(client_id) != replace(remembered, statement=None, header=None)

    async def answer(self, client_id: ClientId, remembered: Remembered) -> Latest | None:
        """Return the client's last update, signed by itself, where it remembers another one."""
        if not self.differs(client_id, remembered):
            return None
        held = self.of(client_id)
        # Of one that was killed before it heard that its update arrived, it says so once.
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
        """Look at what a member shows of the run that this folder may not know.

        Raises:
            FedrecError: it is no word of this run's key authority, or not the member's update.
        """
        if remembered.statement is not None:
            await self._hear(client_id, remembered.statement)
        if remembered.header is not None:
            await self._recall(client_id, remembered.header)

    async def _hear(self, client_id: ClientId, statement: RevealStatement) -> None:
        """Look at the key authority's word on a round that a member has and this folder may not.

        A folder that was just made anew goes on from there; any other is older than the run.
        """
        if not self._is_news(client_id, statement):
            return
        run = self._run
        if run.state.may_learn:
            await run.work.uninterrupted(self._learn(statement))
        if statement.round > run.state.published:
            self.halt(statement.round)

    def _is_news(self, client_id: ClientId, statement: RevealStatement) -> bool:
        """Tell whether a statement is the key authority's word on a round that is not known here.

        On the round in progress its word may come yet, the same, where all updates are here; once
        the authority has taken the published round itself, it does not.

        Args:
            client_id: who shows it.

        Raises:
            FedrecError: it is no word of this run's key authority.
        """
        state = self._run.state
        current = state.current
        in_progress = current is not None and current.number == statement.round
        # No member sends an update of that round again: collecting, it would wait in vain.
        in_progress = in_progress and current is not None and current.phase != "collecting"
        in_progress = in_progress and client_id != state.rules.revealer
        if statement.round <= state.published or in_progress:
            return False
        # Of a revealer that nobody here knows it is no evidence, and no lie either.
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
                f"A member has round {seen}, signed by the key authority; this folder knows "
                f"rounds up to {published}: it is older than the run.",
                remedy="Start the coordinator on the newest folder or backup. Where that is lost, "
                "run `fedrec keys export-recovery FILE` at the key authority and `fedrec "
                "coordinator recover SETTINGS.toml FILE` here; this folder is kept aside. Members "
                "wait and keep what they have.",
            )
        )

    async def _recall(self, client_id: ClientId, header: UploadHeader) -> None:
        """Keep a member's last update that a folder which was made anew does not know of.

        Raises:
            FedrecError: the member did not sign it, or for another run.
        """
        run, known = self._run, self._latest.get(client_id)
        if header.round > run.state.recovered or (known is not None and known[0] >= header.round):
            return
        self._admission.check_own(client_id, header)
        async with run.lock:
            await run.work.in_thread(run.store.keep_latest, header)
        self._latest[client_id] = (header.round, header.digest)
