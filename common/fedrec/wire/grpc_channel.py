"""Opening a gRPC channel to a coordinator: TLS, or plaintext on this machine only."""

from __future__ import annotations

import ipaddress
import threading

import grpc

from fedrec.errors import SettingsError

__all__ = ["MAX_MESSAGE_BYTES", "close_channel", "host_of", "is_loopback", "open_channel"]

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
CLOSING_SECONDS = 2.0

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A long poll is silent for minutes; pings notice a dead peer or a forgetful NAT.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # GrpcLink retries by itself, and a restarted coordinator should be found soon.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 10_000),
)


def open_channel(address: str, *, root_certificate: bytes | None, plaintext: bool) -> grpc.Channel:
    """Open a channel; nothing is sent yet.

    Args:
        address: `host:port`.
        root_certificate: PEM of the authority that signed the coordinator's certificate; the
            system's authorities when None.
        plaintext: speak without TLS; to loopback addresses only.

    Raises:
        SettingsError: when plaintext is asked for to another machine or with a certificate.
    """
    if not plaintext:
        credentials = grpc.ssl_channel_credentials(root_certificates=root_certificate)
        return grpc.secure_channel(address, credentials, options=OPTIONS)
    if not is_loopback(address):
        raise SettingsError(
            f"Plaintext was asked for to {address}, which is not this machine.",
            remedy="Use TLS (`fedrec keys certificate` makes one), or a loopback address.",
        )
    if root_certificate is not None:
        raise SettingsError(
            "Plaintext and a root certificate were both given.", remedy="Leave one of them out."
        )
    # A proxy from the environment would be another machine.
    options = (*OPTIONS, ("grpc.enable_http_proxy", 0))
    return grpc.insecure_channel(address, options=options)


def close_channel(channel: grpc.Channel, *, seconds: float = CLOSING_SECONDS) -> None:
    """Close a channel, and leave it if that does not end.

    gRPC waits for every call to end. One that Ctrl-C interrupted while it was being started is
    on its list but nobody works at it, so that wait would be for ever.
    """
    closing = threading.Thread(target=channel.close, name="fedrec-close", daemon=True)
    closing.start()
    closing.join(seconds)


def is_loopback(address: str) -> bool:
    """Return whether an address is certainly this machine's own."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = host_of(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(address: str) -> str:
    """Return the host of `host:port`, of an IPv6 address without its brackets."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")
