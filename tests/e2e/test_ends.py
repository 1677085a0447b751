"""How runs end, stop and are watched.

The run that is stopped again and again is in a later key epoch than the coordinator's settings.
"""

import ast
import http.client
import json
import os
import re
import shlex
import signal
import socket
import struct
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from e2e.test_bad_days import counted, finished
from world.clock import poll
from world.kits import Command, Kits, commands, descendants, fedrec, is_running, wait_for_event

from fedrec.data import generate
from fedrec.data.writing import write_interactions

ROOT = Path(__file__).parents[2]
STARTS = {"Popen", "run", "call", "check_call", "check_output", "Process", "fork", "system"}
WATCHED = {"child_command", "end_with_parent"}

SETTINGS = """
[federation]
name = "ends"
minimum_item_users = 1
[algorithm]
name = "{algorithm}"
dim = 4
[update]
structure = "dense"
[training]
accelerated = false
[rounds]
total = {total}
[data]
path = "data.csv"
[evaluation]
protocol = "full"
"""
SIMULATE = ("simulate", "run.toml")
SEEDS = (*SIMULATE, "--seeds", "2", "--jobs", "2")
EVALUATE = ("evaluate", "run.toml", "--seeds", "1", "--protocols", "full", "--no-references")


@pytest.fixture
def start(tmp_path):
    made = generate(
        n_users=24, n_items=30, n_clusters=3, interactions_per_user=8, noise=0.1, seed=3
    )
    write_interactions(tmp_path / "data.csv", made.interactions)
    settings(tmp_path)
    with commands() as started:
        yield started


def settings(folder, *, algorithm="fedals", total=5000):
    text = SETTINGS.format(algorithm=algorithm, total=total)
    (folder / "run.toml").write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "number", "begun"),
    [
        (SIMULATE, signal.SIGTERM, "round 50/"),
        pytest.param(SEEDS, signal.SIGHUP, "round 1/", marks=pytest.mark.long),
        pytest.param(SIMULATE, signal.SIGHUP, "round 50/", marks=pytest.mark.long),
        pytest.param(EVALUATE, signal.SIGTERM, "round ", marks=pytest.mark.long),
    ],
)
def test_a_signal_leaves_a_run_that_goes_on(start, tmp_path, arguments, number, begun):
    running: Command = start(tmp_path / "first.log", *arguments)
    running.wait_for(begun)
    children = descendants(running.process.pid)
    running.process.send_signal(number)
    assert running.ended() == 130, running.output
    assert not [child for child in children if is_running(child)]
    assert "Traceback" not in running.output
    again = re.findall(r"To resume: fedrec (.*)", running.output)
    assert len(again) == (2 if arguments == SEEDS else 1), running.output
    if arguments[0] == "simulate":
        folder = tmp_path / re.findall(r"--resume (\S+)", again[0])[0]
        n_rounds = len((folder / "rounds.jsonl").read_text().splitlines())
        resumed: Command = start(tmp_path / "second.log", *shlex.split(again[0]))
        resumed.wait_for("round ")
        assert int(re.findall(r"round (\d+)/", resumed.output)[0]) > n_rounds


@pytest.mark.long
def test_tune_shows_what_it_tried_and_under_nohup_nothing_stops_it(start, tmp_path):
    tune = ("tune", "run.toml", "--try", "algorithm.regularisation=20,30,40,50")
    settings(tmp_path, total=300)
    running: Command = start(tmp_path / "tune.log", *tune, under=("nohup",))
    running.wait_for("fedals 1  ")
    running.process.send_signal(signal.SIGHUP)
    running.wait_for("fedals 2  ")
    running.process.send_signal(signal.SIGTERM)
    assert running.ended() == 130, running.output
    assert "starting settings" in running.output and "--resume" in running.output


@pytest.mark.long
@pytest.mark.parametrize("kind", ["seeds and their workers", "parties"])
def test_killed_it_leaves_no_child(start, tmp_path, kind):
    if kind == "parties":
        kits = Kits(tmp_path, start, total=5000)
        running, n_children = start(tmp_path / "up.log", "up", str(kits.path)), 5
    else:
        settings(tmp_path, algorithm="fedmf")
        workers = ("--workers", "2")
        running, n_children = start(tmp_path / "seeds.log", *SEEDS, *workers), 2
    children: set[int] = set()

    def all_there():
        assert running.process.poll() is None, running.output
        children.update(descendants(running.process.pid))
        return len(children) >= n_children

    poll(all_there, "children")
    if kind != "parties":
        running.wait_for("round 1/")
        all_there()
    running.kill()
    poll(lambda: not [child for child in children if is_running(child)], "their end", 20.0)


