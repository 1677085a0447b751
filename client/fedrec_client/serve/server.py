"""Serve until a signal: address, TLS, signals, and limits on connections."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fedrec.errors import SettingsError
from fedrec.listening import is_own_address, written_address
from fedrec.processes import handled_signals
from fedrec.web_server import WebServer, listening_socket, web_server
from fedrec_client.serve.model_holder import ModelHolder
from fedrec_client.serve.recommendation_api import RecommendationApi
from fedrec_client.serve.request_reading import REFUSALS, Gate

MOST_CONNECTIONS = 512
MOST_HEAD_BYTES = 32 << 10
REQUEST_SECONDS = 10.0
"""The time from a connection, or a request's first byte, to its last byte."""
_LOOK_SECONDS = 1.0


class LimitedConnection(HttpToolsProtocol):
    """A uvicorn connection with limits on the size of heads and on waiting, which uvicorn lacks.

    Attributes:
        waiting_since: when the incomplete request began, in the loop's time. None without one, or
            while uvicorn's own limit for idle connections applies.
    """

    waiting_since: float | None = None
    _unfinished_bytes = 0
    _head_bytes = 0
    _in_head = True
    _was_read = False

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, unless there are too many."""
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        if len(self.connections) > MOST_CONNECTIONS:
            self.refuse("too_busy")

    def data_received(self, data: bytes) -> None:
        """Receive bytes of a request."""
        if self.transport.is_closing():
            return
        self._was_read = False
        super().data_received(data)
        if self._in_head or not self._was_read:
            # The parser buffers data without an end, in a head or after a body.
            self._unfinished_bytes += len(data)
            if self._unfinished_bytes > MOST_HEAD_BYTES:
                self.refuse("head_too_large")
        if self.waiting_since is None and (self.cycle is None or self.cycle.response_complete):
            # Bytes that begin no request end uvicorn's own limit for idle connections.
            self.waiting_since = self.loop.time()

    def on_message_begin(self) -> None:
        """Start the time limit of a request."""
        super().on_message_begin()
        self.waiting_since = self.loop.time()
        self._in_head, self._head_bytes, self._unfinished_bytes = True, 0, 0

    def on_url(self, url: bytes) -> None:
        """Receive a part of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header. One after the body is ignored."""
        self._count(len(name) + len(value))
        if self._in_head:
            super().on_header(name, value)

    def _count(self, length: int) -> None:
        self._head_bytes += length
        if self._head_bytes > MOST_HEAD_BYTES:
            self.refuse("head_too_large")
            # Stops the parser.
            raise ValueError("The head is too large.")

    def on_headers_complete(self) -> None:
        """Let the application begin. It checks the length of the body."""
        self._in_head, self._was_read = False, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body."""
        self._was_read = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the time limit."""
        self.waiting_since = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP, in the form of every refusal."""
        self.refuse("malformed")

    def refuse(self, code: str) -> None:
        """Answer instead of the application, and close."""
        if self.transport.is_closing():
            return
        self.app.numbers.refused(code)
        kind = REFUSALS[code]
        error = {"code": code, "message": kind.meaning, "remedy": "See /docs."}
        body = json.dumps({"error": error, "version": None}).encode()
        head = (
            f"HTTP/1.1 {kind.status} {HTTPStatus(kind.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "cache-control: no-store\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


async def close_slow_ones(connections: set[Any]) -> None:
    """Close connections whose request takes too long, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        latest = loop.time() - REQUEST_SECONDS
        for connection in list(connections):
            if connection.waiting_since is not None and connection.waiting_since < latest:
                answered = connection.cycle is not None and connection.cycle.response_started
                if answered:
                    connection.transport.close()
                else:
                    connection.refuse("too_slow")


LOOK_SECONDS = 0.5
"""The time between two looks at the state folder."""
_KEEP_ALIVE_SECONDS = 30
_STOPPING_SECONDS = 5
_FEWEST_TOKEN_CHARACTERS = 16
_BACKLOG = 1024
_SWITCH_SECONDS = 0.0005
_OWN_FILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """The address and the access rules of a server.

    Attributes:
        port: the port, or 0 for a free one.
        token_file: the file with the required token, or None.
        accept_plaintext: serve other machines without TLS, because something else encrypts.
        access_log: log each request, without its ids.
        names: host names to which requests may be addressed, in addition to localhost.
    """

    host: str = "127.0.0.1"
    port: int = 7480
    token_file: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    accept_plaintext: bool = False
    access_log: bool = False
    names: tuple[str, ...] = ()


def serve(place: ServingOptions, holder: ModelHolder, on_start: Callable[[str], None]) -> bool:
    """Serve until SIGINT, SIGTERM or SIGHUP.

    Args:
        on_start: called with the address after the first look at the folder. There may be no model
            yet.

    Returns:
        Whether the signal was not SIGTERM.

    Raises:
        SettingsError: the address cannot be used, or others could read data about people.
    """
    token = _checked_token(place)
    listening = _listen(place)
    _allow_connections()
    with listening:
        gate = Gate((*place.names, place.host), token=token)
        server = _server(place, RecommendationApi(holder, gate, logs=place.access_log))
        scheme = "https" if place.tls_certificate else "http"
        address = f"{scheme}://{written_address(*listening.getsockname()[:2])}"
        return uvloop.run(_serve(server, listening, holder, lambda: on_start(address)))


async def _serve(
    server: WebServer,
    listening: socket.socket,
    holder: ModelHolder,
    on_start: Callable[[], None],
) -> bool:
    # A request must not wait for a thread that reads the next version.
    sys.setswitchinterval(_SWITCH_SECONDS)
    came: list[int] = []

    def stop(number: int) -> None:
        came.append(number)
        server.should_exit = True
        # The second signal does not wait.
        server.force_exit = len(came) > 1

    loop = asyncio.get_running_loop()
    for number in handled_signals():
        loop.add_signal_handler(number, stop, number)
    # Until then, requests wait in the socket's queue instead of getting an answer without a model.
    await asyncio.to_thread(holder.look)
    besides = [
        asyncio.ensure_future(holder.follow(LOOK_SECONDS)),
        asyncio.ensure_future(close_slow_ones(server.server_state.connections)),
    ]
    on_start()
    try:
        await server.serve(sockets=[listening])
    finally:
        for task in besides:
            task.cancel()
        for task in besides:
            with suppress(asyncio.CancelledError):
                await task
    return bool(came) and came[0] != signal.SIGTERM


def _server(place: ServingOptions, application: RecommendationApi) -> WebServer:
    try:
        return web_server(
            application,
            LimitedConnection,
            backlog=_BACKLOG,
            keep_alive_seconds=_KEEP_ALIVE_SECONDS,
            stopping_seconds=_STOPPING_SECONDS,
            certificate=place.tls_certificate,
            key=place.tls_key,
        )
    except OSError as error:
        raise SettingsError(
            f"--tls-certificate {place.tls_certificate}, --tls-key {place.tls_key}: {error}.",
            remedy="Use a PEM certificate with its chain, and its own private key.",
        ) from None


def _listen(place: ServingOptions) -> socket.socket:
    """Return a bound socket.

    Raises:
        SettingsError: the address cannot be used.
    """
    try:
        return listening_socket(place.host, place.port, backlog=_BACKLOG)
    except socket.gaierror as error:
        raise SettingsError(
            f"--host {place.host} is not an address of this machine: {error.strerror or error}.",
            remedy="Omit --host to serve this machine alone.",
        ) from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(
                f"Port {place.port} of {place.host} is in use by another process.",
                remedy="Stop that process, or choose another port with --port (0 takes a free "
                "one).",
            ) from None
        raise SettingsError(
            f"--host {place.host} --port {place.port} cannot be used: {error.strerror}.",
            remedy="Use an address of this machine and a port above 1023.",
        ) from None


def _allow_connections() -> None:
    """Raise this process's limit of open files, if possible, to fit all connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + _OWN_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if resource.RLIM_INFINITY != soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _checked_token(place: ServingOptions) -> str:
    """Return the token, if there is one, after checking that the server is not open to others.

    Raises:
        SettingsError: others could send requests, or read answers.
    """
    problems = []
    if (place.tls_certificate is None) != (place.tls_key is None):
        problems.append("--tls-certificate and --tls-key must be given together.")
    if not is_own_address(place.host):
        if place.token_file is None:
            problems.append(
                f"--host {place.host}: any machine that reaches it could ask for any "
                "user's recommendations."
            )
        if place.tls_certificate is None and not place.accept_plaintext:
            problems.append(f"--host {place.host}: answers would cross the network in the clear.")
    if problems:
        raise SettingsError(
            "Recommendations are personal, and other machines could read them.",
            remedy="Omit --host. Or give --token-file FILE, and --tls-certificate FILE with "
            "--tls-key FILE (or --accept-plaintext if something else encrypts).",
            problems=tuple(problems),
        )
    return "" if place.token_file is None else _read_token(place.token_file)


def _read_token(path: Path) -> str:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            token = file.read(4096).strip()
    except OSError as error:
        raise SettingsError(
            f"--token-file {path} cannot be read: {error.strerror}.",
            remedy="Name a file that holds the token.",
        ) from None
    if mode & 0o077:
        raise SettingsError(
            f"--token-file {path} can be read by other users (mode {mode:04o}).",
            remedy=f"Make it readable by its owner only: chmod 600 {path}",
        )
    if len(token) < _FEWEST_TOKEN_CHARACTERS or not token.isalnum() or not token.isascii():
        raise SettingsError(
            f"--token-file {path} holds no token. Expected {_FEWEST_TOKEN_CHARACTERS} or more "
            "letters and digits on one line.",
            remedy="Make one: (umask 077 && openssl rand -hex 32 > FILE)",
        )
    return token
