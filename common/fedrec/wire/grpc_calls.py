"""Make gRPC calls: once each, with a deadline, and with errors translated to ours.

Errors become gRPC statuses by a single table, with a stable code and no more than a peer may know.
A status contains the error's public sentence. The full message follows only if it is about the
peer's own input (`safe`). Otherwise an incident id leads to it in the log.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from fedrec.errors import (
    ERRORS,
    FedrecError,
    InternalError,
    InvitationUsed,
    NotInRoster,
    PlanMismatch,
    ProtocolError,
    RefusedError,
    TooLarge,
    Unreachable,
    VersionMismatch,
)
from fedrec.identity.certificates import Credentials, dates_of
from fedrec.listening import is_own_address, proxy_words, split_address
from fedrec.wire.chunks import Assembler
from fedrec.wire.convert import BLOB
from fedrec.wire.fields import MAX_MESSAGE_BYTES

CODE_KEY = "fedrec-code"
INCIDENT_KEY = "fedrec-incident"
EPOCH_KEY = "fedrec-epoch"
_EPOCH_DIGITS = 9
MAX_ERROR_BYTES = 2_000
"""HTTP/2 headers are limited to 8 KiB, and gRPC writes a byte outside ASCII as three."""

STATUS: dict[str, grpc.StatusCode] = {
    code: grpc.StatusCode[kind.grpc_status] for code, kind in ERRORS.items()
}

# Statuses from gRPC itself, a proxy or a service without fedrec's code.
FOREIGN: dict[grpc.StatusCode, type[FedrecError]] = {
    grpc.StatusCode.UNAVAILABLE: Unreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unreachable,
    grpc.StatusCode.CANCELLED: Unreachable,
    grpc.StatusCode.UNAUTHENTICATED: RefusedError,
    grpc.StatusCode.PERMISSION_DENIED: RefusedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: TooLarge,
    grpc.StatusCode.UNIMPLEMENTED: VersionMismatch,
}
REMEDIES: dict[type[FedrecError], str] = {
    Unreachable: "Check the address, that the coordinator runs, and which authority it belongs "
    "to. A client sets client.coordinator, client.authority_key and "
    "client.certificate.",
    VersionMismatch: "Install the same fedrec version on both sides.",
    PlanMismatch: "Compare the settings. If they are equal, install the coordinator's release of "
    "fedrec (`fedrec --version`): releases with different training can't share a "
    "run.",
    InvitationUsed: "A kit works on one machine only. Start the client where this kit was first "
    "started. If you never started it, another party used it: tell the data "
    "owners. Another client needs its own kit (`fedrec provision --add NAME`).",
    InternalError: "Look it up in the coordinator's log.",
}

_START = "Check that the coordinator runs there, and the address. A client sets client.coordinator."
_AUTHORITY = (
    "Check the address, and that the key authority's file is up to date (client.authority_key of "
    "a client, --operator of an operator)."
)
_DATES = (
    "Check this machine's clock. If it is right, the coordinator needs a new certificate from the "
    "key authority (`fedrec keys rotate --host NAME`)."
)
_CLOCKS = "Check the coordinator's clock and its log."
_CLOSED = "failed to connect to all addresses.*(Socket closed|Connection reset|Broken pipe)"
"""A handshake error in which gRPC's server refuses a certificate without an alert with the reason.
"""
_CONNECTIONS: tuple[tuple[str, str, str], ...] = (
    ("HTTP proxy returned", "The proxy refused to connect.", "Ask the operator of the proxy."),
    ("Connection refused", "Connection refused: no program listens at the address.", _START),
    ("hostname lookup|DNS resolution", "The host name cannot be resolved.", _START),
    ("[Tt]imed out|Timeout|unreachable|No route", "The address does not answer.", _START),
    (
        "certificate has expired",
        "The handshake failed: by this machine's clock the coordinator's certificate has expired.",
        _DATES,
    ),
    (
        "certificate is not yet valid",
        "The handshake failed: by this machine's clock the coordinator's certificate is not valid "
        "yet.",
        _DATES,
    ),
    (
        "certificate signature failure|issuer certificate|self.signed certificate",
        "The handshake failed: another authority issued the coordinator's certificate.",
        _AUTHORITY,
    ),
    (
        "Hostname Verification",
        "The handshake failed: the coordinator's certificate is for a different host.",
        "Call a host that is in the certificate (client.coordinator of a client). `fedrec keys "
        "rotate --host NAME` makes a certificate for another one.",
    ),
    (
        "certificate purpose",
        "The handshake failed: the certificate at the address does not belong to a coordinator.",
        _AUTHORITY,
    ),
    (_CLOSED, "The handshake failed: the other side closed the connection.", _AUTHORITY),
    ("andshake failed", "The handshake failed.", _AUTHORITY),
    ("Socket closed|Connection reset|Broken pipe|GOAWAY", "The connection was closed.", _START),
)
"""Reasons of failed connections, recognised by gRPC's own words, which describe its internals."""


