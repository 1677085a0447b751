"""Opening the port: TLS, or plaintext on this machine only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from fedrec.config.schema import CoordinatorSettings
from fedrec.errors import SettingsError
from fedrec.wire.grpc_channel import is_loopback

__all__ = ["OPTIONS", "check_transport", "listen"]

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", 8 << 20),
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
    # Above the default of 1,000 pending calls the C core answers CANCELLED.
    ("grpc.server.max_pending_requests", 50_000),
    ("grpc.server.max_pending_requests_hard_limit", 60_000),
)


def check_transport(settings: CoordinatorSettings) -> None:
    """Refuse an address that would be served without protection.

    Raises:
        SettingsError: with every problem.
    """
    problems = []
    if settings.plaintext and not is_loopback(_address(settings, settings.port)):
        problems.append(
            f"coordinator.plaintext: {settings.host} is not a loopback address; "
            "without TLS everybody on the way reads and changes what is sent"
        )
    if settings.plaintext and (settings.certificate or settings.private_key):
        problems.append("coordinator.plaintext and coordinator.certificate exclude each other")
    if not settings.plaintext:
        problems += [
            f"coordinator.{name} is missing; TLS needs it"
            for name in ("certificate", "private_key")
            if getattr(settings, name) is None
        ]
        if settings.token_file is None:
            problems.append("coordinator.token_file is missing; clients are told apart by it")
    if problems:
        raise SettingsError(
            f"{'; '.join(problems)}.",
            remedy="Make a certificate with `fedrec keys certificate` and a token file, or serve "
            "a loopback address with coordinator.plaintext = true.",
            problems=tuple(problems),
        )


def listen(server: Any, settings: CoordinatorSettings) -> str:
    """Bind the port and return `host:port`, with the port that was taken.

    Raises:
        SettingsError: when the port is not free or the certificate cannot be used.
    """
    address = _address(settings, settings.port)
    credentials = None
    if not settings.plaintext:
        credentials = grpc.ssl_server_credentials(
            [(_read(settings, "private_key"), _read(settings, "certificate"))]
        )
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        raise SettingsError(
            f"coordinator.port: {address} cannot be opened; another process has the port, or the "
            "address is not this machine's.",
            remedy="Stop the other process, or choose another port (0 takes a free one).",
        ) from None
    return _address(settings, port)


def _read(settings: CoordinatorSettings, name: str) -> bytes:
    path = Path(getattr(settings, name))
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"coordinator.{name}: the file {path.name!r} cannot be read: {error.strerror}."
        ) from None


def _address(settings: CoordinatorSettings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{host}:{port}"
