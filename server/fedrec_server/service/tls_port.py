"""Open the port: mutual TLS 1.3, and as many connections as this process may hold."""

from __future__ import annotations

import resource
import socket
import ssl
from pathlib import Path
from typing import Any

import grpc
import structlog

from fedrec.errors import KeysError, SettingsError
from fedrec.identity.certificates import Credentials, certificate_sha256
from fedrec.identity.roster import Roster
from fedrec.listening import reached_from_here, split_address, written_address
from fedrec.settings.schema import CoordinatorSettings
from fedrec.wire.fields import MAX_MESSAGE_BYTES

OWN_FILES = 200
"""File descriptors not for clients: the store, uploads in progress, libraries, operators."""


def allow_connections(n_clients: int) -> int:
    """Raise this process's limit of open files as far as allowed. Return the new limit.

    A waiting client holds one connection, which takes one descriptor. If the limit is too low for
    all clients of the roster, those above it would wait silently. The log therefore warns at the
    start.
    """
    wanted = n_clients + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = hard == resource.RLIM_INFINITY
    target = max(soft, wanted) if endless else hard
    if soft != resource.RLIM_INFINITY and soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
        except (OSError, ValueError):
            # Some systems allow less than they report.
            pass
    if soft != resource.RLIM_INFINITY and soft < wanted:
        structlog.get_logger().warning(
            "too few open files",
            limit=soft,
            needed=wanted,
            clients=n_clients,
            remedy=f"Clients beyond the limit cannot connect. Start with `ulimit -n {wanted}`, "
            "LimitNOFILE= in a systemd unit, or --ulimit nofile= of a container.",
        )
    return soft


_SETTING = "coordinator.certificate"
_SECONDS = 5.0

WINDOWS_BYTES = 8 << 20
"""Bytes that all streams together may bring in one round trip before any is read."""
LEAST_WINDOW_BYTES = 1 << 16

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", 100),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.max_connection_age_ms", 1_800_000),
    ("grpc.max_connection_age_grace_ms", 300_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Above the default of 1,000 pending calls, the C core answers CANCELLED.
    ("grpc.server.max_pending_requests", 50_000),
    ("grpc.server.max_pending_requests_hard_limit", 60_000),
)


def options(n_clients: int) -> tuple[tuple[str, int], ...]:
    """Return gRPC's options for a server to which many clients upload at once."""
    window = max(LEAST_WINDOW_BYTES, WINDOWS_BYTES // max(1, n_clients))
    # Windows that adapt to the line would be 16 MiB for each stream, whether it is read or not.
    return (*_OPTIONS, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", window))


def own_credentials(settings: CoordinatorSettings, roster: Roster) -> Credentials:
    """Return the coordinator's TLS credentials, issued by the authority of its roster.

    Raises:
        KeysError: the file cannot be used, or is from a different authority.
        CertificateExpired: this machine's clock is outside its dates.
    """
    found = Credentials.load(Path(settings.certificate), _SETTING)
    if certificate_sha256(found.issuer) != roster.ca_sha256:
        raise KeysError(
            f"{_SETTING}: {settings.certificate} and the key epoch are from different authorities.",
            remedy="Take coordinator.pem and epoch.json from the same key authority's folder.",
        )
    return found


def listen(server: Any, settings: CoordinatorSettings, own: Credentials) -> str:
    """Bind the port. Return `host:port` with the actual port.

    Raises:
        SettingsError: if the port is not free.
    """
    address = written_address(settings.host, settings.port)
    credentials = grpc.ssl_server_credentials(
        [(own.private_key, own.certificate)], own.issuer, require_client_auth=True
    )
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError:
        raise SettingsError(
            f"coordinator.port: {address} cannot be opened. Another process has the port, or the "
            "address does not belong to this machine.",
            remedy="Stop the other process, or choose another port (0 takes a free one).",
        ) from None
    return written_address(settings.host, port)


def check_protocol(settings: CoordinatorSettings, address: str) -> None:
    """Check that this coordinator rejects a TLS 1.2 handshake. Takes up to five seconds.

    Raises:
        SettingsError: the handshake succeeds, or the coordinator is unreachable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(settings.certificate)
    where = (reached_from_here(settings.host), split_address(address)[1])
    try:
        with (
            socket.create_connection(where, _SECONDS) as bare,
            context.wrap_socket(bare) as spoken,
        ):
            version = spoken.version()
    except (ssl.SSLError, ConnectionError):
        return
    except OSError as error:
        raise SettingsError(
            f"coordinator.host: {address} does not respond to this machine: {error.strerror}.",
            remedy="Set an address of this machine, or 0.0.0.0 for all.",
        ) from None
    raise SettingsError(
        f"The coordinator would accept {version}, but only TLS 1.3 is allowed.",
        remedy="gRPC was imported before fedrec.wire could set GRPC_SSL_CIPHER_SUITES for it. "
        "Import fedrec.wire first, or start with `fedrec coordinator run`.",
    )