def new_incident() -> str:
    """Return an id that links a log entry to an answer."""
    return secrets.token_hex(8)


def to_details(
    error: BaseException, *, incident: str = ""
) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return an error in the form that a peer receives.

    Args:
        error: the raised exception. All but a FedrecError are reported as internal errors.
        incident: the id in the log, generated here if empty. Safe errors have none.

    Returns:
        The status code, the message and the trailing metadata.
    """
    kind = type(error) if isinstance(error, FedrecError) else InternalError
    code = kind.code if kind.code in STATUS else InternalError.code
    status = STATUS[code]
    if isinstance(error, FedrecError) and error.safe:
        return status, _shortened(f"{kind.public} {error}"), ((CODE_KEY, code),)
    metadata = [(CODE_KEY, code), (INCIDENT_KEY, incident or new_incident())]
    if isinstance(error, NotInRoster) and error.epoch:
        metadata.append((EPOCH_KEY, str(error.epoch)))
    return status, ERRORS[code].public, tuple(metadata)


@contextmanager
def calling(address: str, own: Credentials) -> Iterator[None]:
    """Turn gRPC's errors into ours, and name the proxy that may be the cause.

    Args:
        address: the called address.
        own: the credentials that the peer was shown.

    Raises:
        FedrecError: the peer's error, or why there was no answer.
    """
    try:
        yield
    except grpc.RpcError as error:
        found = from_rpc_error(error, own)
        if type(found) is Unreachable and not found.incident:
            found.message = f"{found.message} {proxy_words(address)}".strip()
        raise found from error


def from_rpc_error(error: grpc.RpcError, own: Credentials | None = None) -> FedrecError:
    """Return the peer's error, or one that explains why there was no answer.

    Args:
        own: the credentials that the peer was shown.
    """
    metadata = _metadata(error)
    status = error.code() if isinstance(error, grpc.Call) else None
    details = error.details() if isinstance(error, grpc.Call) else None
    message = _printable(details or "") or "The call failed without a message."
    kind = ERRORS.get(metadata.get(CODE_KEY, ""))
    if kind is None:
        kind = FOREIGN.get(status, InternalError)
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            message = f"{kind.public} It did not answer in time."
        elif status is grpc.StatusCode.UNAVAILABLE:
            return _no_connection(message, own)
        else:
            message = f"{kind.public} gRPC status {getattr(status, 'name', 'unknown')}: {message}"
    incident = _printable(metadata.get(INCIDENT_KEY, ""))[:64]
    if incident:
        message = f"{message} (incident {incident})"
    remedy = REMEDIES.get(kind, "")
    found = kind(message.removesuffix(f" {remedy}"), remedy=remedy)
    found.incident = incident
    if isinstance(found, NotInRoster):
        epoch = metadata.get(EPOCH_KEY, "")[:_EPOCH_DIGITS]
        found.epoch = int(epoch) if epoch.isdecimal() else 0
    return found


def _no_connection(details: str, own: Credentials | None) -> Unreachable:
    """Return why there is no connection, in our words."""
    for words, message, remedy in _CONNECTIONS:
        if re.search(words, details):
            why, what_to_do = ("", "") if words != _CLOSED or own is None else _refusal_of(own)
            return Unreachable(f"{message}{why}", remedy=what_to_do or remedy)
    return Unreachable(Unreachable.public, remedy=REMEDIES[Unreachable])


def _refusal_of(own: Credentials) -> tuple[str, str]:
    """Return why a coordinator may refuse a certificate, and the remedy, as far as known.

    The coordinator's own certificate was accepted before, so its authority is the caller's.
    """
    try:
        own.check("The certificate that it was shown")
    except FedrecError as error:
        return f" {error.message}", error.remedy
    return (
        " By this machine's clock the certificate that it was shown is valid, "
        f"{dates_of(own.certificate)}, and its authority is the right one. So it is out of date by "
        "the coordinator's clock, or the coordinator is stopping.",
        _CLOCKS,
    )


def _metadata(error: grpc.RpcError) -> dict[str, str]:
    pairs = (error.trailing_metadata() or ()) if isinstance(error, grpc.Call) else ()
    return {key: value for key, value in pairs if isinstance(value, str)}


def _shortened(message: str) -> str:
    return message.encode()[:MAX_ERROR_BYTES].decode(errors="ignore")


def _printable(message: str) -> str:
    """Return a peer's text without characters that could forge log lines or control a terminal."""
    kept = "".join(c if c.isprintable() else " " for c in message[:MAX_ERROR_BYTES])
    return kept.strip()


