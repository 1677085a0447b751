"""Snapshots of the model for late joiners: which clients make them, and which are accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import structlog

from fedrec.clock import Clock
from fedrec.errors import RefusedError, RoundError
from fedrec.ids import ClientId, RoundId
from fedrec.plan.layout import shared_values
from fedrec.wire.chunks import Blob, ByteChunk
from fedrec.wire.fields import MAX_REPORTS
from fedrec.wire.messages import MakeSnapshot, Report, Snapshot, Task
from fedrec_server.peers.admission import Admission
from fedrec_server.rounds.changes import Change, EpochBegan, RoundLearnt
from fedrec_server.rounds.state import KnownModel, State
from fedrec_server.run.live_run import LiveRun
from fedrec_server.store.durable_files import OpenFile, snapshot_name
from fedrec_server.store.store import PublishedRecord, SnapshotRecord
from fedrec_server.uploads.incoming import Incoming, StreamTurns

ASK_SECONDS = 30.0
"""Seconds after which other clients are asked. A late client may still send its snapshot."""


class SnapshotMakers:
    """Selects clients that are up to date to make snapshots.

    Requests are forgotten with the process and the epoch. The next late joiner causes new ones.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._round = RoundId(0)
        self._asked: frozenset[ClientId] = frozenset()
        self._answered: frozenset[ClientId] = frozenset()
        self._asked_at = 0.0
        self._n_makers = 0
        self._requests: dict[ClientId, RoundId] = {}
        self._distrusted: set[ClientId] = set()

    def ask(
        self, waiting: frozenset[ClientId], published: RoundId, n_makers: int
    ) -> frozenset[ClientId]:
        """Select clients to make a snapshot, or none if other clients are making one."""
        self._n_makers = n_makers
        before = self._asked if self._is_in_time(published) else frozenset()
        if len(before) >= n_makers:
            return frozenset()
        # Silent clients come near the end, and clients with a refused snapshot last.
        candidates = sorted(
            waiting - before,
            key=lambda client: (client in self._distrusted, client in self._asked, client),
        )
        chosen = frozenset(candidates[: n_makers - len(before)])
        if not self._is_in_time(published):
            self._asked_at = self._clock.now()
            self._answered = frozenset()
        self._asked = before | chosen
        self._round = published
        self._requests |= dict.fromkeys(chosen, published)
        return chosen

    def lacks(self, client_id: ClientId, published: RoundId) -> bool:
        """Return whether an idle client should be asked as well."""
        if not self._is_in_time(published):
            return client_id not in self._distrusted
        others = client_id not in self._asked | self._distrusted
        return others and len(self._asked) < self._n_makers

    def has_task(self, client_id: ClientId, published: RoundId) -> bool:
        """Return whether a client has to make a snapshot of the published round now."""
        is_awaited = client_id in self._asked - self._answered
        return is_awaited and self._is_in_time(published)

    def may_send(self, client_id: ClientId, round_id: RoundId) -> bool:
        """Return whether a client was asked for a round's snapshot and has not sent it yet."""
        return self._requests.get(client_id) == round_id

    def answered(self, client_id: ClientId) -> None:
        """Record that a client sent the snapshot."""
        self._answered |= {client_id}
        self._requests.pop(client_id, None)

    def distrust(self, client_id: ClientId) -> None:
        """Prefer other clients from now on, and ask them at once."""
        self._distrusted.add(client_id)
        self._round = RoundId(0)

    def _is_in_time(self, published: RoundId) -> bool:
        return self._round == published and self._clock.now() < self._asked_at + ASK_SECONDS


MOST_COMPLAINTS = 8
"""Limit of the snapshots that one member can refuse. Each refusal makes others do the work again.
"""
BYTES_PER_VALUE = 8


