"""Taking in updates, reveals, reports and snapshots: checked, synced, counted, acknowledged."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from fedrec.errors import AuthorityIsOld, ConflictingUpload, RoundClosed
from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import CHUNK_BYTES, Assembler, Blob, Chunk
from fedrec.wire.messages import Report, RevealStatement, UploadHeader, UploadStatus
from fedrec_server.engine import Engine
from fedrec_server.rounds.changes import AlreadyCounted
from fedrec_server.rounds.events import Reported, Spoke, Uploaded
from fedrec_server.rounds.machine import step
from fedrec_server.store.spool import Draft, DurabilityLost, sealed_name, snapshot_name, update_name
from fedrec_server.store.store import SnapshotRecord

__all__ = [
    "Incoming",
    "IncomingReveal",
    "IncomingSnapshot",
    "IncomingUpdate",
    "open_reveal",
    "open_snapshot",
    "open_update",
    "take_report",
    "update_status",
]

WAITING_BYTES = CHUNK_BYTES
"""What a stream brings while its earlier bytes are written; then it is not read further."""

T = TypeVar("T")


class Incoming(ABC):
    """A byte string that a peer sends in chunks into a draft."""

    def __init__(self, engine: Engine, draft: Draft, blob: Blob) -> None:
        self._engine = engine
        self._draft = draft
        self._blob = blob
        self._busy: asyncio.Task[Any] | None = None
        self._waiting: list[Chunk] = []
        self._assembler = Assembler(
            blob.length,
            blob.digest,
            max_bytes=blob.length,
            start=draft.size,
            prefix=(draft.read(),) if draft.size else (),
            sink=draft.append,
        )

    async def take(self, chunks: AsyncIterator[Chunk]) -> None:
        """Take the rest of a stream: while some chunks are hashed and written, others arrive."""
        async for chunk in chunks:
            self._waiting.append(chunk)
            full = sum(len(chunk.data) for chunk in self._waiting) >= WAITING_BYTES
            if full or self._busy is None or self._busy.done():
                await self._written()
                if self._waiting:
                    self._busy = self._engine.work.background(self._write())
        await self._written()

    async def _write(self) -> None:
        """Hash and write what waits, and what comes meanwhile."""
        while self._waiting:
            chunks, self._waiting = self._waiting, []
            await self._engine.work.beside(self._add_all, chunks)

    async def _written(self) -> None:
        """Wait for what is being written.

        Raises:
            FedrecError: when it does not fit.
        """
        if self._busy is not None:
            await asyncio.shield(self._busy)

    async def add(self, offset: int, data: bytes) -> None:
        """Take one chunk; a stream that begins at 0 begins anew."""
        chunk = Chunk(offset=offset, data=data)
        await self._to_its_end(self._engine.work.beside(self._add_all, (chunk,)))

    def _add_all(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._add(chunk.offset, chunk.data)

    def _add(self, offset: int, data: bytes | memoryview) -> None:
        if offset == 0 and self._draft.size:
            self._draft.restart()
            self._assembler = Assembler(
                self._blob.length,
                self._blob.digest,
                max_bytes=self._blob.length,
                sink=self._draft.append,
            )
        self._assembler.add(offset, data)

    async def finish(self) -> bool:
        """Check and count what arrived; True when it was counted before.

        Raises:
            CorruptUpload: when bytes are missing or are not the announced ones.
            FedrecError: when the round does not take it.
        """
        return await self._to_its_end(self._finish())

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Use the draft, to the end even where the peer hangs up in between."""
        self._busy = self._engine.work.background(work)
        return await asyncio.shield(self._busy)

    async def _finish(self) -> bool:
        try:
            # Syncing takes longest and concerns nobody else: uploads do it side by side, and
            # only what counts them goes one after another.
            await self._engine.work.beside(self._finish_file)
            duplicate = await self._count()
        except DurabilityLost:
            # Whether it is counted is not known: the next start finds out.
            raise
        except Exception:
            # Whole but refused is of no use; a torn upload may go on later.
            if self._assembler.complete:
                await self._refused()
            raise
        self._engine.work.background(self._engine.advance())
        return duplicate

    def _finish_file(self) -> None:
        self._assembler.finish()
        self._draft.sync()

    async def leave(self) -> None:
        """Close the draft of a call that ended, in whatever way."""
        if self._busy is None or self._busy.done():
            self._draft.close()
        else:
            await self._engine.work.uninterrupted(self._close_later())

    async def _close_later(self) -> None:
        # Closed under the feet of whoever still uses it, its number would name another file.
        if self._busy is not None:
            await asyncio.wait((self._busy,))
        self._draft.close()

    @abstractmethod
    async def _count(self) -> bool:
        """Make it durable and tell the state machine; True when it was counted before."""

    async def _refused(self) -> None:
        await self._engine.work.beside(self._draft.discard)


