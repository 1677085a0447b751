"""Checks for every call: limits of calls and streams, allowed callers, and translated errors.

A silent stream costs next to nothing. Only streams with a verified header take one of the slots
that bound memory, and each client has one at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import grpc

from fedrec.errors import (
    CoordinatorStopping,
    CorruptUpload,
    NotInRoster,
    ProtocolError,
    TooLarge,
    Unreachable,
)
from fedrec.wire.chunks import ByteChunk, part_reader
from fedrec.wire.grpc_calls import to_details
from fedrec.wire.v1 import admin_pb2, model_pb2, update_pb2
from fedrec_server.service.callers import REFLECTION, Caller, Callers, Context, Message, RefusalLog
from fedrec_server.store.durable_files import DurabilityLost

STREAMS_OF_CALLER = 20
HEADER_SECONDS = 5.0
"""Limit of a stream's first message, which is small and announces the stream's content."""
SILENT_SECONDS = 30.0
SLOWEST_BYTES = 16 << 10
"""Bytes a second, on average over `WINDOW_SECONDS` of waiting for the sender."""
WINDOW_SECONDS = 60.0


class StreamLimits:
    """Bounds the streams of each caller over all its connections."""

    def __init__(self, *, streams_of_caller: int = STREAMS_OF_CALLER) -> None:
        self._most = streams_of_caller
        self._open: Counter[str] = Counter()

    @asynccontextmanager
    async def stream(self, caller: str) -> AsyncIterator[None]:
        """Count one stream of a caller while it is open.

        Raises:
            TooLarge: if the caller already has too many open.
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
    """Yield a stream's messages. Cut the stream if it is silent for too long, or too slow.

    Only time spent waiting for the sender counts.

    Args:
        first_seconds: the longest wait for the first message.
        silent_seconds: the longest wait for each further one.
        slowest_bytes: the least number of bytes a second, on average over a window.
        window_seconds: the waiting time after which the average is checked.

    Raises:
        CorruptUpload: the upload can resume in another call.
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
        # Releases up to a megabyte before the next message arrives.
        del part


async def next_part(parts: AsyncIterator[Message], kind: str) -> Message:
    """Return the next part of a stream, which must be of this kind.

    Raises:
        ProtocolError: if the part is of a different kind, or the stream has ended.
    """
    try:
        return _expect(await anext(parts), kind)
    except StopAsyncIteration:
        raise ProtocolError(f"The stream ended before its {kind}.") from None


async def chunks_of(parts: AsyncIterator[Message | ByteChunk]) -> AsyncIterator[ByteChunk]:
    """Yield the rest of a stream, which must consist of chunks.

    Raises:
        ProtocolError: if a part is not a chunk.
    """
    async for part in parts:
        if not isinstance(part, ByteChunk):
            _expect(part, "chunk")
        yield part
        # Release it before the next one arrives.
        del part


def _expect(part: Message, kind: str) -> Message:
    """Return the content of a part, which must be of this kind.

    Raises:
        ProtocolError: if the part is of a different kind.
    """
    found = "chunk" if isinstance(part, ByteChunk) else part.WhichOneof("part")
    if found != kind:
        raise ProtocolError(f"The stream has {found or 'nothing'}, expected {kind}.")
    return getattr(part, kind)


HEALTH = "/grpc.health.v1.Health/"
ENDLESS = ("/fedrec.wire.v1.Admin/WatchEvents",)
CALL_SECONDS = 15 * 60.0
STREAM_SECONDS = 3 * 3600.0
"""Deadline of streams: the time that a slow line needs. Silent streams are cut sooner."""

Read = Callable[[bytes], Message]
_STREAMS: dict[str, type[Message]] = {
    "/fedrec.wire.v1.Coordinator/SubmitUpdate": update_pb2.UploadPart,
    "/fedrec.wire.v1.Coordinator/SubmitReveal": model_pb2.RevealPart,
    "/fedrec.wire.v1.Coordinator/SubmitSnapshot": model_pb2.ReportPart,
    "/fedrec.wire.v1.Admin/InstallEpoch": admin_pb2.EpochPart,
}


class CallGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    """Checks calls before a method sees them, and translates errors.

    No part of a message is read before its sender is known.

    Args:
        callers: identifies the caller.
        limits: the limits of incoming streams.
        stopping: returns whether the coordinator accepts no more calls.
        on_refused: called with the method and the error of each refused call.
    """

    def __init__(
        self,
        *,
        callers: Callers,
        limits: StreamLimits,
        stopping: Callable[[], bool],
        on_refused: Callable[[str, Exception], None] | None = None,
    ) -> None:
        self._on_refused = on_refused
        self._callers = callers
        self._limits = limits
        self._stopping = stopping
        self._refusals = RefusalLog(time.monotonic)
        self._guarded: dict[str, tuple[Message, Message]] = {}

    async def intercept_service(
        self, continuation: Callable[[Message], Awaitable[Message]], details: Message
    ) -> Message:
        """Put the checks around a method's handler."""
        handler = await continuation(details)
        method: str = details.method
        if handler is None or method.startswith(HEALTH):
            return handler
        # Created once for each method: ten thousand waiting clients call the same one.
        known = self._guarded.get(method)
        if known is None or known[0] is not handler:
            make = self._streaming if handler.response_streaming else self._answering
            known = self._guarded[method] = (handler, make(handler, method))
        return known[1]

    def _answering(self, handler: Message, method: str) -> Message:
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
        read = handler.request_deserializer
        if handler.request_streaming:
            read = part_reader(_STREAMS[method])

        async def guarded(request: Message, context: Context) -> Message:
            try:
                caller = self._check(method, context, streams=handler.request_streaming)
                if not handler.request_streaming:
                    return await inner(_read(request, read, caller), context)
                async with self._limits.stream(caller.client_id or context.peer()):
                    parts = _parts(heard_in_time(_received(context)), read, caller)
                    return await inner(parts, context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await self._abort(error, method, context)

        kind = grpc.unary_unary_rpc_method_handler
        if handler.request_streaming:
            kind = grpc.stream_unary_rpc_method_handler
        return kind(guarded, None, handler.response_serializer)

    def _streaming(self, handler: Message, method: str) -> Message:
        inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
        read, write = handler.request_deserializer, handler.response_serializer

        def written(part: Message | bytes) -> bytes:
            """Return a part's bytes. A part with a chunk is returned as its bytes."""
            return part if isinstance(part, bytes) else write(part)

        async def guarded(request: Message, context: Context) -> AsyncIterator[Message]:
            try:
                caller = self._check(method, context, streams=True)
                asked = (_parts if handler.request_streaming else _read)(request, read, caller)
                async for part in inner(asked, context):
                    yield part
                    del part
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await self._abort(error, method, context)

        kind = grpc.unary_stream_rpc_method_handler
        if handler.request_streaming:
            kind = grpc.stream_stream_rpc_method_handler
        return kind(guarded, None, written)

    async def _abort(self, error: Exception, method: str, context: Context) -> NoReturn:
        if self._on_refused is not None:
            self._on_refused(method, error)
        if isinstance(error, NotInRoster):
            # Tells a member of a later epoch that this coordinator is behind.
            error.epoch = self._callers.epoch
        if isinstance(error, DurabilityLost):
            error = Unreachable("The store failed, so the coordinator stops.")
        incident = self._refusals.tell(error, method, self._callers.name_of(context))
        code, message, metadata = to_details(error, incident=incident)
        await context.abort(code, message, metadata)
        raise error

    def _check(self, method: str, context: Context, *, streams: bool) -> Caller:
        if self._stopping():
            raise CoordinatorStopping("It answers again after a restart.")
        caller = self._callers.of(context)
        self._callers.check(caller, method)
        if method in ENDLESS or method.startswith(REFLECTION):
            return caller
        most = STREAM_SECONDS if streams else CALL_SECONDS
        left = context.time_remaining()
        if left is None or left > most:
            raise ProtocolError(f"This call needs a deadline of at most {most:.0f} seconds.")
        return caller


def _read(raw: bytes, read: Read, caller: Caller) -> Message:
    try:
        message = read(raw)
    except Exception:
        raise ProtocolError("The message cannot be read.") from None
    if not isinstance(message, ByteChunk):
        caller.check_named(message)
    return message


async def _received(context: Context) -> AsyncIterator[bytes]:
    # gRPC's own iterator keeps a message until the next one has arrived.
    while (raw := await context.read()) is not grpc.aio.EOF:
        yield raw
        del raw


async def _parts(parts: AsyncIterator[bytes], read: Read, caller: Caller) -> AsyncIterator[Message]:
    async for raw in parts:
        yield _read(raw, read, caller)
        # Release it before the next one arrives.
        del raw
