"""Whose stream is taken in now: one of a client at a time, and so many in all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fedrec.ids import ClientId
from fedrec.wire.chunks import Chunk
from fedrec_server.uploads.incoming import Incoming

__all__ = ["StreamTurns"]

BYTES_IN_FLIGHT = 256 << 20
STREAM_BYTES = 4 << 20
"""What gRPC and the coordinator buffer for one stream, whatever its length: the rest is on disk."""
AHEAD_STREAMS = 4
"""While no more are open, each is read while its earlier bytes are written; more keep the processor
and the disk busy without."""


class StreamTurns:
    """A lock for each client, and places that bound the memory of verified streams.

    Attributes:
        places: given in the order in which they are asked for.
    """

    def __init__(self, *, bytes_in_flight: int = BYTES_IN_FLIGHT) -> None:
        self.places = asyncio.Semaphore(max(1, bytes_in_flight // STREAM_BYTES))
        self._n_open = 0
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

    async def take(self, incoming: Incoming, chunks: AsyncIterator[Chunk]) -> bool:
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

    def _few_are_open(self) -> bool:
        return self._n_open <= AHEAD_STREAMS