class IncomingUpdate(Incoming):
    """One client's update of the round in progress; an interrupted one can go on later."""

    def __init__(self, engine: Engine, draft: Draft, header: UploadHeader) -> None:
        super().__init__(engine, draft, header.blob)
        self._header = header
        self._name = update_name(header.round, header.client_id)
        self._kept = False

    async def _count(self) -> bool:
        engine, header = self._engine, self._header
        if await _is_duplicate(engine, header):
            await engine.work.beside(self._draft.discard)
            return True
        # Durable before its turn to be counted, so that nobody waits for this disk access: the
        # client's turn keeps others from the name, and without a row the file is an orphan.
        try:
            await engine.work.beside(self._draft.keep, self._name)
        except FileNotFoundError:
            # The round ended meanwhile and took its unfinished uploads along.
            raise RoundClosed(f"Round {header.round} is over.") from None
        self._kept = True
        duplicate = await engine.counting.commit((header, self._draft.read))
        engine.failpoint("update.ack")
        return duplicate

    async def _refused(self) -> None:
        await super()._refused()
        engine, header = self._engine, self._header
        # Whatever the error says, no row may lose its file.
        if self._kept and await _counted(engine, header.round, header.client_id) is None:
            await engine.work.beside(engine.store.spool.delete, self._name)


class IncomingReveal(Incoming):
    """The key authority's signed statement, with the sealed sum where it opened it."""

    def __init__(
        self, engine: Engine, draft: Draft, blob: Blob, statement: RevealStatement
    ) -> None:
        super().__init__(engine, draft, blob)
        self._statement = statement

    async def _count(self) -> bool:
        async with self._engine.lock:
            return await self._speak(self._engine, self._statement)

    async def _speak(self, engine: Engine, statement: RevealStatement) -> bool:
        if await engine.work.in_thread(_was_published, engine, statement):
            await engine.work.in_thread(self._draft.discard)
            return True
        _check_statement(engine, statement)
        await engine.work.in_thread(_check_follows, engine, statement)
        event = Spoke(
            now=engine.clock.now(),
            statement=statement,
            blob=self._blob if self._blob.length else None,
        )
        # What the state machine refuses is not worth a file.
        step(engine.state, event)
        if statement.refused:
            await engine.work.in_thread(self._draft.discard)
        else:
            name = sealed_name(statement.round, self._blob)
            await engine.work.in_thread(self._draft.keep, name)
        await engine.apply(event)
        engine.failpoint("reveal.ack")
        return False


class IncomingSnapshot(Incoming):
    """A copy of the model for late joiners."""

    def __init__(self, engine: Engine, draft: Draft, blob: Blob, report: Report) -> None:
        super().__init__(engine, draft, blob)
        self._report = report

    async def _count(self) -> bool:
        async with self._engine.lock:
            return await self._exchange(self._engine, self._report)

    async def _exchange(self, engine: Engine, report: Report) -> bool:
        await engine.work.in_thread(engine.snapshots.check, report)
        vouching = await engine.work.in_thread(engine.snapshots.accepts, report, self._blob)
        if vouching is None:
            await engine.work.in_thread(self._draft.discard)
            return False
        name = snapshot_name(report.round, self._blob)
        record = SnapshotRecord(
            round=report.round, epoch=report.epoch, blob=self._blob, reports=vouching
        )
        await engine.work.in_thread(self._draft.keep, name)
        before = await engine.work.in_thread(engine.store.keep_snapshot, record)
        old = name if before is None else snapshot_name(before.round, before.blob)
        if old != name:
            await engine.work.in_thread(engine.store.spool.delete, old)
        return False


async def open_update(engine: Engine, header: UploadHeader) -> IncomingUpdate | None:
    """Begin or go on with an update; None when the same update is counted already.

    The caller has had the header checked by `engine.admission` and holds the client's turn in
    `engine.uploads`: two streams into one draft would destroy each other.

    Raises:
        FedrecError: before anything is written.
    """
    engine.presence.heard(header.client_id)
    if await _is_duplicate(engine, header):
        return None

    def begin() -> IncomingUpdate:
        engine.store.spool.require_space(header.length)
        draft = engine.store.spool.upload(header.round, header.client_id, header.digest)
        if draft.size > header.length:
            draft.restart()
        return IncomingUpdate(engine, draft, header)

    return await engine.work.beside(begin)


