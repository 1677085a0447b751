"""The page's own port, served from the coordinator's event loop.

On a local address it is plain HTTP, open to every account on the machine. Any other address uses
TLS 1.3 and needs a link from an operator.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeAlias

import structlog
from cryptography.x509 import ExtensionNotFound
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedrec.clock import Clock
from fedrec.errors import KeysError, SettingsError
from fedrec.identity.certificates import hosts_of
from fedrec.listening import is_own_address, names_server, split_address, written_address
from fedrec.settings.schema import CoordinatorSettings
from fedrec.web_server import listening_socket, web_server
from fedrec_server.engine import Engine
from fedrec_server.page.feed import Feed

LINK_SECONDS = 300.0
SESSION_SECONDS = 12 * 3600.0
MOST_LINKS = 16
MOST_SESSIONS = 64
_TOKEN_BYTES = 32


class Access:
    """Make links, exchange each for one session, and check sessions.

    Args:
        clock: the clock. A link is valid for `LINK_SECONDS`, a session for `SESSION_SECONDS`.
    """

    def __init__(self, clock: Clock) -> None:
        self._links = _Tokens(clock, LINK_SECONDS, MOST_LINKS)
        self._sessions = _Tokens(clock, SESSION_SECONDS, MOST_SESSIONS)

    def new_link(self) -> str:
        """Return a token for one session."""
        return self._links.new()

    def open_session(self, link: str) -> str | None:
        """Exchange a link's token, which is then used up, for a session's token, or return None."""
        return self._sessions.new() if self._links.use_up(link) else None

    def allows(self, session: str) -> bool:
        """Return whether a token belongs to an active session."""
        return self._sessions.knows(session)


class _Tokens:
    """Random tokens with a limited lifetime. New ones push out the oldest."""

    def __init__(self, clock: Clock, seconds: float, most: int) -> None:
        self._clock, self._seconds, self._most = clock, seconds, most
        self._until: dict[bytes, float] = {}

    def new(self) -> str:
        self._forget()
        while len(self._until) >= self._most:
            del self._until[next(iter(self._until))]
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._until[_digest(token)] = self._clock.now() + self._seconds
        return token

    def knows(self, token: str) -> bool:
        # Looking it up by its digest keeps the time from revealing anything about the token.
        self._forget()
        return _digest(token) in self._until

    def use_up(self, token: str) -> bool:
        self._forget()
        return self._until.pop(_digest(token), None) is not None

    def _forget(self) -> None:
        now = self._clock.now()
        self._until = {digest: until for digest, until in self._until.items() if until > now}


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()


COOKIE = "__Host-fedrec-page"
"""The prefix makes browsers refuse the cookie without TLS or from a different host."""
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

MOST_STREAMS = 32
MOST_LINK_BYTES = 200
BODY_SECONDS = 10.0
_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_OWN_PAGES = (None, "same-origin", "none")


def application(feed: Feed, access: Access | None, *, hosts: Collection[str]) -> ASGIApp:
    """Return the ASGI application.

    Args:
        feed: the source of messages.
        access: the check of links and sessions, or None for open access.
        hosts: names of the server, in addition to addresses.
    """
    routes = [_file(path, name) for path, name in _files().items()]
    routes.append(Route("/feed", _stream_of(feed, access)))
    routes.append(Route("/session", _looked_up_in(access)))
    routes.append(Route("/session", _opened_by(access), methods=["POST"]))
    return _Guarded(Starlette(routes=routes), frozenset(host.lower() for host in hosts))


class _Guarded:
    """Refuse requests for another host, and add the same headers to every answer."""

    def __init__(self, inner: ASGIApp, hosts: Collection[str]) -> None:
        self._inner, self._hosts = inner, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        answer = self._inner
        if not self._is_own(Headers(scope=scope).getlist("host")):
            answer = PlainTextResponse("The Host header names a different server.\n", 421)
        await answer(scope, receive, with_headers)

    def _is_own(self, given: list[str]) -> bool:
        return len(given) == 1 and names_server(given[0], self._hosts)


def _stream_of(feed: Feed, access: Access | None) -> Endpoint:
    """Return the handler that streams the feed, resuming after a lost connection."""

    async def answer(request: Request) -> Response:
        if not _is_own_page(request):
            return _refused(403, "The request comes from another site's page.")
        if not _may_look(request, access):
            return _refused(401, "A link is needed: fedrec watch ADDRESS --web prints one.")
        if feed.n_streams >= MOST_STREAMS:
            return _refused(503, f"{MOST_STREAMS} browsers are watching already.")
        last = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return StreamingResponse(feed.stream(last), media_type="text/event-stream")

    return answer


def _looked_up_in(access: Access | None) -> Endpoint:
    """Return the handler that tells a page whether its browser has access."""

    async def answer(request: Request) -> Response:
        return JSONResponse({"open": _may_look(request, access)})

    return answer


def _opened_by(access: Access | None) -> Endpoint:
    """Return the handler that exchanges a link for a session."""

    async def answer(request: Request) -> Response:
        if not _is_own_page(request):
            return _refused(403, "The request comes from another site's page.")
        if access is None:
            return JSONResponse({"open": True})
        body = b""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for piece in request.stream():
                    body += piece
                    if len(body) > MOST_LINK_BYTES:
                        return _refused(413, "This server did not make that link.")
        except TimeoutError:
            return _refused(408, "The link did not arrive.")
        session = access.open_session(body.decode("ascii", "replace"))
        if session is None:
            # Not an HTTP error, because the page itself explains the problem.
            return JSONResponse({"open": False})
        answered = JSONResponse({"open": True})
        answered.set_cookie(
            COOKIE,
            session,
            max_age=int(SESSION_SECONDS),
            path="/",
            secure=True,
            httponly=True,
            samesite="strict",
        )
        return answered

    return answer


def _files() -> dict[str, str]:
    """Return the paths of the page's files, and their places below `static`."""
    folder = files("fedrec_server.page") / "static"
    found = {f"/{name}": name for name in _names(folder)}
    return found | {"/": "index.html"}


