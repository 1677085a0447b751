"""Records all traffic of the coordinator, for `fedrec audit --recording`.

The recorder precedes all other interceptors. It keeps bytes as they arrive and leave, before
anything parses them. It never stops a call: if its file is full or the disk refuses writes,
recording ends with a log line. Callers are not recorded.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import structlog

from fedrec.wire.recording import SUFFIX, Frame, FrameWriter, Kind
from fedrec_server.service.call_guard import HEALTH

Message = Any
"""gRPC's objects are untyped."""


class WireRecorder(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    """Appends every request, response and part of a stream to a new file.

    Args:
        folder: the folder of the file. Each start of a coordinator creates its own file.
        max_bytes: the largest size of the file.

    Raises:
        StorageError: if the file cannot be created.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        self._writer = FrameWriter(folder / f"wire-{stamp}{SUFFIX}", max_bytes=max_bytes)
        self._calls = itertools.count(1)
        structlog.get_logger().info("wire is recorded", path=str(self._writer.path))

    async def intercept_service(
        self, continuation: Callable[[Message], Awaitable[Message]], details: Message
    ) -> Message:
        """Put the recorder where a call's bytes become messages, and messages become bytes."""
        handler = await continuation(details)
        if handler is None or details.method.startswith(HEALTH) or not self._writer.is_open:
            return handler
        call, method = next(self._calls), str(details.method)
        reads, writes = handler.request_deserializer, handler.response_serializer

        def read(raw: bytes) -> Message:
            self._keep(call, method, "request", raw)
            return raw if reads is None else reads(raw)

        def write(message: Message) -> bytes:
            raw: bytes = message if writes is None else writes(message)
            self._keep(call, method, "response", raw)
            return raw

        return _like(handler, read, write)

    def close(self) -> None:
        """Write the buffered bytes."""
        try:
            self._writer.close()
        except OSError as error:
            structlog.get_logger().warning("wire is not recorded any more", why=str(error))

    def _keep(self, call: int, method: str, kind: Kind, raw: bytes) -> None:
        if not self._writer.is_open:
            return
        frame = Frame(call=call, method=method, kind=kind, unix_seconds=time.time(), message=raw)
        why = "the recording has reached its maximum size"
        try:
            if self._writer.append(frame):
                return
        except OSError as error:
            why = str(error)
            self.close()
        structlog.get_logger().warning("wire is not recorded any more", why=why)


def _like(
    handler: Message, read: Callable[[bytes], Message], write: Callable[[Message], bytes]
) -> Message:
    """Return a handler of the same kind with other serialisers."""
    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(handler.stream_stream, read, write)
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(handler.stream_unary, read, write)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(handler.unary_stream, read, write)
    return grpc.unary_unary_rpc_method_handler(handler.unary_unary, read, write)