class Snapshots:
    """Decides when a snapshot is worth making and whether it counts.

    Reports are forgotten with the process and the epoch. The next late joiner causes new requests.
    """

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._store = run.store
        self._forget()

    def on_commit(self, before: State, changes: tuple[Change, ...]) -> None:
        """Reset in a new key epoch, and when it turns out that rounds are missing here."""
        if any(isinstance(change, EpochBegan | RoundLearnt) for change in changes):
            self._forget()

    def _forget(self) -> None:
        self._makers = SnapshotMakers(self._run.clock)
        self._behind: dict[ClientId, RoundId] = {}
        self._sent: dict[ClientId, tuple[Report, bytes]] = {}
        self._refused: bytes | None = None
        self._is_wanted = False
        self._complaints: dict[ClientId, int] = {}
        self._made_by: dict[bytes, ClientId] = {}
        oldest = self._store.next_published(RoundId(0))
        mixed_epochs = oldest is not None and oldest.epoch != self._epoch
        # A recovered folder lacks the rounds published before.
        lacks_rounds = self._run.state.begins_at is not None
        self._has_gaps = mixed_epochs or self._run.state.rules.shares_key or lacks_rounds

    def may_miss(self, client_id: ClientId, version: RoundId) -> bool:
        """Return at once whether to look in the store for a client that is behind.

        A member that crosses into this epoch may still open earlier rounds. If it comes back with
        the same version, it could not.
        """
        if version == 0 or not self._has_gaps:
            return version == 0
        came_back = self._behind.get(client_id) == version
        self._behind[client_id] = version
        return came_back

    def worth_making(self, version: RoundId) -> bool:
        """Return whether a new snapshot would help a client that is behind more than rounds do."""
        first = self._store.next_published(version)
        if first is None:
            return False
        stored = self._current()
        if not self._is_served(first, version):
            if stored is None:
                return True
            following = self._store.next_published(stored.round)
            return not self._is_served(following, stored.round)
        if version or self._store.next_published(first.round) is None:
            # A client that misses one round fetches it, as all do.
            return False
        since = RoundId(0) if stored is None else stored.round
        price = self._estimate if stored is None else stored.blob.length
        return self._store.bytes_after(since) > price

    def ask(self, waiting: frozenset[ClientId], published: RoundId) -> frozenset[ClientId]:
        """Select clients to make a snapshot, and return the ones to wake.

        Empty if others are making one.

        Args:
            waiting: idle clients that have the model. Others are asked when they call.
        """
        self._is_wanted = True
        n_makers = 2 if self._needs_two(self._store.published(published)) else 1
        return self._makers.ask(waiting, published, n_makers)

    def wants(self, client_id: ClientId, published: RoundId) -> bool:
        """Return whether a joiner waits for a snapshot that this idle client should make."""
        return self._is_wanted and self._makers.lacks(client_id, published)

    def task_for(self, client_id: ClientId, published: RoundId) -> Task | None:
        """Return the task of an idle client that is up to date, if it was asked."""
        if not self._makers.has_task(client_id, published):
            return None
        return Task(
            published_round=published, task=MakeSnapshot(round=published), epoch=self._epoch
        )

    def check(self, report: Report) -> None:
        """Refuse a snapshot that no client can use.

        Raises:
            RoundError: if its round is not published, a later snapshot was stored, the epoch has
                changed, or this client was not asked for it.
            RefusedError: if the snapshot differs from the round's known model.
        """
        record = self._store.published(report.round)
        if record is None:
            raise RoundError(f"Round {report.round} is not published.")
        if report.epoch != self._epoch:
            raise RoundError(f"The key epoch is {self._epoch}, not {report.epoch}.")
        if self._is_vouched(record) and record.known != KnownModel.named_by(report):
            raise RefusedError("The snapshot differs from the known model of its round.")
        stored = self._current()
        if stored is not None and stored.round >= report.round:
            raise RoundError(
                f"The coordinator already has a snapshot of round {report.round} or later."
            )
        if not self._makers.may_send(report.client_id, report.round):
            raise RoundError(f"This client was not asked for a snapshot of round {report.round}.")

    def accepts(self, report: Report, blob: Blob) -> tuple[Report, ...] | None:
        """Record an admitted snapshot.

        Return the clients' reports that confirm it, or None if it does not count yet.

        If the model was named in this epoch when its round was published, no confirmation is
        needed.
        """
        self._makers.answered(report.client_id)
        record = self._store.published(report.round)
        vouching: tuple[Report, ...] = ()
        if self._needs_two(record):
            sealed = self._run.federation.protection.needs_reveal
            # Clients with the same model produce the same bytes.
            self._sent[report.client_id] = (report, blob.digest)
            alike = [
                other
                for other, sent_digest in self._sent.values()
                if (other.round, sent_digest) == (report.round, blob.digest)
                and (not sealed or other.model == report.model)
            ]
            if len(alike) < 2:
                return None
            self._sent.clear()
            vouching = tuple(alike) if sealed else ()
        self._made_by = {blob.digest: report.client_id}
        self._refused = None
        self._is_wanted = False
        return vouching

    def note_refused(self, client_id: ClientId, refused: frozenset[bytes]) -> None:
        """Record that a member cannot use the current snapshot, and ask other clients for one.

        All other members still get it, since any member may lie.
        """
        stored = self._current()
        complaints = self._complaints.get(client_id, 0)
        if stored is None or stored.blob.digest not in refused or complaints >= MOST_COMPLAINTS:
            return
        self._complaints[client_id] = complaints + 1
        self._refused = stored.blob.digest
        maker = self._made_by.get(stored.blob.digest)
        if maker is not None:
            self._makers.distrust(maker)
        log = structlog.get_logger().bind(run=self._store.run, round=stored.round)
        log.warning("snapshot refused by a joiner")

    def for_client(
        self, after: RoundId, refused: frozenset[bytes] = frozenset()
    ) -> tuple[SnapshotRecord, PublishedRecord] | None:
        """Return the snapshot if it serves a client at `after` better than the sums.

        Args:
            refused: digests of snapshots that the client could not use.
        """
        stored = self._store.snapshot()
        if stored is None or stored.round <= after or stored.epoch != self._epoch:
            return None
        if stored.blob.digest in refused:
            return None
        record = self._store.published(stored.round)
        first = self._store.next_published(after)
        if record is None or first is None:
            return None
        saved = self._store.bytes_after(after) - self._store.bytes_after(stored.round)
        if stored.blob.length > saved and self._is_served(first, after):
            return None
        return stored, record

    def _current(self) -> SnapshotRecord | None:
        """Return the current snapshot, unless it is from a different epoch or was refused."""
        stored = self._store.snapshot()
        if stored is None or stored.epoch != self._epoch or stored.blob.digest == self._refused:
            return None
        return stored

    def _is_vouched(self, record: PublishedRecord) -> bool:
        """Return whether the model after a round is known under the current epoch's key."""
        return record.known is not None and record.known.epoch == self._epoch

    def _is_served(self, record: PublishedRecord | None, version: RoundId) -> bool:
        """Return whether members of this epoch at a version can use a round, and all later ones."""
        return record is None or (record.epoch == self._epoch and record.is_for(version))

    def _needs_two(self, record: PublishedRecord | None) -> bool:
        return record is None or not self._is_vouched(record)

    @property
    def _epoch(self) -> int:
        return self._run.federation.keys.roster.epoch

    @property
    def _estimate(self) -> int:
        n_items = self._run.federation.catalogue.n_items
        return BYTES_PER_VALUE * (shared_values(self._run.federation.plan, n_items) + n_items)


