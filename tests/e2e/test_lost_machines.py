"""Lost machines and a new issuer."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from world.clock import DEADLINE_SECONDS, poll
from world.kits import Command, Kits, commands, fedrec

from fedrec.data import generate
from fedrec.identity.certificates import Credentials, hosts_of
from fedrec.wire.admin_link import AdminLink

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "when-a-machine-is-lost.md"
PASSPHRASE = "some words that nobody guesses\n"
ENDS = "# It ends with "
STOPS = "# Ctrl-C: "
ROUNDS = "# Rounds are published."


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def drill():
    """Return the lines of each block of the drill."""
    text = PAGE.read_text().partition("## The drill")[2]
    return [found.splitlines() for found in re.findall(r"```sh\n(.*?)\n```", text, re.S)]


class Terminals:
    """Types lines, and keeps what runs.

    Args:
        folder: where they are typed.
        start: starts a command.
    """

    def __init__(self, folder, start):
        self.folder, self._start = folder, start
        self.port = free_port()
        self.running: dict[str, Command] = {}
        self.typed = 0
        self.last: Command | None = None
        self.rounds = 0

    def block(self, lines):
        """Type the lines of a block and see what its comments say."""
        waits = next((line for line in lines if line.startswith(ENDS)), "")
        for line in lines:
            if line.startswith(STOPS):
                stopped = self.running.pop(line.removeprefix(STOPS))
                stopped.interrupt()
                assert stopped.ended() == 130, stopped.output
            elif line == ROUNDS:
                self.rounds = self.until(self.rounds + 2)
            elif line == waits:
                assert self.last.ended() == 5, self.last.output
                assert line.removeprefix(ENDS).rstrip(".") == "authority_is_old"
                assert "another folder of this authority has been used" in self.last.output
            else:
                self.type(line, kept=not waits)

    def type(self, line, *, kept):
        """Type one line."""
        words = shlex.split(line.replace("7447", self.port))
        self.typed += 1
        if words[0] == "mv":
            shutil.move(self.folder / words[1], self.folder / words[2])
            return
        assert words.pop(0) == "fedrec", line
        if "run" not in words[:3]:
            call = [sys.executable, "-m", "fedrec", *words]
            done = subprocess.run(
                call, cwd=self.folder, timeout=DEADLINE_SECONDS, capture_output=True, check=False
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            return
        log = self.folder / f"{self.typed}.log"
        self.last = self._start(log, *words)  # type: ignore[operator]  # Start
        name = "client" if words[0] == "client" else "authority"
        name = "coordinator" if words[0] == "coordinator" else name
        if kept:
            self.running[f"{name} {words[2]}" if name == "client" else name] = self.last
        if name == "coordinator":
            self.last.first_line()

    def until(self, round_id):
        """Wait until a round is published; return the last one that is."""

        def seen():
            published = self.published()
            return published if published >= round_id else 0

        return poll(seen, f"round {round_id}")

    def published(self):
        """Return the last published round, as an operator sees it."""
        for name, command in self.running.items():
            assert command.process.poll() is None, (name, command.output[-2000:])
        operator = next(self.folder.glob("kits/authority/operator.pem"))
        words = ["status", f"127.0.0.1:{self.port}", "--operator", str(operator), "--json"]
        call = [sys.executable, "-m", "fedrec", *words]
        done = subprocess.run(
            call, cwd=self.folder, timeout=DEADLINE_SECONDS, capture_output=True, check=False
        )
        return int(json.loads(done.stdout)["published_round"]) if not done.returncode else 0


@pytest.fixture
def terminals(tmp_path):
    """A folder with people's data, a passphrase, and settings with more rounds than a drill has."""
    made = generate(
        n_users=40, n_items=60, n_clusters=4, interactions_per_user=12, noise=0.2, seed=5
    ).interactions
    rows = zip(made.user_ids, made.item_ids, made.timestamps, strict=True)
    lines = ["user_id,item_id,timestamp", *(f"{u},{i},{int(t)}" for u, i, t in rows)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "interactions.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "passphrase").write_text(PASSPHRASE)
    with commands() as start:
        yield Terminals(tmp_path, start)


def begin(terminals):
    """Write settings of a run that is longer than the drill."""
    words = ["init", "--data", "data/interactions.csv", "--name", "drill", "--clients", "a,b,c"]
    made = subprocess.run(
        [sys.executable, "-m", "fedrec", *words],
        cwd=terminals.folder,
        capture_output=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )
    assert made.returncode == 0, made.stderr
    settings = terminals.folder / "federation.toml"
    text = settings.read_text()
    assert "total = 10\n" in text
    settings.write_text(text.replace("total = 10\n", "total = 5000\n"))


def end(terminals):
    """Press Ctrl-C everywhere: five processes run, and all of them save and end."""
    assert len(terminals.running) == 5
    for command in terminals.running.values():
        command.interrupt()
    assert {command.ended() for command in terminals.running.values()} == {130}


@pytest.mark.long
def test_the_drill(terminals):
    """100 s on a busy machine of two cores; tests/integration/test_recovering.py is quick."""
    blocks = drill()
    assert len(blocks) == 5
    begin(terminals)
    for lines in blocks:
        terminals.block(lines)
    end(terminals)
    aside = {path.name for path in terminals.folder.iterdir()}
    assert {"lost-coordinator", "lost-authority", "lost-authority-too"} <= aside


REFUSED = "The handshake failed"


@pytest.fixture
def kits(tmp_path, start):
    return Kits(tmp_path, start, total=8)


@pytest.mark.slow
@pytest.mark.long
def test_a_run_goes_on_with_another_issuer(kits, tmp_path):
    first, authority = kits.coordinator(), kits.authority()
    clients = [kits.client(name) for name in "abc"]
    first.wait_for("round published")
    # Clients end when they have the last round: no member may be left without it.
    made, parties = kits.path / "authority", kits.path / "clients"
    fedrec(tmp_path, "stop", kits.address, "--operator", str(made / "operator.pem"))
    assert first.ended() == 0, first.output
    for client in clients:
        assert client.ended() == 0, client.output
    authority.interrupt()
    authority.ended()
    fedrec(tmp_path, "provision", "--operator", "maria")
    before = {path: path.read_bytes() for path in kits.path.rglob("*") if path.is_file()}
    hosts = hosts_of(certificate_in(made / "coordinator.pem"))

    output = fedrec(tmp_path, "keys", "rotate", "--new-ca")
    assert "Copy the new ones by hand" in output and "--operator NAME` again: maria" in output
    assert hosts_of(certificate_in(made / "coordinator.pem")) == hosts
    assert (made / "authority.pub.json").read_bytes() != before[made / "authority.pub.json"]
    # The coordinator takes no half of it.
    shutil.copy(made / "coordinator.pem", kits.path / "coordinator")
    half = kits.start_coordinator("half")
    assert half.ended() != 0
    assert "epoch.json" in half.output and "Traceback" not in half.output
    for name in ("epoch.json", "operator.crt"):
        shutil.copy(made / name, kits.path / "coordinator")

    second = kits.coordinator("second", "--resume")
    late = kits.client("a", "late")
    # Its own authority.pub.json still names the old issuer, and so does its certificate.
    late.wait_for(REFUSED)
    assert "Traceback" not in late.output
    late.interrupt()
    late.ended()
    stale = tmp_path / "stale.pem"
    stale.write_bytes(before[kits.path / "operators" / "maria.pem"])
    stale.chmod(0o600)
    with pytest.raises(Exception, match=r"handshake failed|was closed"):
        AdminLink(kits.address, Credentials.load(stale, "--operator")).status()

    for name in "abc":
        shutil.copy(made / "authority.pub.json", parties / name)
        shutil.copy(made / "clients" / f"{name}.crt", parties / name / "state" / "client.crt")
    kits.authority("authority again")
    clients = [kits.client(name, f"{name} again") for name in "abc"]
    assert second.ended() == 0, second.output
    for client in clients:
        assert client.ended() == 0, client.output
    assert "all rounds are published" in second.output


def certificate_in(path):
    return Credentials.load(path, "it").certificate


@pytest.mark.slow
def test_a_second_operator_comes_and_goes(kits, fedrec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kits.coordinator()
    assert fedrec("provision", "--operator", "maria").code == 0
    listed, maria = "authority/operator.crt", "operators/maria.pem"

    def exit_code(operator=maria):
        return fedrec("status", kits.address, "--operator", kits.path / operator).code

    assert exit_code() != 0, "the coordinator was not told yet"
    shutil.copy(kits.path / listed, kits.path / "coordinator")
    poll(lambda: exit_code() == 0, "maria is an operator")
    assert fedrec("provision", "--remove-operator", "maria").code == 0
    shutil.copy(kits.path / listed, kits.path / "coordinator")
    assert exit_code() != 0
    # The authority's own process was an operator all the time.
    assert exit_code("authority/operator.pem") == 0
