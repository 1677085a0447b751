"""A byte string that a peer sends in chunks: received, hashed, synced, and only then counted.

One of a client is taken in at a time, and so many in all.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fedrec.ids import ClientId
from fedrec.wire.chunks import CHUNK_BYTES, Assembler, Blob, ByteChunk
from fedrec_server.run.live_run import LiveRun
from fedrec_server.run.work import Work
from fedrec_server.store.durable_files import Draft, DurabilityLost

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