class SnapshotExchange:
    """Receives snapshots and serves them."""

    def __init__(
        self, run: LiveRun, snapshots: Snapshots, admission: Admission, turns: StreamTurns
    ) -> None:
        self._run = run
        self._snapshots = snapshots
        self._admission = admission
        self._turns = turns
        self._open: tuple[str, OpenFile] | None = None
        self._opening = asyncio.Lock()

    async def receive(self, report: Report, blob: Blob, chunks: AsyncIterator[ByteChunk]) -> None:
        """Receive a snapshot. The reports that confirm it are admitted before it is read.

        Raises:
            FedrecError: the snapshot was not asked for, or differs from the round's known model.
        """
        run = self._run
        async with self._turns.turn(report.client_id):
            run.presence.heard(report.client_id)
            self._admission.check_blob(blob.length)
            self._admission.check_report(report, measured=False)
            await run.work.in_thread(self._snapshots.check, report)
            incoming = await run.work.beside(IncomingSnapshot, run, self._snapshots, blob, report)
            await self._turns.take(incoming, chunks)
            # It may have replaced the one that is open, whose file is then deleted.
            self._open = None

    async def for_client(
        self, client_id: ClientId, after: RoundId, refused: frozenset[bytes]
    ) -> tuple[Snapshot, Blob, OpenFile] | None:
        """Open the snapshot if it serves a client better than the rounds.

        Args:
            after: the client's version.
            refused: digests of snapshots that the client could not use.

        Returns:
            The message without its bytes, their description, and the file. None if rounds serve.

        Raises:
            DamagedFile: the file is missing or does not match its row.
        """
        run = self._run
        if refused:
            await run.work.in_thread(self._snapshots.note_refused, client_id, refused)
        found = await run.work.in_thread(self._snapshots.for_client, after, refused)
        if found is None:
            return None
        stored, record = found
        name = snapshot_name(stored.round, stored.blob)
        async with self._opening:
            if self._open is None or self._open[0] != name:
                # Its digest is compared once. Later callers only read their pieces.
                file = await run.work.in_thread(run.store.spool.open, name, stored.blob)
                self._open = name, file
            file = self._open[1]
        snapshot = Snapshot(
            round=stored.round,
            epoch=stored.epoch,
            statement=record.statement if not stored.reports else None,
            reports=(stored.reports or record.reports)[:MAX_REPORTS],
            blob=b"",
        )
        return snapshot, stored.blob, file


class IncomingSnapshot(Incoming):
    """A snapshot for late joiners that is being received."""

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
