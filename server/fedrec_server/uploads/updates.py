"""Clients' updates of the round in progress: received, hashed, synced, counted, acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import BinaryIO

from fedrec.errors import ConflictingUpload, DamagedFile, RoundClosed
from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import ByteChunk
from fedrec.wire.messages import UploadHeader, UploadStatus
from fedrec_server.peers.admission import Admission
from fedrec_server.rounds.by_client import Counted
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.collecting import taken
from fedrec_server.rounds.events import Uploaded
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State
from fedrec_server.run.live_run import LiveRun
from fedrec_server.store.durable_files import update_name
from fedrec_server.uploads.incoming import Incoming, StreamTurns
from fedrec_server.uploads.round_sum import Collection, GroupCommit

Update = tuple[UploadHeader, Callable[[], BinaryIO]]
"""An admitted header, and a function that opens its bytes in the store's thread."""


class Updates(GroupCommit[Update]):
    """Receives updates and adds them to the sum. Updates that wait together are committed together.

    Args:
        turns: keeps two streams from writing the same draft.
    """

    def __init__(
        self, run: LiveRun, collection: Collection, admission: Admission, turns: StreamTurns
    ) -> None:
        super().__init__(run, collection)
        self._admission = admission
        self._turns = turns

    async def receive(self, header: UploadHeader, chunks: AsyncIterator[ByteChunk]) -> bool:
        """Receive an update until it is durable and counted. Return whether it was counted before.

        Raises:
            FedrecError: if the header is refused, before anything is written. Also when the bytes
                differ from the announced ones, or the round does not accept them.
        """
        run = self._run
        self._admission.check_header(header)
        async with self._turns.turn(header.client_id):
            run.presence.heard(header.client_id)
            if await self.is_duplicate(header):
                return True
            # Begins or resumes: what an earlier attempt left is read and hashed.
            incoming = await run.work.beside(IncomingUpdate, run, self, header)
            return await self._turns.take(incoming, chunks)

    async def status(
        self, name: str, round_id: RoundId, client_id: ClientId, digest: bytes
    ) -> UploadStatus:
        """Return how much of an upload is durable.

        Args:
            name: the run's name.
        """
        run = self._run
        self._admission.check_run(name)
        self._admission.check_member(client_id)
        run.presence.heard(client_id)
        counted = await self.counted(round_id, client_id)
        if counted is not None and counted.digest == digest:
            return UploadStatus(offset=counted.length, accepted=True)
        offset = await run.work.beside(run.store.spool.uploaded, round_id, client_id, digest)
        return UploadStatus(offset=offset, accepted=False)

    async def is_duplicate(self, header: UploadHeader) -> bool:
        """Return whether the same update counts, in this round or an earlier one.

        Raises:
            RoundError: if the round does not accept the update.
        """
        try:
            return taken(self._run.state, header)[1]
        except RoundClosed:
            counted = await self.counted(header.round, header.client_id)
            if counted is None:
                raise
            if counted.digest != header.digest:
                raise ConflictingUpload(
                    f"Another update of this client already counts in round {header.round}."
                ) from None
            return True

    async def counted(self, round_id: RoundId, client_id: ClientId) -> UploadHeader | None:
        """Return a client's counted update of a round. The current round's is in memory."""
        run, round_ = self._run, self._run.state.current
        if round_ is not None and round_.number == round_id:
            return round_.accepted.get(client_id)
        return await run.work.in_thread(run.store.counted, round_id, client_id)

    def _take(self, state: State, item: Update) -> tuple[State, tuple[Change, ...]]:
        header, opened = item
        counted = state.current.accepted if state.current is not None else Counted()
        after, changes = step(state, Uploaded(now=self._run.clock.now(), header=header))
        if not any(isinstance(change, AlreadyCounted) for change in changes):
            with opened() as message:
                self._collection.add(counted, header, message)
        return after, changes

    async def _failure_of(self, error: Exception) -> Exception:
        """Abandon the round if its sum can no longer be computed. Return the error to report."""
        run = self._run
        if not isinstance(error, DamagedFile) or run.state.current is None:
            return error
        number = run.state.current.number
        try:
            await run.fail(number, "a stored update is damaged", error)
        except Exception as failure:
            return failure
        return RoundClosed(f"Round {number} was abandoned.")


class IncomingUpdate(Incoming):
    """One client's update of the round in progress. After an interruption it can resume."""

    def __init__(self, run: LiveRun, updates: Updates, header: UploadHeader) -> None:
        draft = run.store.spool.upload(header.round, header.client_id, header.blob)
        super().__init__(run, draft, header.blob)
        self._updates = updates
        self._header = header
        self._name = update_name(header.round, header.client_id)
        self._kept = False

    async def _count(self) -> bool:
        run, header = self._run, self._header
        if await self._updates.is_duplicate(header):
            await run.work.beside(self._draft.discard)
            return True
        # The update is synced and durable under its name before its turn to be counted. So updates
        # don't wait for this disk access, and only counting is sequential. The client's turn
        # reserves the name. Without a row, the file is an orphan.
        try:
            await run.work.beside(self._draft.keep, self._name)
        except FileNotFoundError:
            # The round has ended and deleted its unfinished uploads.
            raise RoundClosed(f"Round {header.round} is over.") from None
        self._kept = True
        duplicate = await self._updates.commit((header, self._draft.opened))
        run.failpoint("update.ack")
        return duplicate

    async def _refused(self) -> None:
        await super()._refused()
        run, header = self._run, self._header
        # Whatever the error is, no row may lose its file.
        if self._kept and await self._updates.counted(header.round, header.client_id) is None:
            await run.work.beside(run.store.spool.delete, self._name)
