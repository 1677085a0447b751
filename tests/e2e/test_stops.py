"""A coordinator with a page is stopped again and again, and no other party ends.

The run is in a later key epoch than the one in the coordinator's settings, which has no members.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.commands import Command, commands, poll
from e2e.kits import Kits, fedrec, wait_for_event
from e2e.test_bad_days import counted

pytestmark = pytest.mark.slow

ROUNDS = 5_000
PAGE_SECONDS = 5.0
"""In which the page has to show what happened; it is told every second."""
LINGERS = "import fedrec_server.app as app; app.LINGER_SECONDS = {seconds}"
ENDINGS = {signal.SIGTERM: 0, signal.SIGINT: 130, signal.SIGHUP: 130}
NUMBERS = tuple(ENDINGS)


class Parties:
    """A coordinator that is stopped, and those who must not notice more than that it is away."""

    def __init__(self, folder: Path, kits: Kits) -> None:
        self._folder, self._kits = folder, kits
        self.starts = 0
        self.coordinator = self.start()
        self.authority = kits.authority()
        self.clients = {name: kits.client(name) for name in "abc"}
        wait_for_event(self.authority, "epoch began")

    def start(self, *, lingers_seconds: float = 1.0) -> Command:
        """Start the coordinator, which stays so long once the run has ended."""
        self.starts += 1
        first = LINGERS.format(seconds=lingers_seconds)
        self.coordinator = self._kits.coordinator(f"coordinator {self.starts}", first=first)
        return self.coordinator

    def operate(self, command: str, *flags: str) -> str:
        """Run an operator's command to its end; return what it said."""
        operator = str(self._kits.path / "authority" / "operator.pem")
        return fedrec(self._folder, command, self._kits.address, "--operator", operator, *flags)

    def start_client(self, name: str) -> None:
        self.clients[name] = self._kits.client(name)

    def until_rounds(self, more: int) -> None:
        """Wait until this coordinator published some rounds."""
        poll(lambda: self.still_there() and len(counted(self.coordinator)) >= more, "rounds")

    def until_waiting(self, name: str) -> None:
        """Wait until a round waits for a client, so that all others poll."""
        awaited = f'"awaited": ["{name}"]'
        poll(lambda: awaited in self.operate("status", "--json"), "a round that waits")

    def stop(self, number: signal.Signals) -> None:
        """Stop the coordinator while a browser looks at its page, and start it again."""
        with self.browser():
            self.coordinator.process.send_signal(number)
            assert self.coordinator.ended() == ENDINGS[number], self.coordinator.told
        assert self.still_there()
        self.start()

    def stop_client(self, name: str) -> None:
        """Stop a client, and check that operators see that at once, also in the page."""
        client = self.clients.pop(name)
        with self.browser() as browser:
            client.interrupt()
            assert client.ended() == 130, client.told
            (row,) = (
                line for line in self.operate("clients").splitlines() if f" {name} " in f" {line} "
            )
            assert "stopped" in row, row
            assert {"name": name, "state": "stopped"}.items() <= self.member(name).items()
            told, until = browser.makefile("rb"), time.monotonic() + PAGE_SECONDS
            while self.member(name, told.readline()).get("state") != "stopped":
                assert time.monotonic() < until, "the page does not show it"

    def member(self, name: str, line: bytes = b"") -> dict[str, object]:
        """Return what `status`, or a line of the page's feed, says of a member."""
        said = line.partition(b"data: ")[2] if line else self.operate("status", "--json").encode()
        found = json.loads(said) if said.startswith(b"{") else {}
        return next((one for one in found.get("members", ()) if one["name"] == name), {})

    def browser(self) -> socket.socket:
        """Return a browser that looks at the coordinator's page."""
        port = re.search(r"page is served.*url=http://127\.0\.0\.1:(\d+)", self.coordinator.told)
        assert port is not None, self.coordinator.told
        found = socket.create_connection(("127.0.0.1", int(port[1])), timeout=30.0)
        found.sendall(b"GET /feed HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert found.recv(15)
        return found

    def still_there(self) -> bool:
        """Check that nobody but the coordinator ended."""
        for party in (self.authority, *self.clients.values()):
            assert party.process.poll() is None, party.told[-4000:]
        return True

    def close(self) -> None:
        assert "not_a_member" not in "".join(client.told for client in self.clients.values())


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    with commands() as started:
        kits = Kits(tmp_path, started, total=ROUNDS)
        kits.set_coordinator('page = "127.0.0.1:0"')
        made = Parties(tmp_path, kits)
        yield made
        made.close()


@pytest.mark.parametrize("stops", [1, pytest.param(10, marks=pytest.mark.long)])
def test_stops_in_the_middle_of_rounds_and_while_clients_wait(parties, stops):
    for n in range(stops):
        parties.until_rounds(2)
        # Wherever the next round is by then.
        time.sleep(0.05 * n)
        parties.stop(NUMBERS[n % 3])
    parties.until_rounds(1)
    parties.stop_client("c")
    for n in range(stops):
        parties.until_waiting("c")
        parties.stop(NUMBERS[n % 3 - 1])
    parties.start_client("c")
    parties.until_rounds(1)


def test_a_client_that_slept_while_the_run_ended(parties):
    """The coordinator ends by itself; who calls meanwhile waits, and hears of the end later."""
    parties.until_rounds(1)
    sleeper = parties.clients.pop("c")
    sleeper.process.send_signal(signal.SIGSTOP)
    parties.operate("stop", "--now")
    parties.coordinator.wait_for("coordinator stops")
    sleeper.process.send_signal(signal.SIGCONT)
    assert parties.coordinator.ended() == 0, parties.coordinator.told
    for client in parties.clients.values():
        assert client.ended() == 0, client.told
    sleeper.wait_for("unreachable")
    assert sleeper.process.poll() is None
    parties.start(lingers_seconds=100.0)
    assert sleeper.ended() == 0, sleeper.told
