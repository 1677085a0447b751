"""The drill of `docs/how-to/when-a-machine-is-lost.md`, typed as it stands there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.commands import DEADLINE_SECONDS, Command, commands, poll

from fedrec.data import generate

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "when-a-machine-is-lost.md"
PASSPHRASE = "some words that nobody guesses\n"
ENDS = "# It ends with "
STOPS = "# Ctrl-C: "
ROUNDS = "# Rounds are published."


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def drill() -> list[list[str]]:
    """Return the lines of each block of the drill."""
    text = PAGE.read_text().partition("## The drill")[2]
    return [found.splitlines() for found in re.findall(r"```sh\n(.*?)\n```", text, re.S)]


class Terminals:
    """Types lines, and keeps what runs.

    Args:
        folder: where they are typed.
        start: starts a command.
    """

    def __init__(self, folder: Path, start: object) -> None:
        self.folder, self._start = folder, start
        self.port = free_port()
        self.running: dict[str, Command] = {}
        self.typed = 0
        self.last: Command | None = None
        self.rounds = 0

    def block(self, lines: list[str]) -> None:
        """Type the lines of a block and see what its comments say."""
        waits = next((line for line in lines if line.startswith(ENDS)), "")
        for line in lines:
            if line.startswith(STOPS):
                stopped = self.running.pop(line.removeprefix(STOPS))
                stopped.interrupt()
                assert stopped.ended() == 130, stopped.told
            elif line == ROUNDS:
                self.rounds = self.until(self.rounds + 2)
            elif line == waits:
                assert self.last is not None
                assert self.last.ended() == 5, self.last.told
                assert line.removeprefix(ENDS).rstrip(".") == "authority_is_old"
                assert "another folder of this authority went on" in self.last.told
            else:
                self.type(line, kept=not waits)

    def type(self, line: str, *, kept: bool) -> None:
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

    def until(self, round_id: int) -> int:
        """Wait until a round is published; return the last one that is."""

        def seen() -> int:
            published = self.published()
            return published if published >= round_id else 0

        return poll(seen, f"round {round_id}")

    def published(self) -> int:
        """Return the last published round, as an operator sees it."""
        for name, command in self.running.items():
            assert command.process.poll() is None, (name, command.told[-2000:])
        operator = next(self.folder.glob("kits/authority/operator.pem"))
        words = ["status", f"127.0.0.1:{self.port}", "--operator", str(operator), "--json"]
        call = [sys.executable, "-m", "fedrec", *words]
        done = subprocess.run(
            call, cwd=self.folder, timeout=DEADLINE_SECONDS, capture_output=True, check=False
        )
        return int(json.loads(done.stdout)["published_round"]) if not done.returncode else 0


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
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


def begin(terminals: Terminals) -> None:
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


def end(terminals: Terminals) -> None:
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
