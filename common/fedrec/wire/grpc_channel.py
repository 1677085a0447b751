"""Opening a gRPC channel to a coordinator, over mutual TLS."""

from __future__ import annotations

import threading

import grpc

from fedrec.identity.certificates import Credentials
from fedrec.wire.limits import MAX_MESSAGE_BYTES

__all__ = ["close_channel", "open_channel"]

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
    return grpc.secure_channel(address, found, options=OPTIONS)


def close_channel(channel: grpc.Channel, *, seconds: float = CLOSING_SECONDS) -> None:
    """Close a channel, and leave it if that does not end.

    gRPC waits for every call to end. One that Ctrl-C interrupted while it was being started is
    on its list but nobody works at it, so that wait would be for ever.
    """
    closing = threading.Thread(target=channel.close, name="fedrec-close", daemon=True)
    closing.start()
    closing.join(seconds)
