"""Clients' updates of the round in progress: received, hashed, synced, counted, acknowledged.

One byte string of a client is taken in at a time, and so many in all. What waits together shares a
transaction. A commit waits for the disk, whatever it commits: while one goes on, more gathers for
the next. Each is refused for itself; a commit that fails refuses all that it was for.
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
"""What gRPC and the coordinator buffer for one stream, whatever its length: the rest is on disk."""
AHEAD_STREAMS = 4
"""While no more are open, each is read while its earlier bytes are written; more keep the processor
and the disk busy without."""
GIVE_BACK_BYTES = 64 << 20
"""After so much was taken in, what was freed of it goes back to the system."""
WAITING_BYTES = CHUNK_BYTES
"""What a stream brings while its earlier bytes are written; then it is not read further."""


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
        """Take the rest of a stream: while some chunks are hashed and written, others arrive.

        Args:
            ahead: whether they may now; else the next one is awaited when these are written.
        """
        async for chunk in chunks:
            self._waiting.append(chunk)
            full = sum(len(chunk.data) for chunk in self._waiting) >= WAITING_BYTES
            if full or self._busy is None or self._busy.done():
                await self._written()
                if self._waiting:
                    self._busy = self._run.work.background(self._write())
            # Not to be held while the next one arrives.
            del chunk
            if not ahead():
                await self._written()
        await self._written()

    async def _write(self) -> None:
        """Hash and write what waits, and what comes meanwhile."""
        while self._waiting:
            chunks, self._waiting = self._waiting, []
            await self._run.work.beside(self._add_all, chunks)
            del chunks

    async def _written(self) -> None:
        """Wait for what is being written.

        Raises:
            FedrecError: when it does not fit.
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
        """Check and count what arrived, to the end even where the peer hangs up in between.

        Returns:
            True where it was counted before.

        Raises:
            CorruptUpload: when bytes are missing or are not the announced ones.
            FedrecError: when the round does not take it.
        """
        self._busy = self._run.work.background(self._finish())
        return bool(await asyncio.shield(self._busy))

    async def _finish(self) -> bool:
        try:
            self._assembler.finish()
            duplicate = await self._count()
        except DurabilityLost:
            # Whether it is counted is not known: the next start finds out.
            raise
        except Exception:
            # Whole but refused is of no use; a torn upload may go on later.
            if self._assembler.complete:
                await self._refused()
            raise
        self._run.advance_soon()
        return duplicate

    async def _synced(self) -> None:
        """Make the draft durable; it takes longest, so uploads do it side by side."""
        await self._run.work.beside(self._draft.sync)

    async def leave(self) -> None:
        """Close the draft of a call that ended, in whatever way."""
        if self._busy is None or self._busy.done():
            self._draft.close()
        else:
            await self._run.work.uninterrupted(self._close_later())

    async def _close_later(self) -> None:
        # Closed while a thread still uses it, its number would name another file.
        if self._busy is not None:
            await asyncio.wait((self._busy,))
        self._draft.close()

    @property
    def length(self) -> int:
        """How many bytes were announced."""
        return self._blob.length

    @abstractmethod
    async def _count(self) -> bool:
        """Make it durable and tell the state machine; True when it was counted before."""

    async def _refused(self) -> None:
        await self._run.work.beside(self._draft.discard)


