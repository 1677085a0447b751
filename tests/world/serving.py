"""A coordinator that serves over real ports, and an HTTP client that knows nothing of browsers."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from world.clock import FakeClock
from world.engine import Bench, authority, credentials, identity, operator
from world.machine import terms_of

from fedrec.clock import Clock
from fedrec.identity.certificates import Credentials
from fedrec.identity.document import write_secret
from fedrec.ids import RoundId
from fedrec.settings.schema import CoordinatorSettings
from fedrec.wire.convert import UPLOAD_HEADER
from fedrec.wire.grpc_calls import open_channel
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import UploadHeader
from fedrec.wire.v1 import update_pb2
from fedrec_server.app import Coordinator
from fedrec_server.store.durable_files import Failpoint, no_failpoint

HOSTS = ("127.0.0.1", "localhost")
T = TypeVar("T")


def settings_of(folder: Path, **changes: object) -> CoordinatorSettings:
    """Return settings on a free port, with what the key authority of the tests made."""
    certificate = folder / "coordinator.pem"
    if not certificate.exists():
        made = authority().issuer.credentials("coordinator", "localhost", hosts=HOSTS)
        write_secret(certificate, made.to_pem())
    (folder / "operator.crt").write_bytes(operator().certificate)
    values: dict[str, object] = {
        "port": 0,
        "state": str(folder / "state"),
        "certificate": str(certificate),
        "operators": str(folder / "operator.crt"),
        "reserve_bytes": 0,
        "maximum_upload_bytes": 16 << 20,
    }
    return CoordinatorSettings.model_validate(values | changes)


@dataclass
class Serving:
    """A running coordinator and ways to talk to it."""

    coordinator: Coordinator
    address: str
    loop: asyncio.AbstractEventLoop
    bench: Bench
    stopped: bool = False

    def stop(self, grace_seconds: float = 0.0) -> None:
        """Stop the coordinator before the end."""
        self.stopped = True
        self.do(self.coordinator.stop(grace_seconds=grace_seconds))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the coordinator's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    @property
    def run(self) -> str:
        """Return the run's name."""
        return self.coordinator.engine.run.name

    @contextmanager
    def link(self, who: Credentials | int = 0) -> Iterator[GrpcLink]:
        """Open a client's link; a number is a client's."""
        own = credentials(who) if isinstance(who, int) else who
        with GrpcLink(self.address, own) as link:
            yield link

    @contextmanager
    def channel(self, who: Credentials | int = 0) -> Iterator[Any]:
        """Open a bare channel, as a client unless told otherwise."""
        own = credentials(who) if isinstance(who, int) else who
        channel = open_channel(self.address, own)
        try:
            yield channel
        finally:
            channel.close()

    def come(self, numbers: range) -> None:
        """Let clients poll once, so that the round opens."""
        for number in numbers:
            self.task(number)

    def task(self, number: int) -> object:
        """Ask as a client what it has to do now."""
        with self.link(number) as link:
            me = identity(number).client_id
            return link.next_task(me, self.run, RoundId(0), wait_seconds=0.0).task

    def upload(self, number: int, round_id: int = 1) -> bool:
        """Upload a client's update."""
        payload = self.bench.payload(number, round_id)
        state = self.coordinator.engine.run.state
        terms = {}
        if state.current is not None and state.current.number == round_id:
            terms = terms_of(state)
        with self.link(number) as link:
            return link.submit_update(
                self.bench.header(number, round_id, payload, self.run, **terms), payload
            )

    def submit(self, header: UploadHeader, *chunks: tuple[int, bytes], who: int = 0) -> Any:
        """Send an upload chunk by chunk, whatever it is."""
        parts = [update_pb2.UploadPart(header=UPLOAD_HEADER.to_proto(header))]
        parts += [
            update_pb2.UploadPart(chunk=update_pb2.Chunk(offset=offset, data=data))
            for offset, data in chunks
        ]
        with self.channel(who) as channel:
            method = channel.stream_unary(
                "/fedrec.wire.v1.Coordinator/SubmitUpdate",
                request_serializer=update_pb2.UploadPart.SerializeToString,
                response_deserializer=update_pb2.UploadReceipt.FromString,
            )
            return method(iter(parts), timeout=20)


