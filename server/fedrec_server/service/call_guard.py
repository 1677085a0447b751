"""What every call passes: who calls, what that one may ask for, limits; how errors leave.

The handshake let in every holder of a certificate of the key authority's. Who that is now follows
from the roster in force, looked up at every call, so that a removed member is refused at its next
one, and never from what a message says.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import grpc
import structlog

from fedrec.errors import (
    CoordinatorStopping,
    FedrecError,
    InternalError,
    KeysError,
    NotInRoster,
    ProtocolError,
    RefusedError,
    Unreachable,
    WrongIdentity,
)
from fedrec.identity.certificates import is_invitation, key_of, name_of, split_certificates
from fedrec.identity.document import read_public
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId
from fedrec.wire.chunk_parts import part_reader
from fedrec.wire.chunks import ByteChunk
from fedrec.wire.grpc_calls import new_incident, to_details
from fedrec_server.service.streams import StreamLimits, heard_in_time
from fedrec_server.store.durable_files import DurabilityLost

ADMIN = "/fedrec.wire.v1.Admin/"
APPLY = "/fedrec.wire.v1.Coordinator/Apply"
REFLECTION = "/grpc.reflection."
SUMS = frozenset(
    f"/fedrec.wire.v1.Coordinator/{name}" for name in ("FetchContribution", "FetchSum")
)
"""The revealer fetches these, who opens sums, and nobody else."""
MAX_OPERATORS_BYTES = 1 << 20

Role = Literal["member", "revealer", "operator", "applicant"]
Message = Any
Context = Any
"""Generated messages and gRPC's objects are untyped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody with a certificate of the federation.

    Attributes:
        client_id: of a member or the revealer; empty for others.
    """

    role: Role
    client_id: ClientId

    def check_named(self, message: Message) -> None:
        """Refuse a message that is said to be somebody else's.

        Raises:
            WrongIdentity: its client id, or its header's or statement's, is not the caller's.
        """
        fields = message.DESCRIPTOR.fields_by_name
        if "part" in message.DESCRIPTOR.oneofs_by_name:
            part = message.WhichOneof("part")
            if part in ("header", "statement", "report"):
                self.check_named(getattr(message, part))
        elif "client_id" in fields and message.client_id != self.client_id:
            raise WrongIdentity(
                f"A message of {message.client_id[:16]!r} came from {self.client_id[:16]}."
            )


class Callers:
    """Looks up who calls.

    Args:
        roster: returns the roster in force.
        operators: the operators' certificates, one after the other; read at every call of theirs.

    Raises:
        KeysError: the operators' file cannot be used.
    """

    def __init__(self, roster: Callable[[], Roster], operators: Path) -> None:
        self._roster = roster
        self._operators = operators
        self._known: tuple[Roster, dict[bytes, ClientId]] | None = None
        self._operators_keys()

    @property
    def epoch(self) -> int:
        """Return the key epoch of the roster in force."""
        return self._roster().epoch

    def of(self, context: Context) -> Caller:
        """Return who makes a call.

        Raises:
            NotInRoster: neither the roster nor the operators' list has the certificate's key.
        """
        certificate = certificate_of(context)
        key, roster = key_of(certificate), self._roster()
        client_id = self._members(roster).get(key)
        if client_id is not None:
            revealer = roster.revealer
            alone = revealer is not None and client_id == revealer.client_id
            return Caller(role="revealer" if alone else "member", client_id=client_id)
        if is_invitation(certificate):
            return Caller(role="applicant", client_id=ClientId(""))
        if key in self._operators_keys():
            return Caller(role="operator", client_id=ClientId(""))
        raise NotInRoster(
            f"The certificate's key is nobody's in epoch {roster.epoch}, nor an operator's."
        )

    def name_of(self, context: Context) -> str:
        """Return what people call a caller, for the log; empty where its certificate says nothing.

        A member is called by its label, an applicant by the name on its invitation.
        """
        certificate = certificate_of(context)
        try:
            client_id = self._members(self._roster()).get(key_of(certificate))
            if client_id is None:
                return name_of(certificate)
        except KeysError:
            return ""
        return self._roster().holder(client_id).label or client_id[:16]

    def check(self, caller: Caller, method: str) -> None:
        """Refuse calls that are not for this caller.

        Raises:
            NotInRoster: an applicant calls what members call.
            RefusedError: the call is for others.
        """
        if caller.role in self._allowed(method):
            return
        if caller.role == "applicant":
            raise NotInRoster("An invitation is good for an application and for nothing else.")
        name = method.rpartition("/")[2]
        raise RefusedError(f"{name} was called by somebody who is {caller.role}.")

    def _allowed(self, method: str) -> frozenset[Role]:
        if method.startswith((ADMIN, REFLECTION)):
            return frozenset({"operator"})
        if method == APPLY:
            # A member applies once more to leave its cell's core.
            return frozenset({"applicant", "member"})
        return frozenset({"revealer"}) if method in SUMS else frozenset({"member", "revealer"})

    def _members(self, roster: Roster) -> dict[bytes, ClientId]:
        """Return the roster's keys, read once for each roster."""
        if self._known is None or self._known[0] is not roster:
            keys = {holder.tls_key: holder.client_id for holder in roster.holders}
            self._known = (roster, keys)
        return self._known[1]

    def _operators_keys(self) -> set[bytes]:
        name = "coordinator.operators"
        raw = read_public(
            self._operators,
            max_bytes=MAX_OPERATORS_BYTES,
            remedy=f"Name the operators' certificates as {name}; `fedrec provision` makes one.",
        )
        found = split_certificates(raw)
        if not found:
            raise KeysError(
                f"{name}: {self._operators} holds no certificate.",
                remedy="Take operator.crt of the key authority's folder.",
            )
        return {key_of(certificate, name) for certificate in found}


