"""The key authority's requests and statement for a round, and members' reports."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fedrec.errors import AuthorityIsOld, RefusedError, RoundClosed, RoundError
from fedrec.ids import ClientId, RoundId
from fedrec.protection.protection import in_one_step
from fedrec.wire.chunks import Blob, ByteChunk
from fedrec.wire.messages import Report, RevealStatement
from fedrec_server.peers.admission import Admission
from fedrec_server.rounds.events import ReportReceived, StatementReceived
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import Round
from fedrec_server.run.live_run import LiveRun
from fedrec_server.store.durable_files import sealed_name, sum_name
from fedrec_server.uploads.incoming import Incoming, StreamTurns


async def take_report(run: LiveRun, admission: Admission, report: Report) -> None:
    """Keep a client's report on a published ciphertext sum.

    Raises:
        FedrecError: the report is not from this client, or its sum awaits no reports.
    """
    run.presence.heard(report.client_id)
    admission.check_report(report, measured=True)
    await run.work.uninterrupted(_keep(run, report))


async def _keep(run: LiveRun, report: Report) -> None:
    async with run.lock:
        await run.apply(ReportReceived(now=run.clock.now(), report=report))
    run.failpoint("report.ack")
    run.advance_soon()


class Reveals:
    """Serves a round that is to be opened, and accepts the key authority's statement on it."""

    def __init__(self, run: LiveRun, admission: Admission, turns: StreamTurns) -> None:
        self._run = run
        self._admission = admission
        self._turns = turns
        self._handed_out: tuple[tuple[RoundId, bytes], bytes] | None = None

    async def contribution(
        self, caller: ClientId, round_id: RoundId, contributor: ClientId
    ) -> tuple[bytes, Blob]:
        """Return a contribution and its digest.

        Raises:
            RefusedError: the caller is not the key authority, or the round is not being opened.
            RoundError: that client has no contribution.
        """
        header = self._round(caller, round_id).accepted.get(contributor)
        if header is None:
            raise RoundError(f"Round {round_id} has no contribution from that client.")
        return await self._run.work.in_thread(self._run.read_update, header), header.blob

    async def total(self, caller: ClientId, round_id: RoundId) -> bytes:
        """Return the coordinator's sum, refreshed if the protection supports it.

        Raises:
            RefusedError: the caller is not the key authority, or the round is not being opened.
            RoundError: there is no sum.
        """
        run, round_ = self._run, self._round(caller, round_id)
        if round_.total is None:
            raise RoundError(f"Round {round_.number} has no sum.")
        key = (round_.number, round_.total.digest)
        if self._handed_out is None or self._handed_out[0] != key:
            read = run.store.spool.read
            data = await run.work.in_thread(read, sum_name(round_.number), round_.total)
            protection = in_one_step(run.protection_of(round_.kind))
            context = run.federation.keys.server_context
            fresh = await run.work.beside(lambda: protection.accumulator(context).refreshed(data))
            # One for all calls, because the authority fetches only one sum of a round.
            if self._handed_out is None or self._handed_out[0] != key:
                self._handed_out = (key, fresh)
        return self._handed_out[1]

    def _round(self, caller: ClientId, round_id: RoundId) -> Round:
        """Return the round that the calling key authority is to open."""
        round_ = self._run.state.current
        if round_ is None or round_.number != round_id or round_.phase != "revealing":
            raise RefusedError(f"Round {round_id} is not being revealed.")
        if caller != self._run.state.rules.revealer:
            raise RefusedError(f"Only the key authority opens round {round_id}.")
        return round_

    async def receive(
        self, statement: RevealStatement, sealed: Blob, chunks: AsyncIterator[ByteChunk]
    ) -> None:
        """Accept the statement, with the sealed sum if the authority opened it.

        Raises:
            FedrecError: the round is not being opened, or the statement is invalid.
        """
        run = self._run
        async with self._turns.turn(statement.client_id):
            run.presence.heard(statement.client_id)
            self._admission.check_blob(sealed.length)
            if not await run.work.in_thread(self.was_published, statement):
                self.check(statement)
            incoming = await run.work.beside(IncomingStatement, run, self, sealed, statement)
            await self._turns.take(incoming, chunks)

    def was_published(self, statement: RevealStatement) -> bool:
        """Return whether a statement repeats a published one, because its receipt was lost."""
        self._admission.check_run(statement.run)
        record = self._run.store.published(statement.round)
        return record is not None and record.statement == statement

    def check(self, statement: RevealStatement) -> None:
        """Refuse a statement that is not about the round that is being opened."""
        run, round_ = self._run, self._run.state.current
        if round_ is None or round_.phase != "revealing" or round_.number != statement.round:
            raise RoundClosed(f"Round {statement.round} is not being revealed.")
        # A refusal is about the whole list, a published sum about the list without paused cells.
        paused = () if statement.refused else statement.paused
        left_out = run.state.rules.partition.members_of(paused)
        self._admission.check_statement(statement, round_.manifest_digest(run.name, left_out))

    def check_follows(self, statement: RevealStatement) -> None:
        """Refuse a statement that does not follow the last one on a published round.

        Raises:
            AuthorityIsOld: two folders of the key authority are in use, or a folder is outdated.
        """
        record = self._run.store.published(self._run.state.published)
        known = None if record is None else record.statement
        if known is None or statement.sequence > known.sequence + 1:
            return
        if statement.sequence <= known.sequence or statement.previous != known.digest():
            raise AuthorityIsOld(
                f"Statement {statement.sequence} of the key authority does not follow statement "
                f"{known.sequence}, which was about round {known.round}.",
                remedy="Run only the newest folder of the authority. If it is lost, restore the "
                "newest backup (`fedrec keys restore`).",
            )


class IncomingStatement(Incoming):
    """The key authority's signed statement, with the sealed sum if it opened one."""

    def __init__(
        self, run: LiveRun, reveals: Reveals, blob: Blob, statement: RevealStatement
    ) -> None:
        run.store.spool.require_space(blob.length)
        super().__init__(run, run.store.spool.draft(), blob)
        self._reveals = reveals
        self._statement = statement

    async def _count(self) -> bool:
        run, statement = self._run, self._statement
        await self._synced()
        async with run.lock:
            if await run.work.in_thread(self._reveals.was_published, statement):
                await run.work.in_thread(self._draft.discard)
                return True
            self._reveals.check(statement)
            await run.work.in_thread(self._reveals.check_follows, statement)
            blob = self._blob if self._blob.length else None
            event = StatementReceived(now=run.clock.now(), statement=statement, blob=blob)
            # The state machine would refuse it, so no file is needed.
            step(run.state, event)
            if statement.refused:
                await run.work.in_thread(self._draft.discard)
            else:
                name = sealed_name(statement.round, self._blob)
                await run.work.in_thread(self._draft.keep, name)
            await run.apply(event)
            run.failpoint("reveal.ack")
            return False