def _names(folder: Traversable, before: str = "") -> list[str]:
    names: list[str] = []
    for one in folder.iterdir():
        if one.is_dir():
            names += _names(one, f"{before}{one.name}/")
        elif one.name.rpartition(".")[2] in _KINDS:
            names.append(f"{before}{one.name}")
    return names


def _file(path: str, name: str) -> Route:
    # Read once at the start, so that later changes to files have no effect.
    body = (files("fedrec_server.page") / "static" / name).read_bytes()
    kind = _KINDS[name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        return Response(body, headers={"content-type": kind})

    return Route(path, answer)


def _may_look(request: Request, access: Access | None) -> bool:
    return access is None or access.allows(request.cookies.get(COOKIE, ""))


def _is_own_page(request: Request) -> bool:
    """Return whether a request comes from this server's own page, if the browser reports it."""
    if request.headers.get("sec-fetch-site") not in _OWN_PAGES:
        return False
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def _refused(status: int, why: str) -> Response:
    # The rest of the request is not read.
    return JSONResponse({"error": why}, status, {"connection": "close"})


MOST_CONNECTIONS = 128
REQUEST_SECONDS = 10.0
"""A connection is closed if it is idle since the last look."""
_BACKLOG = 64
_KEEP_ALIVE_SECONDS = 15
_STOPPING_SECONDS = 2
_SETTING = "coordinator.page"


class Page:
    """Listen on construction, and answer from `start` to `close`.

    Args:
        engine: the run that is shown.
        settings: the settings, with `coordinator.page` set.

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
        """Return the URL of the page."""
        return f"{self.scheme}://{written_address(self.host, self.port)}/"

    def new_link(self) -> str:
        """Return a token that lets one browser in, or empty if the page needs no token."""
        return "" if self._access is None else self._access.new_link()

    def start(self) -> None:
        """Start answering in the running loop."""
        self._tasks = [
            asyncio.create_task(self._server.serve(sockets=[self._socket])),
            asyncio.create_task(self._feed.follow()),
        ]
        structlog.get_logger().info("page is served", url=self.url)

    async def close(self) -> None:
        """Close all connections and stop listening."""
        self._feed.close()
        self._server.should_exit = True
        if self._tasks:
            # An earlier error in either must not keep the other open.
            await asyncio.gather(self._tasks[0], return_exceptions=True)
            self._tasks[1].cancel()
            await asyncio.gather(self._tasks[1], return_exceptions=True)
        self._socket.close()


class _Connection(H11Protocol):
    """A uvicorn connection with limits on number and silence, which uvicorn lacks."""

    _seen: Any = None

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self.loop.call_later(REQUEST_SECONDS, self._look)

    def _look(self) -> None:
        # uvicorn waits indefinitely for the rest of a request after its first byte.
        if self.transport.is_closing():
            return
        if self.cycle is self._seen and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
            return
        self._seen = self.cycle
        self.loop.call_later(REQUEST_SECONDS, self._look)


def _hosts_of(certificate: Path) -> tuple[str, ...]:
    """Return the names in a certificate."""
    try:
        return hosts_of(certificate.read_bytes())
    except (OSError, KeysError, ExtensionNotFound) as error:
        raise _unusable(certificate, error) from None


def _unusable(certificate: Path | None, error: Exception) -> SettingsError:
    return SettingsError(
        f"coordinator.page_certificate: {certificate} cannot be used: {error}.",
        remedy="Name a PEM file with a private key and its certificate, or omit it to use "
        "coordinator.certificate.",
    )