def certificate_of(context: Context) -> bytes:
    """Return the certificate (PEM) with which a caller came."""
    found = context.auth_context().get("x509_pem_cert") or [b""]
    return bytes(found[0])


EVERY_SECONDS = 60.0
MOST_KNOWN = 10_000


@dataclass(slots=True)
class _Told:
    """A line, and how many refusals of the same kind came since."""

    at: float
    incident: str
    more: int = 0


class RefusalLog:
    """Writes what was refused.

    Args:
        now: seconds that only grow.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._told: dict[tuple[str, str], _Told] = {}

    def tell(self, error: Exception, method: str, client: str) -> str:
        """Log a refusal, or count it; return the incident under which the log has it.

        Args:
            client: what people call the caller; empty where nobody knows.
        """
        code = error.code if isinstance(error, FedrecError) else InternalError.code
        known, now = self._told.get((client, code)), self._now()
        if known is not None and now < known.at + EVERY_SECONDS:
            known.more += 1
            return known.incident
        if len(self._told) >= MOST_KNOWN:
            recent = now - EVERY_SECONDS
            self._told = {key: told for key, told in self._told.items() if told.at > recent}
        incident = new_incident()
        self._told[client, code] = _Told(at=now, incident=incident)
        about: dict[str, object] = {"client": client} if client else {}
        if known is not None and known.more:
            about["more_since_the_last_line"] = known.more
        log = structlog.get_logger().bind(method=method.rpartition("/")[2], incident=incident)
        if isinstance(error, FedrecError):
            log.info("call refused", code=code, why=error.message, **about)
        else:
            log.error("call failed", exc_info=error, **about)
        return incident


HEALTH = "/grpc.health.v1.Health/"
ENDLESS = ("/fedrec.wire.v1.Admin/WatchEvents",)
CALL_SECONDS = 15 * 60.0
STREAM_SECONDS = 3 * 3600.0
"""Streams get the time that a slow line needs; they are cut sooner when they are silent."""

Read = Callable[[bytes], Message]


class CallGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    """Checks calls before a method sees them and translates what it raises.

    Nothing of a message is read before it is known who sends it.

    Args:
        callers: looks up who calls.
        limits: of incoming streams.
        stopping: tells whether the coordinator takes no more calls.
        on_refused: hears which method's call is answered with which error.
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
        # Made once for each method: ten thousand clients that wait call the same one.
        known = self._guarded.get(method)
        if known is None or known[0] is not handler:
            make = self._streaming if handler.response_streaming else self._answering
            known = self._guarded[method] = (handler, make(handler, method))
        return known[1]

    def _answering(self, handler: Message, method: str) -> Message:
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
        read = handler.request_deserializer
        if handler.request_streaming:
            read = part_reader(method)

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
            """Return a part's bytes; one that holds a chunk comes as these."""
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
            # So that a member of a later epoch knows that this coordinator is behind.
            error.epoch = self._callers.epoch
        if isinstance(error, DurabilityLost):
            error = Unreachable("The store failed; the coordinator stops.")
        incident = self._refusals.tell(error, method, self._callers.name_of(context))
        code, message, metadata = to_details(error, incident=incident)
        await context.abort(code, message, metadata)
        raise error

    def _check(self, method: str, context: Context, *, streams: bool) -> Caller:
        if self._stopping():
            raise CoordinatorStopping("It answers again once it has been restarted.")
        caller = self._callers.of(context)
        self._callers.check(caller, method)
        if method in ENDLESS or method.startswith(REFLECTION):
            return caller
        most = STREAM_SECONDS if streams else CALL_SECONDS
        left = context.time_remaining()
        if left is None or left > most:
            raise ProtocolError(f"Every call needs a deadline, here of at most {most:.0f} seconds.")
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
    # gRPC's own iterator holds a message until the next one has arrived.
    while (raw := await context.read()) is not grpc.aio.EOF:
        yield raw
        del raw


async def _parts(parts: AsyncIterator[bytes], read: Read, caller: Caller) -> AsyncIterator[Message]:
    async for raw in parts:
        yield _read(raw, read, caller)
        # Not to be held while the next one arrives.
        del raw