async def open_reveal(engine: Engine, statement: RevealStatement, blob: Blob) -> IncomingReveal:
    """Admit the key authority's statement before its sealed sum is read."""
    engine.presence.heard(statement.client_id)
    engine.admission.check_blob(blob.length)
    if not await engine.work.in_thread(_was_published, engine, statement):
        _check_statement(engine, statement)

    def begin() -> IncomingReveal:
        engine.store.spool.require_space(blob.length)
        return IncomingReveal(engine, engine.store.spool.draft(), blob, statement)

    return await engine.work.beside(begin)


async def open_snapshot(engine: Engine, report: Report, blob: Blob) -> IncomingSnapshot:
    """Admit who vouches for a snapshot before the snapshot is read."""
    engine.presence.heard(report.client_id)
    engine.admission.check_blob(blob.length)
    engine.admission.check_report(report, measured=False)
    await engine.work.in_thread(engine.snapshots.check, report)

    def begin() -> IncomingSnapshot:
        engine.store.spool.require_space(blob.length)
        return IncomingSnapshot(engine, engine.store.spool.draft(), blob, report)

    return await engine.work.beside(begin)


async def take_report(engine: Engine, report: Report) -> None:
    """Keep a client's word on a published ciphertext sum."""
    engine.presence.heard(report.client_id)
    engine.admission.check_report(report, measured=True)
    await engine.work.uninterrupted(_keep_report(engine, report))


async def _keep_report(engine: Engine, report: Report) -> None:
    async with engine.lock:
        await engine.apply(Reported(now=engine.clock.now(), report=report))
    engine.failpoint("report.ack")
    engine.work.background(engine.advance())


async def update_status(
    engine: Engine, run: str, round_id: RoundId, client_id: ClientId, digest: bytes
) -> UploadStatus:
    """Return how much of an upload is durable."""
    engine.admission.check_run(run)
    engine.admission.check_member(client_id)
    engine.presence.heard(client_id)
    counted = await _counted(engine, round_id, client_id)
    if counted is not None and counted.digest == digest:
        return UploadStatus(offset=counted.length, accepted=True)
    offset = await engine.work.beside(engine.store.spool.uploaded, round_id, client_id, digest)
    return UploadStatus(offset=offset, accepted=False)


async def _is_duplicate(engine: Engine, header: UploadHeader) -> bool:
    """Tell whether the same update is counted, in this round or an earlier one.

    Raises:
        RoundError: when the round does not take the update.
    """
    try:
        _, changes = step(engine.state, Uploaded(now=engine.clock.now(), header=header))
    except RoundClosed:
        counted = await _counted(engine, header.round, header.client_id)
        if counted is None:
            raise
        if counted.digest != header.digest:
            raise ConflictingUpload(
                f"Another update of this client is counted in round {header.round}."
            ) from None
        return True
    return any(isinstance(change, AlreadyCounted) for change in changes)


async def _counted(engine: Engine, round_id: RoundId, client_id: ClientId) -> UploadHeader | None:
    """Return a client's counted update of a round; the one in progress is in memory."""
    round_ = engine.state.current
    if round_ is not None and round_.number == round_id:
        return round_.accepted.get(client_id)
    return await engine.work.in_thread(engine.store.counted, round_id, client_id)


def _check_statement(engine: Engine, statement: RevealStatement) -> None:
    round_ = engine.state.current
    if round_ is None or round_.phase != "revealing" or round_.number != statement.round:
        raise RoundClosed(f"Round {statement.round} is not being revealed.")
    # A refusal is about the whole list, what is published about that without paused cells.
    paused = () if statement.refused else statement.paused
    left_out = engine.state.rules.partition.members_of(paused)
    engine.admission.check_statement(statement, round_.manifest_digest(engine.run, left_out))


def _check_follows(engine: Engine, statement: RevealStatement) -> None:
    """Refuse a statement that does not follow the last one on a published round.

    Raises:
        RefusedError: two folders of the key authority speak, or it forgot what it said.
    """
    record = engine.store.published(engine.state.published)
    known = None if record is None else record.statement
    if known is None or statement.sequence > known.sequence + 1:
        return
    if statement.sequence <= known.sequence or statement.previous != known.digest():
        raise AuthorityIsOld(
            f"Statement {statement.sequence} of the key authority does not follow "
            f"{known.sequence}, on round {known.round}.",
            remedy="Run the newest folder of the authority, and only that one; where it is lost, "
            "restore the newest backup (`fedrec keys restore`).",
        )


def _was_published(engine: Engine, statement: RevealStatement) -> bool:
    """Tell whether a statement repeats one that is published: its receipt was lost."""
    engine.admission.check_run(statement.run)
    record = engine.store.published(statement.round)
    return record is not None and record.statement == statement
