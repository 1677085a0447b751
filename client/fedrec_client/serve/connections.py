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
    _unfinished_bytes = 0
    _head_bytes = 0
    _in_head = True
    _was_read = False

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
        self._was_read = False
        super().data_received(data)
        if self._in_head or not self._was_read:
            # The parser keeps what has no end as yet, in a head or behind a body.
            self._unfinished_bytes += len(data)
            if self._unfinished_bytes > MOST_HEAD_BYTES:
                self.refuse("head_too_large")
        if self.waiting_since is None and (self.cycle is None or self.cycle.response_complete):
            # Bytes that begin no request: uvicorn's own limit of idle connections is over.
            self.waiting_since = self.loop.time()

    def on_message_begin(self) -> None:
        """Begin to wait for a request."""
        super().on_message_begin()
        self.waiting_since = self.loop.time()
        self._in_head, self._head_bytes, self._unfinished_bytes = True, 0, 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what comes behind a body as one says nothing."""
        self._count(len(name) + len(value))
        if self._in_head:
            super().on_header(name, value)

    def _count(self, length: int) -> None:
        self._head_bytes += length
        if self._head_bytes > MOST_HEAD_BYTES:
            self.refuse("head_too_large")
            # Ends the parser's work on what it was given.
            raise ValueError("The head is too large.")

    def on_headers_complete(self) -> None:
        """Let the application begin, which sees to the body's length."""
        self._in_head, self._was_read = False, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._was_read = True
        super().on_body(body)

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
