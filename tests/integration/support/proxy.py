"""A proxy between a client and the coordinator that reads what the test lets it read.

It ends TLS on both sides, which takes the coordinator's key and the client's: nobody but a test
that made the whole federation has both.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PIECE_BYTES = 8 * 1024


class Proxy:
    """Passes bytes on in both directions.

    Args:
        address: host:port of the coordinator.
        on_sent: called with the bytes that the client sends before they are passed on.
        coordinator: the coordinator's key and certificate.
        client: the client's.

    Attributes:
        address: where clients connect to.
    """

    def __init__(
        self, address: str, on_sent: Callable[[bytes], None], *, coordinator: Path, client: Path
    ) -> None:
        host, _, port = address.rpartition(":")
        self._upstream = (host, int(port))
        self._on_sent = on_sent
        self._inwards = _context(ssl.PROTOCOL_TLS_SERVER, coordinator)
        self._onwards = _context(ssl.PROTOCOL_TLS_CLIENT, client)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Cut everything."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._take, "127.0.0.1", 0, ssl=self._inwards)

    async def _cut(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            onwards = await asyncio.open_connection(*self._upstream, ssl=self._onwards)
            await asyncio.gather(
                _pass_on(reader, onwards[1], self._on_sent),
                _pass_on(onwards[0], writer, lambda data: None),
            )


def _context(kind: int, own: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(own)
    context.set_alpn_protocols(["h2"])
    return context


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, told: Callable[[bytes], None]
) -> None:
    try:
        while data := await reader.read(PIECE_BYTES):
            told(data)
            writer.write(data)
            await writer.drain()
    finally:
        writer.transport.abort()
