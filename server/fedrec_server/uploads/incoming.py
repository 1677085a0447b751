"""Receive byte strings that peers send in chunks, in turns and in bounded memory.

Only one byte string of a client is received at a time, and the total is limited.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fedrec.ids import ClientId
from fedrec.wire.chunks import CHUNK_BYTES, Assembler, Blob, ByteChunk
from fedrec_server.run.freed_memory import trim_heap
from fedrec_server.run.live_run import LiveRun
from fedrec_server.run.work import Work
from fedrec_server.store.durable_files import Draft, DurabilityLost

BYTES_IN_FLIGHT = 256 << 20
STREAM_BYTES = 4 << 20
"""Memory that gRPC and the coordinator buffer for one stream, whatever its length.

The rest is on disk.
"""
AHEAD_STREAMS = 4
"""Up to this number of open streams, each is read while its earlier bytes are written.

More streams keep the processor and the disk busy anyway.
"""
TRIM_AFTER_BYTES = 64 << 20
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
    ) -> bool:
        """Receive the rest of a stream, and count it to the end even if the peer hangs up.

        While some chunks are hashed and written, others arrive.

        Args:
            ahead: returns whether to read on while chunks are being written.

        Returns:
            Whether it was counted before.

        Raises:
            CorruptUpload: if bytes are missing or differ from the announced ones.
            FedrecError: if a chunk is out of place, or the round does not accept the update.
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
        counting = self._busy = self._run.work.background(self._finish())
        return await asyncio.shield(counting)

    async def _write(self) -> None:
        """Hash and write the waiting chunks, and those that arrive meanwhile."""
        while self._waiting:
            chunks, self._waiting = self._waiting, []
            await self._run.work.beside(self._add_all, chunks)
            del chunks

    async def _written(self) -> None:
        """Wait for the chunks that are being written.

        Raises:
            FedrecError: if a chunk is out of place.
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
                    return await incoming.take(chunks, ahead=self._few_are_open)
                finally:
                    self._n_open -= 1
        finally:
            await incoming.leave()
            self._n_taken += incoming.length
            if self._n_taken >= TRIM_AFTER_BYTES:
                self._n_taken = 0
                self._work.background(self._work.beside(trim_heap))

    def _few_are_open(self) -> bool:
        return self._n_open <= AHEAD_STREAMS
