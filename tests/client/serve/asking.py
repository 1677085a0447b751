"""Asking an application without a socket."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from world.silo import Silo

from fedrec.ids import RoundId
from fedrec.settings.schema import Settings
from fedrec_client.serve.model_holder import ModelHolder
from fedrec_client.serve.recommendation_api import RecommendationApi
from fedrec_client.serve.users_apart import UsersAndTail, _read
from fedrec_client.state.held_model import Which, read_held_model

OWN = ((b"host", b"127.0.0.1:7480"),)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    @property
    def ids(self) -> list[str]:
        return [item["item_id"] for item in self.json["items"]]


def ask(
    application: RecommendationApi,
    path: str,
    *,
    method: str | None = None,
    query: dict[str, Any] | bytes = b"",
    body: Any = None,
    headers: tuple[tuple[bytes, bytes], ...] = OWN,
    pieces: int = 1,
) -> Answer:
    """Return the answer to one request.

    Args:
        body: bytes, or what is sent as JSON; then the method is POST.
        pieces: how many messages the body comes in.
    """
    if isinstance(query, dict):
        query = urlencode(query, doseq=True).encode()
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        headers = (*headers, (b"content-type", b"application/json"))
    content = body or b""
    size = max(1, -(-len(content) // pieces))
    parts = [content[begin : begin + size] for begin in range(0, len(content) or 1, size)]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method or ("GET" if body is None else "POST"),
        "path": path,
        "query_string": query,
        "headers": list(headers),
    }
    asyncio.run(application(scope, receive, send))
    start, end = sent
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    assert found["content-length"] == str(len(end["body"]))
    return Answer(start["status"], found, end["body"])


def read_users_here(settings: Settings, which: Which, version: RoundId) -> UsersAndTail:
    """Read users in this process; where that is tested, another one does."""
    held = read_held_model(settings, which)
    assert held.version == version
    return _read(held, settings)


def holder_of(silo: Silo) -> ModelHolder:
    """Return a holder that reads users in this process."""
    return ModelHolder(silo.settings, read_users=read_users_here)
