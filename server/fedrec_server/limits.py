"""How many streams may be open at once, and how long one may be silent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from fedrec.errors import CorruptUpload, TooLarge

__all__ = ["StreamLimits", "heard_in_time"]

BYTES_IN_FLIGHT = 256 << 20
STREAM_BYTES = 4 << 20
"""What gRPC and the coordinator buffer for one stream, whatever its length: the rest is on disk."""
STREAMS_OF_PEER = 8
SILENT_SECONDS = 30.0

T = TypeVar("T")


class StreamLimits:
    """Bounds the memory of incoming streams, together and for each connection."""

    def __init__(
        self, *, bytes_in_flight: int = BYTES_IN_FLIGHT, streams_of_peer: int = STREAMS_OF_PEER
    ) -> None:
        self._free = asyncio.Semaphore(max(1, bytes_in_flight // STREAM_BYTES))
        self._streams_of_peer = streams_of_peer
        self._peers: Counter[str] = Counter()

    @asynccontextmanager
    async def stream(self, peer: str) -> AsyncIterator[None]:
        """Hold a place for one stream of a peer, waiting while all are taken.

        Raises:
            TooLarge: when the peer has too many open already.
        """
        if self._peers[peer] >= self._streams_of_peer:
            raise TooLarge(
                f"A connection may have {self._streams_of_peer} uploads open at once.",
                remedy="Wait for one of them to end.",
            )
        self._peers[peer] += 1
        try:
            async with self._free:
                yield
        finally:
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]


async def heard_in_time(
    parts: AsyncIterator[T], *, silent_seconds: float = SILENT_SECONDS
) -> AsyncIterator[T]:
    """Yield a stream's messages and cut it when it is silent for too long.

    Raises:
        CorruptUpload: the upload can go on in another call.
    """
    while True:
        try:
            async with asyncio.timeout(silent_seconds):
                part = await anext(parts)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise CorruptUpload(
                f"The stream was silent for {silent_seconds:.0f} seconds."
            ) from None
        yield part
