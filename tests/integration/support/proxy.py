"""A TCP proxy between a client and the coordinator that records."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

PIECE_BYTES = 8 * 1024


class Proxy:
    """Passes bytes on in both directions.

    Args:
        address: host:port of the coordinator.
        on_sent: called with the bytes that the client sends before they are passed on.

    Attributes:
        address: where clients connect to.
    """

    def __init__(self, address: str, on_sent: Callable[[bytes], None]) -> None:
        host, _, port = address.rpartition(":")
        self._upstream = (host, int(port))
        self._on_sent = on_sent
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads[0].start()

    def close(self) -> None:
        """Cut everything."""
        _close(self._listener)
        with self._lock:
            for connection in self._open:
                _close(connection)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
            except OSError:
                return
            with self._lock:
                self._open += [client, server]
            for source, target, told in (
                (client, server, self._on_sent),
                (server, client, lambda data: None),
            ):
                thread = threading.Thread(
                    target=self._pass_on, args=(source, target, told), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, told: Callable[[bytes], None]
    ) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                told(data)
                target.sendall(data)
        _close(source)
        _close(target)


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