CLOSING_SECONDS = 2.0

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A long poll is silent for minutes. Pings notice a dead peer or a NAT that drops the
    # connection.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The caller decides how long to wait, and a restarted coordinator should be found soon.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # Despite its name, this is the time for one attempt, handshakes included. With 200 ms, slightly
    # slower lines and machines were told that nothing listens.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 10_000),
)
_NO_PROXY = ("grpc.enable_http_proxy", 0)


def open_channel(address: str, credentials: Credentials) -> grpc.Channel:
    """Open a channel without sending anything yet.

    Args:
        address: `host:port`.
        credentials: the caller's certificate, and the authority that it trusts.
    """
    found = grpc.ssl_channel_credentials(
        root_certificates=credentials.issuer,
        private_key=credentials.private_key,
        certificate_chain=credentials.certificate,
    )
    own = is_own_address(split_address(address)[0])
    return grpc.secure_channel(address, found, options=(*OPTIONS, _NO_PROXY) if own else OPTIONS)


def close_channel(channel: grpc.Channel, *, seconds: float = CLOSING_SECONDS) -> None:
    """Close a channel, and abandon it if closing does not end.

    gRPC waits for every call to end. If Ctrl-C interrupted a call while it was starting, the call
    is on gRPC's list but never ends, so that wait would last forever.
    """
    closing = threading.Thread(target=channel.close, name="fedrec-close", daemon=True)
    closing.start()
    closing.join(seconds)


