"""The ASGI application: routes and request handling.

It uses no framework, which would take the largest part of a request's time.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeAlias

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from structlog import get_logger

from fedrec.errors import StorageError
from fedrec.monitoring import Numbers
from fedrec_client.serve.model_holder import ModelHolder
from fedrec_client.serve.openapi import STYLE, document, page_of
from fedrec_client.serve.request_reading import (
    BATCH_FIELDS,
    MOST_BODY_BYTES,
    RECOMMEND_FIELDS,
    REFUSALS,
    SIMILAR_FIELDS,
    Gate,
    Recommend,
    RecommendBatch,
    Refusal,
    batch_question,
    from_body,
    from_query,
    recommend_question,
    similar_question,
)
from fedrec_client.serve.served_model import ServedModel

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)


class ServerNumbers:
    """Metrics of requests, by outcome and duration.

    Args:
        holder: the holder of the served model.
        now: a monotonic clock.
    """

    kind = CONTENT_TYPE_LATEST.encode()

    def __init__(self, holder: ModelHolder, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        numbers = Numbers("client")
        self._registry = numbers.registry
        requests = numbers.counter(
            "fedrec_serve_requests_total", "Requests by outcome.", ["outcome"]
        )
        self._outcomes = {name: requests.labels(name) for name in ("answered", *REFUSALS)}
        self._durations = numbers.histogram(
            "fedrec_serve_request_duration_seconds", "Time to answer.", _SECONDS
        )
        version = numbers.gauge(
            "fedrec_serve_model_version", "The served version, or -1 if there is none."
        )
        version.set_function(
            lambda: -1 if holder.current is None else holder.current.recommender.round
        )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count the request that is handled inside."""
        began = self._now()
        try:
            yield
        except Refusal as refusal:
            self.refused(refusal.code)
            raise
        except Exception:
            self.refused("internal")
            raise
        self._outcomes["answered"].inc()
        self._durations.observe(self._now() - began)

    def refused(self, code: str) -> None:
        """Count a refused request."""
        self._outcomes[code].inc()

    def text(self) -> bytes:
        """Return the metrics in Prometheus' format."""
        return generate_latest(self._registry)


Scope: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_DRAINED_BYTES = 16 * MOST_BODY_BYTES
"""This much of an oversized body is still read, so that its sender reads the answer."""
_JSON, _HTML, _CSS = b"application/json", b"text/html; charset=utf-8", b"text/css; charset=utf-8"
_ALWAYS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; style-src 'self'; frame-ancestors 'none'"),
)
_RETRY_SECONDS = 1