def test_whatever_starts_a_process_has_it_end_with_its_parent():
    """Every file that starts one does so by `child_command`, or has the child watch."""
    starting = set()
    for part in ("common", "server", "client", "lab"):
        for path in (ROOT / part).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if not re.search(r"^ *(?:from|import) (?:subprocess|multiprocessing|os)\b", text, re.M):
                continue
            tree = ast.parse(text)
            calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
            named = {
                call.attr
                for call in calls
                if isinstance(call, ast.Attribute)
                and isinstance(call.value, ast.Name)
                and call.value.id in ("subprocess", "multiprocessing", "os")
            }
            if named & STARTS:
                starting.add(path.name)
                names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
                assert names & WATCHED or path.name == "worker_process.py", path
    assert {"seeds.py", "parties.py", "worker_process.py", "fetching.py"} <= starting


ROUNDS = 5_000
PAGE_SECONDS = 5.0
"""In which the page has to show what happened; it is told every second."""
SILENCE = "import fedrec_server.app as app; app.SILENCE_SECONDS = {seconds}"
ENDINGS = {signal.SIGTERM: 0, signal.SIGINT: 130, signal.SIGHUP: 130}
NUMBERS = tuple(ENDINGS)
STOPS = 10


class Parties:
    """A coordinator that is stopped, and those who must not notice more than that it is away."""

    def __init__(self, folder, kits):
        self._folder, self._kits = folder, kits
        self.starts = 0
        self.coordinator = self.start()
        self.authority = kits.authority()
        self.clients = {name: kits.client(name) for name in "abc"}
        wait_for_event(self.authority, "epoch began")

    def start(self, *, silence_seconds=1.0):
        """Start the coordinator, which waits so long for clients that miss the end."""
        self.starts += 1
        first = SILENCE.format(seconds=silence_seconds)
        self.coordinator = self._kits.coordinator(f"coordinator {self.starts}", first=first)
        return self.coordinator

    def operate(self, command, *flags):
        """Run an operator's command to its end; return what it said."""
        operator = str(self._kits.path / "authority" / "operator.pem")
        return fedrec(self._folder, command, self._kits.address, "--operator", operator, *flags)

    def start_client(self, name):
        self.clients[name] = self._kits.client(name)

    def until_rounds(self, more):
        """Wait until this coordinator published some rounds."""
        poll(lambda: self.still_there() and len(counted(self.coordinator)) >= more, "rounds")

    def until_waiting(self, name):
        """Wait until a round waits for a client, so that all others poll."""
        awaited = f'"awaited": ["{name}"]'
        poll(lambda: awaited in self.operate("status", "--json"), "a round that waits")

    def stop(self, number):
        """Stop the coordinator while a browser looks at its page, and start it again."""
        with self.browser():
            self.coordinator.process.send_signal(number)
            assert self.coordinator.ended() == ENDINGS[number], self.coordinator.output
        assert self.still_there()
        self.start()

    def stop_client(self, name):
        """Stop a client, and check that operators see that at once, also in the page."""
        client = self.clients.pop(name)
        with self.browser() as browser:
            client.interrupt()
            assert client.ended() == 130, client.output
            (row,) = (
                line for line in self.operate("clients").splitlines() if f" {name} " in f" {line} "
            )
            assert "stopped" in row, row
            assert {"name": name, "state": "stopped"}.items() <= self.member(name).items()
            feed, until = browser.makefile("rb"), time.monotonic() + PAGE_SECONDS
            while self.member(name, feed.readline()).get("state") != "stopped":
                assert time.monotonic() < until, "the page does not show it"

    def member(self, name, line=b""):
        """Return what `status`, or a line of the page's feed, says of a member."""
        note = line.partition(b"data: ")[2] if line else self.operate("status", "--json").encode()
        found = json.loads(note) if note.startswith(b"{") else {}
        return next((one for one in found.get("members", ()) if one["name"] == name), {})

    def browser(self):
        """Return a browser that looks at the coordinator's page."""
        port = re.search(r"page is served.*url=http://127\.0\.0\.1:(\d+)", self.coordinator.output)
        assert port is not None, self.coordinator.output
        found = socket.create_connection(("127.0.0.1", int(port[1])), timeout=30.0)
        found.sendall(b"GET /feed HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert found.recv(15)
        return found

    def still_there(self):
        """Check that no process but the coordinator ended."""
        for party in (self.authority, *self.clients.values()):
            assert party.process.poll() is None, party.output[-4000:]
        return True

    def close(self):
        assert "not_a_member" not in "".join(client.output for client in self.clients.values())


@pytest.fixture
def parties(tmp_path):
    with commands() as started:
        kits = Kits(tmp_path, started, total=ROUNDS)
        kits.set_coordinator('page = "127.0.0.1:0"')
        made = Parties(tmp_path, kits)
        yield made
        made.close()


@pytest.mark.long
def test_stops_in_the_middle_of_rounds_and_while_clients_wait(parties):
    for n in range(STOPS):
        parties.until_rounds(2)
        # Wherever the next round is by then.
        time.sleep(0.05 * n)
        parties.stop(NUMBERS[n % 3])
    parties.until_rounds(1)
    parties.stop_client("c")
    for n in range(STOPS):
        parties.until_waiting("c")
        parties.stop(NUMBERS[n % 3 - 1])
    parties.start_client("c")
    parties.until_rounds(1)


@pytest.mark.long
def test_a_client_that_slept_while_the_run_ended(parties):
    """The coordinator ends by itself; who calls meanwhile waits, and hears of the end later."""
    parties.until_rounds(1)
    sleeper = parties.clients.pop("c")
    sleeper.process.send_signal(signal.SIGSTOP)
    parties.operate("stop", "--now")
    parties.coordinator.wait_for("coordinator stops")
    sleeper.process.send_signal(signal.SIGCONT)
    assert parties.coordinator.ended() == 0, parties.coordinator.output
    for client in parties.clients.values():
        assert client.ended() == 0, client.output
    sleeper.wait_for("unreachable")
    assert sleeper.process.poll() is None
    parties.start(silence_seconds=100.0)
    assert sleeper.ended() == 0, sleeper.output


PLACES = 32
"""Of browsers; see `MOST_STREAMS`."""
KIB_A_BROWSER = 40
"""Less than the buffers of one that is forgotten."""
READERS = 4
"""Of Prometheus; see `MOST_READERS`."""


class Watched:
    """A coordinator with a page and numbers, and what it holds."""

    def __init__(self, coordinator):
        self._coordinator = coordinator
        self.page = self._port("page is served", "url=http://127.0.0.1:")
        self.numbers = self._port("metrics are served", "address=127.0.0.1:")

    def _port(self, line, before):
        self._coordinator.wait_for(line)
        note = self._coordinator.output.partition(line)[2].partition(before)[2]
        return int(note[: next(at for at, c in enumerate(note) if not c.isdigit())])

    def held(self):
        """Return how many descriptors and threads it has."""
        folder = f"/proc/{self._coordinator.process.pid}"
        return len(os.listdir(f"{folder}/fd")), len(os.listdir(f"{folder}/task"))

    def resident_kib(self):
        """Return its memory."""
        status = Path(f"/proc/{self._coordinator.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def asks(self, port, path):
        """Open a connection and ask, with little room for what comes back."""
        found = socket.socket()
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        found.settimeout(30)
        found.connect(("127.0.0.1", port))
        found.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        return found

    def scraped(self):
        """Return the numbers, as Prometheus reads them."""
        calling = http.client.HTTPConnection("127.0.0.1", self.numbers, timeout=30)
        try:
            calling.request("GET", "/metrics")
            return calling.getresponse().read().decode()
        except (ConnectionError, http.client.HTTPException):
            return ""
        finally:
            calling.close()


def broken_off(found):
    """Reset a connection, as a process that is killed does."""
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    found.close()


@pytest.fixture
def kits(tmp_path):
    with commands() as started:
        made = Kits(tmp_path, started, total=1)
        made.set_coordinator('page = "127.0.0.1:0"', 'metrics_address = "127.0.0.1:0"')
        yield made


@contextmanager
def silent(watched):
    """Have as many browsers and readers as there are places, none of which reads a byte."""
    with ExitStack() as open_:
        for _ in range(PLACES):
            open_.enter_context(watched.asks(watched.page, "/feed"))
        for _ in range(READERS):
            open_.enter_context(socket.create_connection(("127.0.0.1", watched.numbers)))
        yield


@pytest.mark.slow
def test_who_goes_away_leaves_nothing_behind(kits):
    watched = Watched(kits.coordinator())

    def wave():
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


@pytest.mark.slow
@pytest.mark.long
def test_a_reader_that_reads_nothing_delays_no_other(kits):
    coordinator = kits.coordinator()
    watched = Watched(coordinator)
    kits.authority()
    with silent(watched):
        finished(*(kits.client(name) for name in "abc"))
        assert coordinator.ended() == 0, coordinator.output
    assert counted(coordinator) == [3] * 3
    assert kits.models("abc") == {kits.undisturbed()}