Message = Any
"""A generated message or a gRPC object. The stubs of both are untyped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """The deadlines of calls.

    Attributes:
        control_seconds: deadline of a request with a short answer.
        stream_seconds: deadline of a stream, in addition to the time for its bytes.
        stream_bytes_per_second: speed of the slowest connection that is still served.
        poll_grace_seconds: deadline of a long poll, in addition to the requested wait.
        goodbye_seconds: deadline of the last call of a client that ends.
    """

    control_seconds: float = 10.0
    stream_seconds: float = 30.0
    stream_bytes_per_second: float = 100_000.0
    poll_grace_seconds: float = 10.0
    goodbye_seconds: float = 2.0

    def stream(self, n_bytes: int) -> float:
        """Return the seconds that a stream of `n_bytes` may take."""
        return self.stream_seconds + n_bytes / self.stream_bytes_per_second


class Calls:
    """Makes calls on behalf of a link.

    Args:
        channel: closed with this object.
        address: the channel's `host:port`.
        own: the credentials that the peer is shown.
        deadlines: the deadlines of calls.
        max_download_bytes: the longest blob that is accepted.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        own: Credentials,
        *,
        deadlines: Deadlines,
        max_download_bytes: int,
    ) -> None:
        self._channel = channel
        self._address, self._own = address, own
        self.deadlines = deadlines
        self._max_download_bytes = max_download_bytes
        self._closed = False

    def close(self) -> None:
        """Close the channel. Calls that wait in other threads end as unreachable."""
        self._closed = True
        close_channel(self._channel)

    def ask(self, method: Message, request: Message, seconds: float | None = None) -> Message:
        """Make a call with one answer. An interruption cancels it.

        Args:
            request: a message, or an iterator over the parts of a stream.
            seconds: its deadline, by default that of a request with a short answer.

        Raises:
            FedrecError: the coordinator's error, or `Unreachable` without an answer.
        """
        allowed = self.deadlines.control_seconds if seconds is None else seconds
        with self._failing():
            call = method.future(request, timeout=allowed)
            try:
                return call.result()
            except BaseException:
                call.cancel()
                raise

    def download(
        self, method: Message, request: Message, announcement: str
    ) -> tuple[Message, bytes] | None:
        """Make a call whose answer is a stream of parts.

        Args:
            announcement: the kind of the first part: `blob`, or a part that has one.

        Returns:
            The announcement and the checked bytes, or None if the stream is empty.

        Raises:
            FedrecError: the coordinator's error, or `Unreachable` without an answer.
        """
        with self._failing():
            call = method(request, timeout=self.deadlines.stream(self._max_download_bytes))
            watch = _Watch(call)
            try:
                watch.allow(self.deadlines.stream_seconds)
                first = next(call, None)
                if first is None:
                    return None
                head = _expect(first, announcement)
                blob = BLOB.from_proto(head if announcement == "blob" else head.blob, announcement)
                assembler = Assembler(blob.length, blob.digest, max_bytes=self._max_download_bytes)
                watch.allow(self.deadlines.stream(blob.length))
                for part in call:
                    chunk = _expect(part, "chunk")
                    assembler.add(chunk.offset, chunk.data)
                return head, assembler.finish()
            except grpc.RpcError:
                watch.check()
                raise
            finally:
                watch.stop()
                call.cancel()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn gRPC's errors into ours."""
        self._check_open()
        with calling(self._address, self._own):
            try:
                yield
            except grpc.RpcError:
                self._check_open()
                raise

    def _check_open(self) -> None:
        if self._closed:
            raise Unreachable("The link was closed.", remedy="Open a new one.")


class _Watch:
    """Cancels a download that takes too long. Its length is known only once it has begun."""

    def __init__(self, call: Message) -> None:
        self._call = call
        self._timer: threading.Timer | None = None
        self._seconds = 0.0
        self._expired = False

    def allow(self, seconds: float) -> None:
        """Extend the deadline to this many seconds from now."""
        self.stop()
        self._seconds = seconds
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def check(self) -> None:
        """Raise Unreachable if the deadline has passed."""
        if self._expired:
            raise Unreachable(
                f"A download was not complete within {self._seconds:.0f} seconds.",
                remedy="Check the connection to the coordinator, then retry.",
            )

    def _expire(self) -> None:
        self._expired = True
        self._call.cancel()


def _expect(part: Message, kind: str) -> Message:
    found = part.WhichOneof("part")
    if found != kind:
        raise ProtocolError(f"A stream has {found or 'an unknown part'}, expected {kind}.")
    return getattr(part, kind)