class StreamTurns:
    """A lock for each client, and places that bound the memory of verified streams.

    Attributes:
        places: given in the order in which they are asked for.
    """

    def __init__(self, work: Work, *, bytes_in_flight: int = BYTES_IN_FLIGHT) -> None:
        self._work = work
        self.places = asyncio.Semaphore(max(1, bytes_in_flight // STREAM_BYTES))
        self._n_open, self._n_taken = 0, 0
        self._locks: dict[ClientId, asyncio.Lock] = {}
        self._users: Counter[ClientId] = Counter()

    @asynccontextmanager
    async def turn(self, client_id: ClientId) -> AsyncIterator[None]:
        """Wait for a client's turn and hold it; forgotten when nobody holds or awaits it."""
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
        """Take in what follows a verified header, in the client's turn.

        It waits for a place while all are taken.

        Returns:
            True where it was counted before.
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
"""Of two, each kept what uploads of the busiest moment took."""


def give_memory_back() -> None:
    """Have every byte string of 1 MiB or more returned to the system when it is freed.

    By default glibc keeps what was freed in an arena of each thread, and after the first long array
    that is freed it does so for arrays up to 32 MiB: with updates of 18.6 MB a third of the
    coordinator's resident memory was of that kind.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LONG_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


def give_back_freed() -> None:
    """Return the free pages between what is in use.

    What gRPC buffers of uploads lies in short strings, which glibc keeps once they are freed.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., object] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


What = TypeVar("What")


@dataclass(slots=True, kw_only=True, eq=False)
class _Arrival(Generic[What]):
    """Something that waits; `answer` tells whether it was taken before."""

    what: What
    answer: asyncio.Future[bool]
    duplicate: bool = False
    refusal: Exception | None = None


class GroupCommit(ABC, Generic[What]):
    """Takes what arrives into the round's collection and commits that it is there."""

    def __init__(self, run: LiveRun, collection: Collection) -> None:
        self._run = run
        self._collection = collection
        self._arrived: list[_Arrival[What]] = []

    async def commit(self, what: What) -> bool:
        """Return once it is durable; True when it was before.

        Raises:
            FedrecError: when it is not taken.
        """
        run, answer = self._run, asyncio.get_running_loop().create_future()
        self._arrived.append(_Arrival(what=what, answer=answer))
        async with run.lock:
            # The holder of the lock before may have taken this one along.
            if answer.done():
                return bool(answer.result())
            group, self._arrived = self._arrived, []
            failure: Exception | None = None
            try:
                await run.commit_what(partial(self._take_all, group))
            except Exception as error:
                # They are in the collection but not in the store.
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
        """Take the group in and return what to commit; the lock is held."""
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
                # Nobody else pays for one that breaks the collection; it may be half changed, so it
                # is made again from what is durable.
                self._collection.forget()
                arrival.refusal = error
        return state, tuple(changes)

    @abstractmethod
    def _take(self, state: State, what: What) -> tuple[State, tuple[Change, ...]]:
        """Return the state with it and what to commit; in the store's thread.

        Raises:
            FedrecError: when it does not fit; nothing is changed.
        """

    async def _failure_of(self, error: Exception) -> Exception:
        """Return what to tell everybody whose commit failed."""
        return error

    def _decided(self) -> None:
        """Do what follows from a group; the lock is held."""


Update = tuple[UploadHeader, Callable[[], BinaryIO]]
"""An admitted header, and what opens its bytes; called in the store's thread."""


class Updates(GroupCommit[Update]):
    """Takes in updates and adds them to the sum; those that wait together are committed together.

    Args:
        turns: two streams into one draft would destroy each other.
    """

    def __init__(
        self, run: LiveRun, collection: Collection, admission: Admission, turns: StreamTurns
    ) -> None:
        super().__init__(run, collection)
        self._admission = admission
        self._turns = turns

    async def receive(self, header: UploadHeader, chunks: AsyncIterator[ByteChunk]) -> bool:
        """Take in an update once it is durable and counted; True when it was before.

        Raises:
            FedrecError: before anything is written where the header is refused, else when the
                bytes are not the announced ones or the round does not take them.
        """
        run = self._run
        self._admission.check_header(header)
        async with self._turns.turn(header.client_id):
            run.presence.heard(header.client_id)
            if await self.is_duplicate(header):
                return True
            # Begun, or gone on with: what an earlier try left is read and hashed.
            incoming = await run.work.beside(IncomingUpdate, run, self, header)
            return await self._turns.take(incoming, chunks)

    async def status(
        self, name: str, round_id: RoundId, client_id: ClientId, digest: bytes
    ) -> UploadStatus:
        """Return how much of an upload is durable.

        Args:
            name: of the run.
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
        """Tell whether the same update is counted, in this round or an earlier one.

        Raises:
            RoundError: when the round does not take the update.
        """
        try:
            return taken(self._run.state, header)[1]
        except RoundClosed:
            counted = await self.counted(header.round, header.client_id)
            if counted is None:
                raise
            if counted.digest != header.digest:
                raise ConflictingUpload(
                    f"Another update of this client is counted in round {header.round}."
                ) from None
            return True

    async def counted(self, round_id: RoundId, client_id: ClientId) -> UploadHeader | None:
        """Return a client's counted update of a round; the one in progress is in memory."""
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
        """Abandon the round where its sum cannot be made any more, and return what to tell."""
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
    """One client's update of the round in progress; an interrupted one can go on later."""

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
        # Synced and durable under its name before its turn to be counted, so that nobody waits for
        # this disk access and only what counts goes one after another: the client's turn keeps
        # others from the name, and without a row the file is an orphan.
        try:
            await run.work.beside(self._draft.keep, self._name)
        except FileNotFoundError:
            # The round ended meanwhile and took its unfinished uploads along.
            raise RoundClosed(f"Round {header.round} is over.") from None
        self._kept = True
        duplicate = await self._updates.commit((header, self._draft.opened))
        run.failpoint("update.ack")
        return duplicate

    async def _refused(self) -> None:
        await super()._refused()
        run, header = self._run, self._header
        # Whatever the error says, no row may lose its file.
        if self._kept and await self._updates.counted(header.round, header.client_id) is None:
            await run.work.beside(run.store.spool.delete, self._name)
