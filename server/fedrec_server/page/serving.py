"""The page's own port, in the coordinator's loop.

On an address of this machine it is plain HTTP, for everybody with an account there. Any other
address gets TLS 1.3, and nobody sees anything without a link that an operator asked for.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import structlog
from cryptography.x509 import ExtensionNotFound
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedrec.errors import KeysError, SettingsError
from fedrec.identity.certificates import hosts_of
from fedrec.listening import is_own_address, split_address, written_address
from fedrec.settings.schema import CoordinatorSettings
from fedrec.web_server import listening_socket, web_server
from fedrec_server.engine import Engine
from fedrec_server.page.application import Access, application
from fedrec_server.page.feed import Feed

MOST_CONNECTIONS = 128
REQUEST_SECONDS = 10.0
"""A connection that has asked for nothing since the last look, and is answered, is closed."""
_BACKLOG = 64
_KEEP_ALIVE_SECONDS = 15
_STOPPING_SECONDS = 2
_SETTING = "coordinator.page"


class Page:
    """Listens from when it is made, and answers from `start` to `close`.

    Args:
        engine: the run that is shown.
        settings: where to listen; `coordinator.page` is set.

    Raises:
        SettingsError: the address cannot be opened, or the certificate cannot be used.
    """

    def __init__(self, engine: Engine, settings: CoordinatorSettings) -> None:
        self.host, port = split_address(settings.page, _SETTING)
        guarded = settings.page_link or not is_own_address(self.host)
        self.scheme = "https" if guarded else "http"
        self._access = Access(engine.run.clock) if guarded else None
        certificate = Path(settings.page_certificate or settings.certificate) if guarded else None
        hosts = {"localhost", self.host}
        if certificate is not None:
            hosts |= set(_hosts_of(certificate))
        self._feed = Feed(engine)
        web = application(self._feed, self._access, hosts=hosts)
        try:
            self._server = web_server(
                web,
                _Connection,
                backlog=_BACKLOG,
                keep_alive_seconds=_KEEP_ALIVE_SECONDS,
                stopping_seconds=_STOPPING_SECONDS,
                certificate=certificate,
            )
        except OSError as error:
            raise _unusable(certificate, error) from None
        try:
            self._socket = listening_socket(self.host, port, backlog=_BACKLOG)
        except OSError as error:
            raise SettingsError(
                f"{_SETTING}: {settings.page} cannot be opened: {error.strerror or error}.",
                remedy="Stop the other process, or choose another port (0 takes a free one).",
            ) from None
        self.port: int = self._socket.getsockname()[1]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        """Return where the page is."""
        return f"{self.scheme}://{written_address(self.host, self.port)}/"

    def new_link(self) -> str:
        """Return a token that lets one browser in; empty where none is needed."""
        return "" if self._access is None else self._access.new_link()

    def start(self) -> None:
        """Begin to answer, in the running loop."""
        self._tasks = [
            asyncio.create_task(self._server.serve(sockets=[self._socket])),
            asyncio.create_task(self._feed.follow()),
        ]
        structlog.get_logger().info("page is served", url=self.url)

    async def close(self) -> None:
        """Hang up on everybody, and listen no more."""
        self._feed.close()
        self._server.should_exit = True
        if self._tasks:
            # Either may have ended with an error, which is no reason to stay open.
            await asyncio.gather(self._tasks[0], return_exceptions=True)
            self._tasks[1].cancel()
            await asyncio.gather(self._tasks[1], return_exceptions=True)
        self._socket.close()


class _Connection(H11Protocol):
    """uvicorn's connection, which by itself there may be any number of, and which may be silent."""

    _seen: Any = None

    def connection_made(self, transport: Any) -> None:
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self.loop.call_later(REQUEST_SECONDS, self._look)

    def _look(self) -> None:
        # uvicorn waits for ever for the rest of a request, once its first byte is here.
        if self.transport.is_closing():
            return
        if self.cycle is self._seen and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
            return
        self._seen = self.cycle
        self.loop.call_later(REQUEST_SECONDS, self._look)


def _hosts_of(certificate: Path) -> tuple[str, ...]:
    """Return the names for which a certificate was made."""
    try:
        return hosts_of(certificate.read_bytes())
    except (OSError, KeysError, ExtensionNotFound) as error:
        raise _unusable(certificate, error) from None


def _unusable(certificate: Path | None, error: Exception) -> SettingsError:
    return SettingsError(
        f"coordinator.page_certificate: {certificate} cannot be used: {error}.",
        remedy="Name a PEM file with a private key and the certificate for it, or leave it out to "
        "use coordinator.certificate.",
    )