@contextmanager
def serving(
    bench: Bench,
    folder: Path,
    *,
    failpoint: Failpoint = no_failpoint,
    clock: Clock | None = None,
    prepare: Callable[[CoordinatorSettings], CoordinatorSettings] = lambda settings: settings,
) -> Iterator[Serving]:
    """Run a coordinator."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    coordinator = Coordinator(
        prepare(settings_of(folder)), bench.federation, failpoint=failpoint, clock=clock
    )
    try:
        address = asyncio.run_coroutine_threadsafe(coordinator.start(), loop).result(30)
        found = Serving(coordinator, address, loop, bench)
        try:
            yield found
        finally:
            if not found.stopped:
                found.stop()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


FeedMessage = tuple[str, str, Any]
"""The id, the kind and the content of a message."""


def with_page(
    address: str = "127.0.0.1:0", **changes: object
) -> Callable[[CoordinatorSettings], CoordinatorSettings]:
    """Return what adds a page to a coordinator's settings."""
    return lambda settings: settings.model_copy(update={"page": address, **changes})


@contextmanager
def asked(
    url: str,
    path: str = "/",
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: str | None = None,
    authority: bytes | None = None,
) -> Iterator[http.client.HTTPResponse]:
    """Ask, and hang up in the end.

    Args:
        authority: the certificate (PEM) that the server's has to be of, under TLS.
    """
    where = urlsplit(url)
    assert where.hostname is not None
    if where.scheme == "https":
        context = ssl.create_default_context(cadata=(authority or b"").decode())
        calling: http.client.HTTPConnection = http.client.HTTPSConnection(
            where.hostname, where.port, timeout=20, context=context
        )
    else:
        calling = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
    try:
        calling.request(method, path, body=body, headers=dict(headers or {}))
        yield calling.getresponse()
    finally:
        calling.close()


def ask(url: str, path: str = "/", **how: Any) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Return status, headers and body of an answer; see `asked`."""
    with asked(url, path, **how) as answer:
        return answer.status, answer.headers, answer.read()


@contextmanager
def feed(url: str, path: str = "/feed", **how: Any) -> Iterator[Iterator[FeedMessage]]:
    """Open the feed, and yield its messages as they come."""
    with asked(url, path, **how) as answer:
        assert answer.status == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _messages(answer)


def _messages(answer: http.client.HTTPResponse) -> Iterator[FeedMessage]:
    found: dict[str, str] = {}
    while line := answer.readline().decode().rstrip("\n"):
        name, _, value = line.partition(": ")
        found[name] = value
        if not answer.peek(1).startswith(b"\n"):
            continue
        answer.readline()
        if "data" in found:
            yield found.get("id", ""), found["event"], json.loads(found["data"])
        found = {}


def give_up_rounds(
    found: Serving, clock: FakeClock, number: int, clients: range = range(3)
) -> None:
    """Let clients come to so many rounds and be silent, until the time of each is over."""
    engine = found.coordinator.engine
    for _ in range(number):
        before = engine.run.state.abandoned
        found.come(clients)
        found.do(engine.tick())
        assert engine.run.state.current is not None
        clock.advance(found.bench.federation.plan.rounds.deadline_seconds + 1)
        found.do(engine.tick())
        assert engine.run.state.abandoned == before + 1


def publish_round(found: Serving, number: int, clients: range = range(3)) -> None:
    """Let all clients come and upload, so that a round is published."""
    engine = found.coordinator.engine
    found.come(clients)
    for client in clients:
        found.upload(client, number)
    for _ in range(100):
        if engine.run.state.published >= number:
            return
        found.do(engine.tick())
    raise AssertionError(f"Round {number} is not published.")
