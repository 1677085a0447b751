"""Prometheus metrics: the registry of a party, and the port that serves it.

No user, item or client has its own metric: a label with its name would publish participation. Names
begin with `fedrec_` and use base units.
"""

from __future__ import annotations

import hmac
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

import fedrec
from fedrec.errors import SettingsError
from fedrec.listening import is_own_address, names_server, split_address, written_address

SECONDS = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
BYTES = tuple(float(1 << power) for power in range(10, 31, 2))


class Numbers:
    """The metrics of one party in its own registry, with memory and time of the process.

    Args:
        party: coordinator, client or authority.
    """

    def __init__(self, party: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        build = Info("fedrec_build", "The release that is running.", registry=self.registry)
        build.info({"version": fedrec.__version__, "party": party})

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Counter:
        """Register and return a counter."""
        return Counter(name, about, labels, registry=self.registry)

    def gauge(self, name: str, about: str, labels: Sequence[str] = ()) -> Gauge:
        """Register and return a gauge."""
        return Gauge(name, about, labels, registry=self.registry)

    def histogram(
        self, name: str, about: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        """Register and return a histogram."""
        return Histogram(name, about, labels, buckets=buckets, registry=self.registry)

    def disk_free(self, folder: Path) -> None:
        """Add the free space of the disk with the state folder, measured on each read."""
        free = self.gauge("fedrec_disk_free_bytes", "Free space of the disk with the state folder.")
        free.set_function(lambda: _free_bytes(folder))


def _free_bytes(folder: Path) -> float:
    """Return the free space, or NaN while the folder cannot be read."""
    try:
        return float(shutil.disk_usage(folder).free)
    except OSError:
        return float("nan")


FEWEST_TOKEN_CHARS = 32
MOST_READERS = 4
READER_SECONDS = 5.0
PATH = "/metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitored:
    """The settings for serving a party's metrics.

    Attributes:
        address: host:port, or empty to serve nothing.
        token: the file of the bearer token, or None.
        certificate: a PEM file with a key and its certificate, or None for no TLS.
        names: the settings or flags for address, token and certificate, for errors.
    """

    address: str = ""
    token: str | None = None
    certificate: str | None = None
    names: tuple[str, str, str] = ("metrics_address", "metrics_token", "metrics_certificate")

    @classmethod
    def of(
        cls, address: str, token: str | None, certificate: str | None, *, section: str
    ) -> Monitored:
        """Read the three settings of a section."""
        names = tuple(f"{section}.metrics_{word}" for word in ("address", "token", "certificate"))
        return cls(address=address, token=token, certificate=certificate, names=names)  # type: ignore[arg-type]  # three words, three names


class MetricsEndpoint:
    """Serve a registry until closed.

    Raises:
        SettingsError: the address is invalid, its port is taken, or a file cannot be used.
    """

    def __init__(self, registry: CollectorRegistry, where: Monitored) -> None:
        host, port = split_address(where.address, where.names[0])
        token = _token(where)
        if token is None and not is_own_address(host):
            raise SettingsError(
                f"{where.names[0]}: {where.address} can be reached from other machines, and "
                f"{where.names[1]} is not set.",
                remedy=f"Name a file with a token of at least {FEWEST_TOKEN_CHARS} characters, or "
                "listen on 127.0.0.1.",
            )
        context = _tls(where)
        try:
            self._server = _Server(host, port, registry, token, context)
        except OSError as error:
            raise SettingsError(
                f"{where.names[0]}: {where.address} cannot be opened: {error.strerror or error}.",
                remedy="Stop the other process, or choose another port (0 takes a free one).",
            ) from None
        found = self._server.server_address[1]
        self.address = written_address(host, found)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            # A party that ends waits at most this long for the thread.
            kwargs={"poll_interval": 0.05},
            name="metrics",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop accepting readers."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsEndpoint:
        """Return the endpoint itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop accepting readers."""
        self.close()


def metrics_endpoint(registry: CollectorRegistry, where: Monitored) -> MetricsEndpoint | None:
    """Serve a registry and log the address, or return None without an address.

    Raises:
        SettingsError: as for `MetricsEndpoint`.
    """
    if not where.address:
        return None
    import structlog

    endpoint = MetricsEndpoint(registry, where)
    structlog.get_logger().info("metrics are served", address=endpoint.address, path=PATH)
    return endpoint


class _Server(ThreadingHTTPServer):
    """Answer a few readers at a time and hang up on any others."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        token: bytes | None,
        context: ssl.SSLContext | None,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.registry, self.token = registry, token
        self.names = ("localhost", host.lower())
        self._places = threading.BoundedSemaphore(MOST_READERS)
        self._until: dict[Any, float] = {}
        super().__init__((host, port), _Reader)
        if context is not None:
            # The reader's thread does the handshake, so a silent reader costs one place.
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def server_bind(self) -> None:
        """Bind the port without the look-up of this machine's name, which is not needed."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread if there is a free place."""
        if self._places.acquire(blocking=False):
            self._until[request] = time.monotonic() + READER_SECONDS
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one reader and free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._until.pop(request, None)
            self._places.release()

    def service_actions(self) -> None:
        """Hang up on readers after their time limit, even if they keep sending bytes."""
        for request, until in list(self._until.items()):
            if until < time.monotonic():
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore readers that hang up, stay silent or use another protocol."""


class _Reader(BaseHTTPRequestHandler):
    timeout = READER_SECONDS
    server: _Server
    server_version = "fedrec"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the metrics."""
        if not self._is_called_by_name():
            self._answer(421, b"The Host header names another server.\n", "text/plain")
            return
        if self.path.partition("?")[0] != PATH:
            self._answer(404, b"There is /metrics here, and nothing else.\n", "text/plain")
            return
        if not self._may_read():
            self._answer(401, b"A bearer token is needed.\n", "text/plain")
            return
        self._answer(200, generate_latest(self.server.registry), CONTENT_TYPE_LATEST)

    def log_message(self, format: str, *args: Any) -> None:
        """Suppress the log line for each reading."""

    def _is_called_by_name(self) -> bool:
        """Return whether the Host header is ours.

        A valid token, which no web page has, is enough, too.
        """
        given = self.headers.get_all("Host", [])
        return self.server.token is not None or (
            len(given) == 1 and names_server(given[0], self.server.names)
        )

    def _may_read(self) -> bool:
        token = self.server.token
        shown = self.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return token is None or hmac.compare_digest(shown, b"Bearer " + token)

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _token(where: Monitored) -> bytes | None:
    if where.token is None:
        return None
    remedy = f"Write a line of at least {FEWEST_TOKEN_CHARS} random characters into it."
    try:
        found = Path(where.token).read_bytes().strip()
    except OSError as error:
        raise SettingsError(
            f"{where.names[1]}: {where.token} cannot be read: {error.strerror}.", remedy=remedy
        ) from None
    if len(found) < FEWEST_TOKEN_CHARS or len(found.split()) != 1:
        raise SettingsError(f"{where.names[1]}: {where.token} has no token.", remedy=remedy)
    return found


def _tls(where: Monitored) -> ssl.SSLContext | None:
    if where.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(where.certificate)
    except OSError as error:
        raise SettingsError(
            f"{where.names[2]}: {where.certificate} cannot be used: {error.strerror or error}.",
            remedy="Name a PEM file with a private key and the certificate for it.",
        ) from None
    return context
