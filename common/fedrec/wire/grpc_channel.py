"""Opening a gRPC channel to a coordinator, over mutual TLS."""

from __future__ import annotations

import os
import threading

import grpc

from fedrec.identity.certificates import Credentials
from fedrec.listening import is_own_address, split_address
from fedrec.wire.limits import MAX_MESSAGE_BYTES

__all__ = ["close_channel", "open_channel", "proxy_words"]

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
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Of these gRPC takes the first that is set; only `http://` is a scheme of a proxy to it."""
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


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


def proxy_words(address: str) -> str:
    """Say, for a call that failed, which variable of the environment names a proxy for it.

    Empty where none does, as for this machine's own addresses.
    """
    host, _ = split_address(address)
    if is_own_address(host):
        return ""
    used = next((name for name in _PROXIES if name in os.environ), "")
    if os.environ.get(used, "").lower().startswith("http://"):
        listed = next((os.environ[name] for name in _EXCEPTIONS if name in os.environ), "")
        if host.lower().endswith(tuple(filter(None, listed.lower().replace(" ", "").split(",")))):
            return ""
        return (
            f"{used} is set, so the call goes through that proxy, which must allow CONNECT. To "
            f"call {host} directly, add it to no_proxy."
        )
    alike = (*_PROXIES, "all_proxy")
    unused = next((name for name in os.environ if name.lower() in alike and os.environ[name]), "")
    if not unused:
        return ""
    return (
        f"{unused} is set, but not used: only {', '.join(_PROXIES)} are read, in lower case, and "
        "the proxy must begin with http://."
    )


def close_channel(channel: grpc.Channel, *, seconds: float = CLOSING_SECONDS) -> None:
    """Close a channel, and leave it if that does not end.

    gRPC waits for every call to end. One that Ctrl-C interrupted while it was being started is
    on its list but nobody works at it, so that wait would be for ever.
    """
    closing = threading.Thread(target=channel.close, name="fedrec-close", daemon=True)
    closing.start()
    closing.join(seconds)
