"""Asks a server for recommendations from a process of its own, and prints what it measured.

    python benchmarks/serve_load.py HOST PORT open|closed SECONDS N_USERS

`open` asks 1,000 questions a second at fixed times, whatever becomes of the ones before; a latency
counts from the time at which the question was due. `closed` asks the next question of a connection
when the one before was answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from typing import cast

import uvloop

RATE = 1000
CONNECTIONS = 32


class Connection(asyncio.Protocol):
    """One connection with at most one question at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._due = 0.0
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._load.free(self)

    def ask(self, question: bytes, due: float) -> None:
        self._due = due
        self._transport.write(question)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, gap, body = self._buffer.partition(b"\r\n\r\n")
        if not gap:
            return
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        self._buffer = b""
        self._load.answered(head, body, time.perf_counter() - self._due)
        self._load.free(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._load.lost += 1


class Load:
    """All connections, and what was measured."""

    def __init__(self, host: str, kind: str, n_users: int) -> None:
        self._questions = [
            f"GET /v1/recommend?user={user}&n=10 HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
            for user in range(n_users)
        ]
        self._open = kind == "open"
        self._idle: deque[Connection] = deque()
        self._due: deque[float] = deque()
        self._asked = 0
        self.seconds: list[float] = []
        self.versions: set[bytes] = set()
        self.refused = self.lost = 0
        self.is_over = False

    def free(self, connection: Connection) -> None:
        if self.is_over:
            return
        if not self._open:
            self._ask(connection, time.perf_counter())
        elif self._due:
            self._ask(connection, self._due.popleft())
        else:
            self._idle.append(connection)

    def is_due(self, at: float) -> None:
        if self._idle:
            self._ask(self._idle.popleft(), at)
        else:
            self._due.append(at)

    def answered(self, head: bytes, body: bytes, seconds: float) -> None:
        if not head.startswith(b"HTTP/1.1 200 "):
            self.refused += 1
            return
        self.seconds.append(seconds)
        self.versions.add(body.partition(b",")[0])

    def _ask(self, connection: Connection, due: float) -> None:
        self._asked += 1
        connection.ask(self._questions[self._asked * 7919 % len(self._questions)], due)


async def main(host: str, port: int, kind: str, seconds: float, n_users: int) -> None:
    """Measure, and print one JSON object."""
    load = Load(f"{host}:{port}", kind, n_users)
    loop = asyncio.get_running_loop()
    for _ in range(CONNECTIONS):
        await loop.create_connection(lambda: Connection(load), host, port)
    begin = time.perf_counter()
    if kind == "open":
        asked = 0
        while asked < RATE * seconds:
            now = time.perf_counter()
            while asked < RATE * seconds and begin + asked / RATE <= now:
                load.is_due(begin + asked / RATE)
                asked += 1
            await asyncio.sleep(0.0005)
        await asyncio.sleep(0.5)
    else:
        await asyncio.sleep(seconds)
    taken = time.perf_counter() - begin
    load.is_over = True
    found = sorted(load.seconds)
    print(
        json.dumps(
            {
                "answers": len(found),
                "per_second": len(found) / taken,
                "p50_ms": 1e3 * found[len(found) // 2],
                "p99_ms": 1e3 * found[len(found) * 99 // 100],
                "worst_ms": 1e3 * found[-1],
                "refused": load.refused,
                "lost": load.lost,
                "versions": len(load.versions),
            }
        )
    )


if __name__ == "__main__":
    uvloop.run(
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
    )
