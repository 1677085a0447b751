"""A coordinator with a page, and an HTTP client that knows nothing of browsers."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from server.support.serving import Serving
from world.clock import FakeClock

from fedrec.settings.schema import CoordinatorSettings

Told = tuple[str, str, Any]
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
def told(url: str, path: str = "/feed", **how: Any) -> Iterator[Iterator[Told]]:
    """Open the feed, and yield its messages as they come."""
    with asked(url, path, **how) as answer:
        assert answer.status == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _messages(answer)


def _messages(answer: http.client.HTTPResponse) -> Iterator[Told]:
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
