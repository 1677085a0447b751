"""How calls are made, over which channel: once, with a deadline, never forever; how they fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from fedrec.errors import ProtocolError, Unreachable
from fedrec.identity.certificates import Credentials
from fedrec.listening import is_own_address, split_address
from fedrec.wire.chunks import Assembler
from fedrec.wire.convert import BLOB
from fedrec.wire.error_status import calling
from fedrec.wire.fields import MAX_MESSAGE_BYTES

CLOSING_SECONDS = 2.0

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A long poll is silent for minutes; pings notice a dead peer or a forgetful NAT.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Whoever calls has the patience, and a restarted coordinator should be found soon.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # Despite its name the time that one attempt has, handshakes included: with 200 ms, lines and
    # machines that are a little slow were told that nobody listens.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 10_000),
)
_NO_PROXY = ("grpc.enable_http_proxy", 0)


def open_channel(address: str, credentials: Credentials) -> grpc.Channel:
    """Open a channel; nothing is sent yet.

    Args:
        address: `host:port`.
        credentials: what the caller shows, and whose word for the coordinator it takes.
    """
    found = grpc.ssl_channel_credentials(
        root_certificates=credentials.issuer,
        private_key=credentials.private_key,
        certificate_chain=credentials.certificate,
    )
    own = is_own_address(split_address(address)[0])
    return grpc.secure_channel(address, found, options=(*OPTIONS, _NO_PROXY) if own else OPTIONS)


def close_channel(channel: grpc.Channel, *, seconds: float = CLOSING_SECONDS) -> None:
    """Close a channel, and leave it if that does not end.

    gRPC waits for every call to end. One that Ctrl-C interrupted while it was being started is
    on its list but nobody works at it, so that wait would be for ever.
    """
    closing = threading.Thread(target=channel.close, name="fedrec-close", daemon=True)
    closing.start()
    closing.join(seconds)


Message = Any
"""A generated message or a gRPC object; the stubs of both are untyped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long calls may take.

    Attributes:
        control_seconds: a question with a short answer.
        stream_seconds: a stream, besides the time for its bytes.
        stream_bytes_per_second: the slowest line that is still served.
        poll_grace_seconds: what a long poll may take beyond the wait that it asked for.
        goodbye_seconds: the last call of a client that ends.
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
        address: where it leads, as `host:port`.
        own: what the peer is shown.
        deadlines: how long calls may take.
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
        """Close the channel; what waits in other threads ends as unreachable."""
        self._closed = True
        close_channel(self._channel)

    def ask(self, method: Message, request: Message, seconds: float | None = None) -> Message:
        """Make a call with one answer; an interruption cancels it.

        Args:
            request: a message, or an iterator over the parts of a stream.
            seconds: how long it may take; by default as long as a question may.

        Raises:
            FedrecError: what the coordinator answered; `Unreachable` where nobody did.
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
            announcement: the part that must come first: `blob`, or a part that has one.

        Returns:
            The announcement and the checked bytes; None when the stream is empty.

        Raises:
            FedrecError: what the coordinator answered; `Unreachable` where nobody did.
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
    """Cancels a download that takes too long; its length is known only once it has begun."""

    def __init__(self, call: Message) -> None:
        self._call = call
        self._timer: threading.Timer | None = None
        self._seconds = 0.0
        self._expired = False

    def allow(self, seconds: float) -> None:
        """Allow so many seconds from now."""
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
        """Raise Unreachable when the time was up."""
        if self._expired:
            raise Unreachable(
                f"A download was not complete within {self._seconds:.0f} seconds.",
                remedy="Check the line to the coordinator, then retry.",
            )

    def _expire(self) -> None:
        self._expired = True
        self._call.cancel()


def _expect(part: Message, kind: str) -> Message:
    found = part.WhichOneof("part")
    if found != kind:
        raise ProtocolError(f"A stream holds {found or 'an unknown part'} where {kind} belongs.")
    return getattr(part, kind)
