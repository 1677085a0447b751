"""HTTP connections with limits: how many, how long a head, how slowly a request may come."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fedrec_client.serve.refusals import REFUSALS

__all__ = [
    "MOST_CONNECTIONS",
    "MOST_HEAD_BYTES",
    "REQUEST_SECONDS",
    "LimitedConnection",
    "close_slow_ones",
]

MOST_CONNECTIONS = 512
MOST_HEAD_BYTES = 32 << 10
REQUEST_SECONDS = 10.0
"""From a connection, or a request's first byte, to its last one."""
_LOOK_SECONDS = 1.0


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's connection, which by itself takes heads of any length and waits for ever.

    Attributes:
        waiting_since: when the request began that has not arrived as yet, in the loop's time;
            None while none is awaited, or where uvicorn's own limit of idle connections counts.
    """

    waiting_since: float | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: Any) -> None:
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        if len(self.connections) > MOST_CONNECTIONS:
            self.refuse("too_busy")

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self.refuse("head_too_large")

    def on_message_begin(self) -> None:
        """Begin to wait for a request."""
        super().on_message_begin()
        self.waiting_since = self.loop.time()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Let the application begin, which sees to the body's length."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait no more."""
        self.waiting_since = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the form that every refusal has."""
        self.refuse("malformed")

    def refuse(self, code: str) -> None:
        """Answer in place of the application, and close."""
        if self.transport.is_closing():
            return
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
    """Close connections whose request does not arrive, until cancelled."""
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
