"""Clients' updates of the round in progress: received, hashed, synced, counted, acknowledged.

Only one byte string of a client is received at a time, and the total is limited. Updates that wait
together share a transaction, because a commit waits for the disk whatever its size. During one
commit, more updates gather for the next. Each update is checked on its own. If the commit fails,
all its updates are rejected.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Generic, TypeVar

from fedrec.errors import ConflictingUpload, DamagedFile, FedrecError, RoundClosed, StorageError
from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import CHUNK_BYTES, Assembler, Blob, ByteChunk
from fedrec.wire.messages import UploadHeader, UploadStatus
from fedrec_server.peers.admission import Admission
from fedrec_server.rounds.by_client import Counted
from fedrec_server.rounds.changes import AlreadyCounted, Change
from fedrec_server.rounds.collecting import taken
from fedrec_server.rounds.events import Uploaded
from fedrec_server.rounds.machine import step
from fedrec_server.rounds.state import State
from fedrec_server.run.live_run import LiveRun
from fedrec_server.run.work import Work
from fedrec_server.store.durable_files import Draft, DurabilityLost, update_name
from fedrec_server.uploads.round_sum import Collection

BYTES_IN_FLIGHT = 256 << 20
STREAM_BYTES = 4 << 20
"""Memory that gRPC and the coordinator buffer for one stream, whatever its length.

The rest is on disk.
"""
AHEAD_STREAMS = 4
"""Up to this number of open streams, each is read while its earlier bytes are written.

More streams keep the processor and the disk busy anyway.
"""
GIVE_BACK_BYTES = 64 << 20
"""After receiving this many bytes, return freed memory to the system."""
WAITING_BYTES = CHUNK_BYTES
"""Limit of the bytes that a stream brings while earlier ones are written, before reading pauses."""


class Incoming(ABC):
    """A byte string that a peer sends in chunks into a draft."""

    def __init__(self, run: LiveRun, draft: Draft, blob: Blob) -> None:
        self._run = run
        self._draft = draft
        self._blob = blob
        self._busy: asyncio.Task[Any] | None = None
        self._waiting: list[ByteChunk] = []
        self._assembler = Assembler(
            blob.length,
            blob.digest,
            max_bytes=blob.length,
            start=draft.size,
            prefix=(draft.read(),) if draft.size else (),
            sink=draft.append,
        )

    async def take(
        self, chunks: AsyncIterator[ByteChunk], *, ahead: Callable[[], bool] = lambda: True
    ) -> None:
        """Receive the rest of a stream. While some chunks are hashed and written, others arrive.

        Args:
            ahead: returns whether to read on while chunks are being written.
        """
        async for chunk in chunks:
            self._waiting.append(chunk)
            full = sum(len(chunk.data) for chunk in self._waiting) >= WAITING_BYTES
            if full or self._busy is None or self._busy.done():
                await self._written()
                if self._waiting:
                    self._busy = self._run.work.background(self._write())
            # Release it before the next one arrives.
            del chunk
            if not ahead():
                await self._written()
        await self._written()

    async def _write(self) -> None:
        """Hash and write the waiting chunks, and those that arrive meanwhile."""
        while self._waiting:
            chunks, self._waiting = self._waiting, []
            await self._run.work.beside(self._add_all, chunks)
            del chunks

    async def _written(self) -> None:
        """Wait for the chunks that are being written.

        Raises:
            FedrecError: when a chunk does not fit.
        """
        if self._busy is not None:
            await asyncio.shield(self._busy)

    def _add_all(self, chunks: Sequence[ByteChunk]) -> None:
        for chunk in chunks:
            if chunk.offset == 0 and self._draft.size:
                self._draft.restart()
                self._assembler = Assembler(
                    self._blob.length,
                    self._blob.digest,
                    max_bytes=self._blob.length,
                    sink=self._draft.append,
                )
            self._assembler.add(chunk.offset, chunk.data)

    async def finish(self) -> bool:
        """Check and count the received bytes, to the end even if the peer hangs up.

        Returns:
            Whether it was counted before.

        Raises:
            CorruptUpload: when bytes are missing or differ from the announced ones.
            FedrecError: when the round does not accept it.
        """
        self._busy = self._run.work.background(self._finish())
        return bool(await asyncio.shield(self._busy))

    async def _finish(self) -> bool:
        try:
            self._assembler.finish()
            duplicate = await self._count()
        except DurabilityLost:
            # It is unknown whether the update counts. The next start finds out.
            raise
        except Exception:
            # A complete but refused upload is useless. An interrupted one may resume later.
            if self._assembler.complete:
                await self._refused()
            raise
        self._run.advance_soon()
        return duplicate

    async def _synced(self) -> None:
        """Make the draft durable. This takes longest, so uploads do it in parallel."""
        await self._run.work.beside(self._draft.sync)

    async def leave(self) -> None:
        """Close the draft of a call that ended, however it ended."""
        if self._busy is None or self._busy.done():
            self._draft.close()
        else:
            await self._run.work.uninterrupted(self._close_later())

    async def _close_later(self) -> None:
        # If it closed while a thread still uses it, its descriptor could be another file's.
        if self._busy is not None:
            await asyncio.wait((self._busy,))
        self._draft.close()

    @property
    def length(self) -> int:
        """Return the announced number of bytes."""
        return self._blob.length

    @abstractmethod
    async def _count(self) -> bool:
        """Make it durable and tell the state machine. Return whether it was counted before."""

    async def _refused(self) -> None:
        await self._run.work.beside(self._draft.discard)


class StreamTurns:
    """A lock for each client, and slots that bound the memory of verified streams.

    Attributes:
        places: the slots, given in the order of requests.
    """

    def __init__(self, work: Work, *, bytes_in_flight: int = BYTES_IN_FLIGHT) -> None:
        self._work = work
        self.places = asyncio.Semaphore(max(1, bytes_in_flight // STREAM_BYTES))
        self._n_open, self._n_taken = 0, 0
        self._locks: dict[ClientId, asyncio.Lock] = {}
        self._users: Counter[ClientId] = Counter()

    @asynccontextmanager
    async def turn(self, client_id: ClientId) -> AsyncIterator[None]:
        """Wait for a client's turn and hold it. It is forgotten when no call holds or awaits it."""
        lock = self._locks.setdefault(client_id, asyncio.Lock())
        self._users[client_id] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[client_id] -= 1
            if not self._users[client_id]:
                del self._users[client_id], self._locks[client_id]

    async def take(self, incoming: Incoming, chunks: AsyncIterator[ByteChunk]) -> bool:
        """Receive what follows a verified header, in the client's turn.

        If all slots are taken, wait for one.

        Returns:
            Whether it was counted before.
        """
        try:
            async with self.places:
                self._n_open += 1
                try:
                    await incoming.take(chunks, ahead=self._few_are_open)
                    return await incoming.finish()
                finally:
                    self._n_open -= 1
        finally:
            await incoming.leave()
            self._n_taken += incoming.length
            if self._n_taken >= GIVE_BACK_BYTES:
                self._n_taken = 0
                self._work.background(self._work.beside(give_back_freed))

    def _few_are_open(self) -> bool:
        return self._n_open <= AHEAD_STREAMS


