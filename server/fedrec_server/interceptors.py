"""What every call passes: token, deadline, limits; and how errors leave.

A peer gets the public sentence of an error; what else there is to know goes to the log under
the incident id that the peer got too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc
import structlog

from fedrec.errors import FedrecError, ProtocolError, Unauthenticated, Unreachable
from fedrec.wire.grpc_channel import is_loopback
from fedrec.wire.status import new_incident, to_details
from fedrec_server.limits import StreamLimits, heard_in_time
from fedrec_server.store.spool import DurabilityLost
from fedrec_server.tokens import Token

__all__ = ["Guard"]

ADMIN = "/fedrec.wire.v1.Admin/"
HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection."
SUMS = frozenset(
    f"/fedrec.wire.v1.Coordinator/{name}" for name in ("FetchContribution", "FetchSum")
)
"""Who opens sums fetches these: members, or the key authority, which has the operators' token."""
ENDLESS = ("/fedrec.wire.v1.Admin/WatchEvents",)
CALL_SECONDS = 15 * 60.0
STREAM_SECONDS = 3 * 3600.0
"""Streams get the time that a slow line needs; they are cut sooner when they are silent."""

Message = Any
Context = Any
"""gRPC's objects are untyped."""


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    """Checks calls before a method sees them and translates what it raises.

    Args:
        clients: the clients' token; None on plaintext loopback without one.
        operators: the operators' token; without one the admin service answers on loopback only.
        limits: of incoming streams.
        stopping: tells whether the coordinator takes no more uploads.
        authority_reveals: whether no member has any use for others' contributions.
    """

    def __init__(
        self,
        *,
        clients: Token | None,
        operators: Token | None,
        limits: StreamLimits,
        stopping: Callable[[], bool],
        authority_reveals: bool = False,
    ) -> None:
        self._clients = clients
        self._operators = operators
        self._limits = limits
        self._stopping = stopping
        self._for_operators = SUMS if authority_reveals else frozenset()

    async def intercept_service(
        self, continuation: Callable[[Message], Awaitable[Message]], details: Message
    ) -> Message:
        """Put the checks around a method's handler."""
        handler = await continuation(details)
        method: str = details.method
        if handler is None or method.startswith(HEALTH):
            return handler
        if handler.response_streaming:
            return self._streaming(handler, method)
        return self._answering(handler, method)

    def _answering(self, handler: Message, method: str) -> Message:
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary

        async def limited(request: Message, context: Context) -> Message:
            self._check(method, context, streams=handler.request_streaming)
            if not handler.request_streaming:
                return await inner(request, context)
            if self._stopping():
                raise Unreachable("The coordinator is stopping.")
            async with self._limits.stream(context.peer()):
                return await inner(heard_in_time(aiter(request)), context)

        async def guarded(request: Message, context: Context) -> Message:
            try:
                return await limited(request, context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await _abort(error, method, context)

        kind = grpc.unary_unary_rpc_method_handler
        if handler.request_streaming:
            kind = grpc.stream_unary_rpc_method_handler
        return kind(guarded, handler.request_deserializer, handler.response_serializer)

    def _streaming(self, handler: Message, method: str) -> Message:
        inner = handler.stream_stream if handler.request_streaming else handler.unary_stream

        async def guarded(request: Message, context: Context) -> AsyncIterator[Message]:
            try:
                self._check(method, context, streams=True)
                async for part in inner(request, context):
                    yield part
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await _abort(error, method, context)

        kind = grpc.unary_stream_rpc_method_handler
        if handler.request_streaming:
            kind = grpc.stream_stream_rpc_method_handler
        return kind(guarded, handler.request_deserializer, handler.response_serializer)

    def _check(self, method: str, context: Context, *, streams: bool) -> None:
        self._check_token(method, context)
        if method in ENDLESS or method.startswith(REFLECTION):
            return
        most = STREAM_SECONDS if streams else CALL_SECONDS
        left = context.time_remaining()
        if left is None or left > most:
            raise ProtocolError(f"Every call needs a deadline, here of at most {most:.0f} seconds.")

    def _check_token(self, method: str, context: Context) -> None:
        presented = _bearer(context)
        is_operators = self._operators is not None and self._operators.matches(presented)
        if method.startswith(ADMIN) or method in self._for_operators:
            if not is_operators:
                self._check_local(presented, context)
            return
        is_client = self._clients is None or self._clients.matches(presented)
        # A key authority that opens sums asks for tasks as clients do, with its own token.
        if not (is_client or (self._for_operators and is_operators)):
            raise Unauthenticated("The access token is missing or wrong.")

    def _check_local(self, presented: str, context: Context) -> None:
        """Let local callers in where there is no operators' token, but no clients."""
        if self._operators is not None:
            raise Unauthenticated("The access token is missing or wrong.")
        is_client = bool(presented) and (self._clients is None or self._clients.matches(presented))
        if is_client or not is_loopback(_address(context.peer())):
            raise Unauthenticated(
                "The admin service has no token (coordinator.admin_token_file) and answers "
                "local callers without a token only."
            )


def _bearer(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            return token if scheme.lower() == "bearer" else ""
    return ""


def _address(peer: str) -> str:
    """Return host and port of gRPC's `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`."""
    family, _, address = unquote(peer).partition(":")
    return address if family in ("ipv4", "ipv6") else peer


async def _abort(error: Exception, method: str, context: Context) -> NoReturn:
    if isinstance(error, DurabilityLost):
        error = Unreachable("The store failed; the coordinator stops.")
    incident = new_incident()
    log = structlog.get_logger().bind(method=method.rpartition("/")[2], incident=incident)
    if isinstance(error, FedrecError):
        log.info("call refused", code=error.code, why=error.message)
    else:
        log.error("call failed", exc_info=error)
    code, message, metadata = to_details(error, incident=incident)
    await context.abort(code, message, metadata)
    raise error
