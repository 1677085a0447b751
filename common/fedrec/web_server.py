"""A web server inside a party's own loop: uvicorn, reduced to serving.

Only modules that serve pages import this one, so that other processes need no web server.
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
    """uvicorn's server, which by default handles signals and ends the process by raising them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the party."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on sockets with a short limit for TLS handshakes. uvicorn's own is a minute."""
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
    """Return a server without logs or trusted proxies, with TLS 1.3 or plain HTTP.

    Args:
        connection: uvicorn's protocol, with its own limits.
        certificate: a PEM file, or None for plain HTTP.
        key: its private key, if it is not in that file.

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
    """Return a socket that listens at an address. Port 0 takes a free one.

    Raises:
        socket.gaierror: the host is not an address of this machine.
        OSError: the port is not available.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":
            # Each connection inherits this. Otherwise a machine that vanished, or reads nothing any
            # more, keeps its place for at least a quarter of an hour.
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNHEARD_MILLISECONDS)
        found.bind(address)
        found.listen(backlog)
    except OSError:
        found.close()
        raise
    return found