_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LONG_BYTES = 1 << 20
_ARENAS = 1
"""With two, each kept the memory of the busiest moment."""


def give_memory_back() -> None:
    """Return every freed byte string of 1 MiB or more to the system.

    By default glibc keeps freed memory in an arena of each thread. After the first long array is
    freed, it does so for arrays up to 32 MiB. With updates of 18.6 MB, a third of the coordinator's
    resident memory was of that kind.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LONG_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


def give_back_freed() -> None:
    """Return the free pages between used ones.

    gRPC buffers uploads in short strings, which glibc keeps once they are freed.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., object] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


What = TypeVar("What")


@dataclass(slots=True, kw_only=True, eq=False)
class _Arrival(Generic[What]):
    """A waiting item. `answer` becomes true if it was taken before."""

    what: What
    answer: asyncio.Future[bool]
    duplicate: bool = False
    refusal: Exception | None = None


class GroupCommit(ABC, Generic[What]):
    """Adds arrivals to the round's collection and commits them in groups."""

    def __init__(self, run: LiveRun, collection: Collection) -> None:
        self._run = run
        self._collection = collection
        self._arrived: list[_Arrival[What]] = []

    async def commit(self, what: What) -> bool:
        """Return once the item is durable. The result is true if it was durable before.

        Raises:
            FedrecError: when it is not accepted.
        """
        run, answer = self._run, asyncio.get_running_loop().create_future()
        self._arrived.append(_Arrival(what=what, answer=answer))
        async with run.lock:
            # The previous holder of the lock may have committed this item too.
            if answer.done():
                return bool(answer.result())
            group, self._arrived = self._arrived, []
            failure: Exception | None = None
            try:
                await run.commit_what(partial(self._take_all, group))
            except Exception as error:
                # The items are in the collection but not in the store.
                self._collection.forget()
                failure = await self._failure_of(error)
            for arrival in group:
                found = arrival.refusal or failure
                if found is None:
                    arrival.answer.set_result(arrival.duplicate)
                else:
                    arrival.answer.set_exception(found)
            self._decided()
        return bool(answer.result())

    def _take_all(self, group: list[_Arrival[What]]) -> tuple[State, tuple[Change, ...]]:
        """Take the whole group and return the changes to commit. The caller holds the lock."""
        state = self._run.state
        changes: list[Change] = []
        for arrival in group:
            try:
                state, found = self._take(state, arrival.what)
                arrival.duplicate = any(isinstance(change, AlreadyCounted) for change in found)
                changes += found
            except (StorageError, DurabilityLost):
                raise
            except FedrecError as error:
                arrival.refusal = error
            except Exception as error:
                # The other items must not suffer from one that breaks the collection. It may be
                # half changed, so it is rebuilt from the store.
                self._collection.forget()
                arrival.refusal = error
        return state, tuple(changes)

    @abstractmethod
    def _take(self, state: State, what: What) -> tuple[State, tuple[Change, ...]]:
        """Return the state with the item and the changes to commit. Runs in the store's thread.

        Raises:
            FedrecError: when it does not fit. The state is unchanged.
        """

    async def _failure_of(self, error: Exception) -> Exception:
        """Return the error for every item whose commit failed."""
        return error

    def _decided(self) -> None:
        """Do what follows from a group. The caller holds the lock."""


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
            FedrecError: when the header is refused, before anything is written. Also when the bytes
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
            RoundError: when the round does not accept the update.
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

    def _take(self, state: State, what: Update) -> tuple[State, tuple[Change, ...]]:
        header, opened = what
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
