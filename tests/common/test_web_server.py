"""Connections to a party's web server."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from world.keys import credentials

from fedrec import web_server as servers
from fedrec.web_server import listening_socket, web_server


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_USER_TIMEOUT is Linux's")
def test_who_vanished_is_given_up_after_a_minute():
    """Sooner than the quarter of an hour in which Linux by itself repeats what is not answered."""
    with (
        listening_socket("127.0.0.1", 0, backlog=1) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        found = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert found == 60_000


def test_a_handshake_that_does_not_come_ends(tmp_path, monkeypatch):
    """uvicorn waits a minute for each, and its own limits count none of them."""
    monkeypatch.setattr(servers, "_HANDSHAKE_SECONDS", 0.1)
    own = credentials("coordinator")
    (tmp_path / "own.pem").write_bytes(own.to_pem())

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    async def silent(certificate: Path | None) -> bytes:
        server = web_server(
            answer,
            H11Protocol,
            backlog=1,
            keep_alive_seconds=1,
            stopping_seconds=1,
            certificate=certificate,
        )
        with listening_socket("127.0.0.1", 0, backlog=1) as listening:
            await server.startup([listening])
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            if certificate is None:
                writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            try:
                return await asyncio.wait_for(reader.read(), 30)
            finally:
                writer.close()
                for listener in server.servers:
                    listener.close()

    assert asyncio.run(silent(tmp_path / "own.pem")) == b""
    assert asyncio.run(silent(None)).startswith(b"HTTP/1.1 204")
