"""Incoming streams: how many may be open, how long one may keep others waiting, of which parts.

A stream that says nothing costs next to nothing: only what is behind a verified header takes one of
the places that bound memory, and each client has one at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fedrec.errors import CorruptUpload, ProtocolError, TooLarge
from fedrec.wire.chunks import ByteChunk

Message = Any
"""Generated messages are untyped."""

STREAMS_OF_CALLER = 20
HEADER_SECONDS = 5.0
"""For the first message of a stream, which is small and says what the stream is."""
SILENT_SECONDS = 30.0
SLOWEST_BYTES = 16 << 10
"""A second, on average over `WINDOW_SECONDS` of waiting for the sender."""
WINDOW_SECONDS = 60.0


class StreamLimits:
    """Bounds the streams of each caller, whatever connections they come by."""

    def __init__(self, *, streams_of_caller: int = STREAMS_OF_CALLER) -> None:
        self._most = streams_of_caller
        self._open: Counter[str] = Counter()

    @asynccontextmanager
    async def stream(self, caller: str) -> AsyncIterator[None]:
        """Count one stream of a caller while it is open.

        Raises:
            TooLarge: when the caller has too many open already.
        """
        if self._open[caller] >= self._most:
            raise TooLarge(
                f"A client may have {self._most} uploads open at once.",
                remedy="Wait for one of them to end.",
            )
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]


async def heard_in_time(
    parts: AsyncIterator[bytes],
    *,
    first_seconds: float = HEADER_SECONDS,
    silent_seconds: float = SILENT_SECONDS,
    slowest_bytes: float = SLOWEST_BYTES,
    window_seconds: float = WINDOW_SECONDS,
) -> AsyncIterator[bytes]:
    """Yield a stream's messages and cut it when it is silent for too long, or too slow.

    Only the time that the sender takes counts.

    Args:
        first_seconds: for the first message.
        silent_seconds: for each further one.
        slowest_bytes: a second, on average over a window.
        window_seconds: after how much waiting the average is looked at.

    Raises:
        CorruptUpload: the upload can go on in another call.
    """
    now = asyncio.get_running_loop().time
    allowed, waited, heard = first_seconds, 0.0, 0
    while True:
        begun = now()
        try:
            async with asyncio.timeout(allowed):
                part = await anext(parts)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise CorruptUpload(f"The stream was silent for {allowed:.0f} seconds.") from None
        waited += now() - begun
        heard += len(part)
        if waited >= window_seconds:
            if heard < slowest_bytes * waited:
                raise CorruptUpload(
                    f"The stream brought {heard} bytes in {waited:.0f} seconds, expected at least "
                    f"{slowest_bytes:.0f} a second."
                )
            waited, heard = 0.0, 0
        allowed = silent_seconds
        yield part
        # A megabyte that is not to be held while the next one arrives.
        del part


async def next_part(parts: AsyncIterator[Message], kind: str) -> Message:
    """Return the next part, which must be of a kind.

    Raises:
        ProtocolError: when it is of another, or the stream has ended.
    """
    try:
        return _expect(await anext(parts), kind)
    except StopAsyncIteration:
        raise ProtocolError(f"The stream ended before its {kind}.") from None


async def chunks_of(parts: AsyncIterator[Message | ByteChunk]) -> AsyncIterator[ByteChunk]:
    """Yield the rest of a stream, which must hold chunks alone.

    Raises:
        ProtocolError: when it holds something else.
    """
    async for part in parts:
        if not isinstance(part, ByteChunk):
            _expect(part, "chunk")
        yield part
        # Not to be held while the next one arrives.
        del part


def _expect(part: Message, kind: str) -> Message:
    """Return the content of a part, which must be of a kind.

    Raises:
        ProtocolError: when it is of another.
    """
    found = "chunk" if isinstance(part, ByteChunk) else part.WhichOneof("part")
    if found != kind:
        raise ProtocolError(f"The stream holds {found or 'nothing'} where {kind} belongs.")
    return getattr(part, kind)