class RecommendationApi:
    """Answer requests from the version that the holder has at the moment.

    Args:
        holder: the holder of the model.
        gate: the check of requests.
        logs: write a line to the log for each request, without its ids.

    Attributes:
        numbers: metrics of requests, including those that are refused early.
    """

    def __init__(self, holder: ModelHolder, gate: Gate, *, logs: bool = False) -> None:
        self._holder = holder
        self._logs = logs
        self._gate = gate
        self.numbers = ServerNumbers(holder)
        # Folding in a history, and a batch, take milliseconds, which must not delay other requests.
        self._folding = ThreadPoolExecutor(1, thread_name_prefix="fold-in")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if self._logs:
            send = self._logged(scope, send)
        try:
            with self.numbers.answering():
                self._gate.check(scope["headers"])
                await self._route(scope, receive, send)
        except Refusal as refusal:
            await self._refuse(send, refusal)
        except Exception as error:
            incident = secrets.token_hex(4)
            # Neither address nor body is logged, because they name people.
            get_logger("fedrec.client").error(
                "request failed", incident=incident, path=scope["path"], exc_info=error
            )
            await self._refuse(
                send, Refusal("internal", f"A defect. The log has the details under {incident}.")
            )

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/v1/recommend":
            self._gate.check_token(scope["headers"])
            given = await _given(scope, receive, RECOMMEND_FIELDS)
            question = recommend_question(given)
            await _answer(send, 200, await self._recommend(question), _JSON)
        elif path == "/v1/batch":
            self._gate.check_token(scope["headers"])
            batch = batch_question(await _given(scope, receive, BATCH_FIELDS))
            await _answer(send, 200, await self._recommend(batch), _JSON)
        elif path == "/v1/similar":
            self._gate.check_token(scope["headers"])
            asked = similar_question(await _given(scope, receive, SIMILAR_FIELDS))
            await _answer(send, 200, self._model().similar(asked), _JSON)
        elif path not in self._pages:
            raise Refusal("not_found", f"There is nothing at {path[:80]!r}.", "See /docs.")
        elif method not in ("GET", "HEAD"):
            raise _wrong_method("GET")
        elif path == "/health":
            await self._health(send, known=self._gate.allows(scope["headers"]))
        elif path == "/metrics":
            self._gate.check_token(scope["headers"])
            await _answer(send, 200, self.numbers.text(), self.numbers.kind)
        else:
            body, kind = self._pages[path]
            await _answer(send, 200, body, kind)

    def _logged(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that logs the request when its answer begins."""
        began = time.perf_counter()
        # The query and the body name people. A path that the server doesn't have could, too.
        known = scope["path"] in self._paths

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                get_logger("fedrec.client").info(
                    "request",
                    method=scope["method"],
                    path=scope["path"] if known else "unknown",
                    status=message["status"],
                    milliseconds=round(1000.0 * (time.perf_counter() - began), 1),
                )
            await send(message)

        return sending

    @cached_property
    def _paths(self) -> frozenset[str]:
        """All paths."""
        return frozenset((*self._pages, *document()["paths"]))

    @cached_property
    def _pages(self) -> Mapping[str, tuple[bytes, bytes]]:
        """The fixed pages."""
        described = document()
        page = page_of(described)
        return {
            "/": (page, _HTML),
            "/docs": (page, _HTML),
            "/docs.css": (STYLE, _CSS),
            "/health": (b"", _JSON),
            "/metrics": (b"", self.numbers.kind),
            "/openapi.json": (json.dumps(described).encode(), _JSON),
        }

    def _model(self) -> ServedModel:
        """Return the version in service.

        Raises:
            Refusal: there is none yet.
        """
        found = self._holder.current
        if found is None:
            raise self._not_ready()
        return found

    def _not_ready(self) -> Refusal:
        problem = self._holder.problem
        message = "The model is being read." if problem is None else problem.message
        remedy = "" if problem is None else problem.remedy
        return Refusal(
            "not_ready",
            message,
            f"{remedy} This server looks again by itself.".strip(),
            retry_after_seconds=_RETRY_SECONDS,
        )

    async def _recommend(self, question: Recommend | RecommendBatch) -> bytes:
        """Answer from one version.

        Raises:
            Refusal: there is none.
        """
        model = self._model()
        try:
            loop = asyncio.get_running_loop()
            if isinstance(question, RecommendBatch):
                return await loop.run_in_executor(self._folding, model.batch, question)
            if question.user and not question.recent:
                return model.recommend(question)
            return await loop.run_in_executor(self._folding, model.recommend, question)
        except StorageError:
            # The files of a version's tables are deleted with it.
            self._holder.look_soon()
            raise Refusal(
                "not_ready",
                "The user's stored parameters are being replaced by those of another version.",
                "Ask again.",
                retry_after_seconds=_RETRY_SECONDS,
            ) from None

    async def _health(self, send: Send, *, known: bool) -> None:
        model, problem = self._holder.current, self._holder.problem
        health: dict[str, object] = {
            "status": "not_ready" if model is None else "ready",
            "version": None if model is None else int(model.recommender.round),
        }
        if known:
            health["run"] = None if model is None else model.run
            health["n_items"] = None if model is None else len(model.recommender.catalogue)
            health["n_users"] = None if model is None else len(model.recommender.user_ids)
            health["problem"] = None
            if problem is not None:
                health["problem"] = {
                    "code": problem.code,
                    "message": problem.message,
                    "remedy": problem.remedy,
                }
        await _answer(send, 503 if model is None else 200, json.dumps(health).encode(), _JSON)

    async def _refuse(self, send: Send, refusal: Refusal) -> None:
        model = self._holder.current
        error = {"code": refusal.code, "message": refusal.message, "remedy": refusal.remedy}
        version = None if model is None else int(model.recommender.round)
        body = json.dumps({"error": error, "version": version}).encode()
        more = []
        if refusal.retry_after_seconds:
            more.append((b"retry-after", str(refusal.retry_after_seconds).encode()))
        if refusal.code == "unauthorised":
            more.append((b"www-authenticate", b"Bearer"))
        if refusal.code == "wrong_method":
            more.append((b"allow", refusal.remedy.encode()))
        if refusal.code == "too_large":
            more.append((b"connection", b"close"))
        await _answer(send, refusal.status, body, _JSON, more)


async def _given(scope: Scope, receive: Receive, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a request, from the address of a GET or the body of a POST.

    Raises:
        Refusal: the method is not allowed, or the request cannot be read.
    """
    if scope["method"] == "GET":
        return from_query(scope["query_string"], fields)
    if scope["method"] != "POST":
        raise _wrong_method("GET, POST")
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    # A page of another site could send a form, but not this content type.
    if len(kinds) != 1 or kinds[0].partition(b";")[0].strip().lower() != _JSON:
        raise Refusal(
            "not_json", "The content type of the body is not application/json.", "Send JSON."
        )
    if scope["query_string"]:
        raise Refusal("malformed", "A POST has its fields in the body.", "Send one object.")
    return from_body(await _body(receive), fields)


async def _body(receive: Receive) -> bytes:
    """Read a body.

    Raises:
        Refusal: the body is too large. It was read up to the limit.
    """
    parts, length, more = [], 0, True
    while more and length <= _DRAINED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal("malformed", "The body ends early.")
        part = message.get("body", b"")
        length += len(part)
        if length <= MOST_BODY_BYTES:
            parts.append(part)
        more = message.get("more_body", False)
    if length > MOST_BODY_BYTES:
        raise Refusal(
            "too_large",
            f"The body has more than {MOST_BODY_BYTES} bytes.",
            "Pass fewer ids. In a long history the latest items matter most.",
        )
    return b"".join(parts)


def _wrong_method(allowed: str) -> Refusal:
    return Refusal("wrong_method", "The path does not support this method.", allowed)


async def _answer(
    send: Send,
    status: int,
    body: bytes,
    kind: bytes,
    more: list[tuple[bytes, bytes]] | tuple[()] = (),
) -> None:
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
        *_ALWAYS,
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
