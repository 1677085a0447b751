"""Copies of the model as they come from clients that are up to date, and go to those behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import Blob, Chunk
from fedrec.wire.limits import MAX_REPORTS
from fedrec.wire.messages import Report, Snapshot
from fedrec_server.membership.admission import Admission
from fedrec_server.run.live_run import LiveRun
from fedrec_server.snapshots.snapshots import Snapshots
from fedrec_server.store.durable_files import snapshot_name
from fedrec_server.store.store import SnapshotRecord
from fedrec_server.uploads.incoming import Incoming, StreamTurns

__all__ = ["SnapshotExchange"]


class SnapshotExchange:
    """Takes in snapshots and hands them out."""

    def __init__(
        self, run: LiveRun, snapshots: Snapshots, admission: Admission, turns: StreamTurns
    ) -> None:
        self._run = run
        self._snapshots = snapshots
        self._admission = admission
        self._turns = turns

    async def receive(self, report: Report, blob: Blob, chunks: AsyncIterator[Chunk]) -> None:
        """Take in a copy of the model; who vouches for it is admitted before it is read.

        Raises:
            FedrecError: nobody asked for it, or it is not the model that is known of the round.
        """
        run = self._run
        async with self._turns.turn(report.client_id):
            run.presence.heard(report.client_id)
            self._admission.check_blob(blob.length)
            self._admission.check_report(report, measured=False)
            await run.work.in_thread(self._snapshots.check, report)
            incoming = await run.work.beside(IncomingSnapshot, run, self._snapshots, blob, report)
            await self._turns.take(incoming, chunks)

    async def for_client(
        self, client_id: ClientId, after: RoundId, refused: frozenset[bytes]
    ) -> Snapshot | None:
        """Return the snapshot where it serves a client better than the rounds.

        Args:
            after: the client's version.
            refused: digests of snapshots that the client could not use.
        """
        run = self._run
        if refused:
            await run.work.in_thread(self._snapshots.note_refused, client_id, refused)
        found = await run.work.in_thread(self._snapshots.for_client, after, refused)
        if found is None:
            return None
        stored, record = found
        name = snapshot_name(stored.round, stored.blob)
        return Snapshot(
            round=stored.round,
            epoch=stored.epoch,
            statement=record.statement if not stored.reports else None,
            reports=(stored.reports or record.reports)[:MAX_REPORTS],
            blob=await run.work.in_thread(run.store.spool.read, name, stored.blob),
        )


class IncomingSnapshot(Incoming):
    """A copy of the model for late joiners."""

    def __init__(self, run: LiveRun, snapshots: Snapshots, blob: Blob, report: Report) -> None:
        run.store.spool.require_space(blob.length)
        super().__init__(run, run.store.spool.draft(), blob)
        self._snapshots = snapshots
        self._report = report

    async def _count(self) -> bool:
        run, report = self._run, self._report
        await self._synced()
        async with run.lock:
            await run.work.in_thread(self._snapshots.check, report)
            vouching = await run.work.in_thread(self._snapshots.accepts, report, self._blob)
            if vouching is None:
                await run.work.in_thread(self._draft.discard)
                return False
            name = snapshot_name(report.round, self._blob)
            record = SnapshotRecord(
                round=report.round, epoch=report.epoch, blob=self._blob, reports=vouching
            )
            await run.work.in_thread(self._draft.keep, name)
            before = await run.work.in_thread(run.store.keep_snapshot, record)
            old = name if before is None else snapshot_name(before.round, before.blob)
            if old != name:
                await run.work.in_thread(run.store.spool.delete, old)
            return False
