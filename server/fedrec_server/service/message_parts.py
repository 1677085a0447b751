"""Reading streams whose messages are parts of one kind or another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fedrec.errors import ProtocolError
from fedrec.wire.chunks import Chunk

__all__ = ["chunks_of", "expect_part", "next_part"]

Message = Any
"""Generated messages are untyped."""


async def next_part(parts: AsyncIterator[Message], kind: str) -> Message:
    """Return the next part, which must be of a kind.

    Raises:
        ProtocolError: when it is of another, or the stream has ended.
    """
    try:
        return expect_part(await anext(parts), kind)
    except StopAsyncIteration:
        raise ProtocolError(f"The stream ended before its {kind}.") from None


def expect_part(part: Message, kind: str) -> Message:
    """Return the content of a part, which must be of a kind.

    Raises:
        ProtocolError: when it is of another.
    """
    found = "chunk" if isinstance(part, Chunk) else part.WhichOneof("part")
    if found != kind:
        raise ProtocolError(f"The stream holds {found or 'nothing'} where {kind} belongs.")
    return getattr(part, kind)


async def chunks_of(parts: AsyncIterator[Message | Chunk]) -> AsyncIterator[Chunk]:
    """Yield the rest of a stream, which must hold chunks alone.

    Raises:
        ProtocolError: when it holds something else.
    """
    async for part in parts:
        if not isinstance(part, Chunk):
            expect_part(part, "chunk")
        yield part
        # Not to be held while the next one arrives.
        del part
