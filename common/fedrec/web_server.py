"""A web server inside a party's own loop: uvicorn, told to leave all else to the party.

Only who serves pages imports this module, so that others need no web server.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

_UNHEARD_MILLISECONDS = 60_000
_HANDSHAKE_SECONDS = 10.0


class WebServer(uvicorn.Server):
    """uvicorn's server, which by itself takes signals and ends the process by raising them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the party."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen at sockets; uvicorn itself would wait a minute for each TLS handshake."""
        config, loop = self.config, asyncio.get_running_loop()

        def connection() -> Any:
            kind: Any = config.http_protocol_class
            return kind(config=config, server_state=self.server_state, app_state={})

        self.servers = [
            await loop.create_server(
                connection,
                sock=listening,
                ssl=config.ssl,
                ssl_handshake_timeout=None if config.ssl is None else _HANDSHAKE_SECONDS,
                backlog=config.backlog,
            )
            for listening in sockets or ()
        ]
        self.started = True


def web_server(
    application: Any,
    connection: type[asyncio.Protocol],
    *,
    backlog: int,
    keep_alive_seconds: int,
    stopping_seconds: int,
    certificate: Path | None,
    key: Path | None = None,
) -> WebServer:
    """Return a server that logs nothing, believes no proxy and speaks TLS 1.3 or plain HTTP.

    Args:
        connection: uvicorn's protocol, with limits of its own.
        certificate: a PEM file; None for plain HTTP.
        key: its private key, where it is not in that file.

    Raises:
        OSError: the certificate cannot be used.
    """
    config = uvicorn.Config(
        application,
        http=connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=backlog,
        timeout_keep_alive=keep_alive_seconds,
        timeout_graceful_shutdown=stopping_seconds,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
    return WebServer(config)


def listening_socket(host: str, port: int, *, backlog: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 is any that is free.

    Raises:
        socket.gaierror: the host is no address of this machine.
        OSError: the port cannot be had.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":
            # Each connection has it from here. By itself a machine that vanished, or reads nothing
            # any more, keeps its place for a quarter of an hour or for ever.
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNHEARD_MILLISECONDS)
        found.bind(address)
        found.listen(backlog)
    except OSError:
        found.close()
        raise
    return found
