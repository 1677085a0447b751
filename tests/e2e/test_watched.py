"""Browsers and Prometheus that go away, or stay and read nothing, beside a run of processes."""

from __future__ import annotations

import http.client
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from e2e.commands import Command, commands, poll
from e2e.kits import Kits
from e2e.test_bad_days import counted, finished

pytestmark = pytest.mark.slow

PLACES = 32
"""Of browsers; see `MOST_STREAMS`."""
KIB_A_BROWSER = 40
"""Less than the buffers of one that is forgotten."""
READERS = 4
"""Of Prometheus; see `MOST_READERS`."""


class Watched:
    """A coordinator with a page and numbers, and what it holds."""

    def __init__(self, coordinator: Command) -> None:
        self._coordinator = coordinator
        self.page = self._port("page is served", "url=http://127.0.0.1:")
        self.numbers = self._port("metrics are served", "address=127.0.0.1:")

    def _port(self, line: str, before: str) -> int:
        self._coordinator.wait_for(line)
        said = self._coordinator.told.partition(line)[2].partition(before)[2]
        return int(said[: next(at for at, c in enumerate(said) if not c.isdigit())])

    def held(self) -> tuple[int, int]:
        """Return how many descriptors and threads it has."""
        folder = f"/proc/{self._coordinator.process.pid}"
        return len(os.listdir(f"{folder}/fd")), len(os.listdir(f"{folder}/task"))

    def resident_kib(self) -> int:
        """Return its memory."""
        status = Path(f"/proc/{self._coordinator.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def asks(self, port: int, path: str) -> socket.socket:
        """Open a connection and ask, with little room for what comes back."""
        found = socket.socket()
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        found.settimeout(30)
        found.connect(("127.0.0.1", port))
        found.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        return found

    def scraped(self) -> str:
        """Return the numbers, as Prometheus reads them."""
        calling = http.client.HTTPConnection("127.0.0.1", self.numbers, timeout=30)
        try:
            calling.request("GET", "/metrics")
            return calling.getresponse().read().decode()
        except (ConnectionError, http.client.HTTPException):
            return ""
        finally:
            calling.close()


def broken_off(found: socket.socket) -> None:
    """Reset a connection, as a process that is killed does."""
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    found.close()


@pytest.fixture
def kits(tmp_path: Path) -> Iterator[Kits]:
    with commands() as started:
        made = Kits(tmp_path, started, total=1)
        made.set_coordinator('page = "127.0.0.1:0"', 'metrics_address = "127.0.0.1:0"')
        yield made


@contextmanager
def silent(watched: Watched) -> Iterator[None]:
    """Have as many browsers and readers as there are places, none of which reads a byte."""
    with ExitStack() as open_:
        for _ in range(PLACES):
            open_.enter_context(watched.asks(watched.page, "/feed"))
        for _ in range(READERS):
            open_.enter_context(socket.create_connection(("127.0.0.1", watched.numbers)))
        yield


def test_who_goes_away_leaves_nothing_behind(kits):
    watched = Watched(kits.coordinator())

    def wave() -> None:
        for _ in range(2):
            found = [watched.asks(watched.page, "/feed") for _ in range(25)]
            for one in found:
                assert one.recv(15) == b"HTTP/1.1 200 OK"
                broken_off(one)
        for _ in range(8):
            broken_off(watched.asks(watched.numbers, "/metrics"))
        assert poll(watched.scraped, "numbers")

    # The first ones have it start its threads and import what it needs.
    wave()
    poll(lambda: watched.held() == watched.held(), "quiet")
    before, memory = watched.held(), watched.resident_kib()
    for _ in range(4):
        wave()
    poll(lambda: watched.held() <= before, "all that they had is given back")
    # Two hundred browsers came and went, in places for thirty-two.
    assert watched.resident_kib() < memory + 200 * KIB_A_BROWSER


@pytest.mark.long
def test_who_stays_and_reads_nothing_holds_nobody_up(kits):
    coordinator = kits.coordinator()
    watched = Watched(coordinator)
    kits.authority()
    with silent(watched):
        finished(*(kits.client(name) for name in "abc"))
        assert coordinator.ended() == 0, coordinator.told
    assert counted(coordinator) == [3] * 3
    assert kits.models("abc") == {kits.undisturbed()}
