"""Each party a process: a guest goes for some rounds, and one who is waited for goes for good."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.commands import Command, commands, poll

from fedrec.data import generate
from fedrec.data.writing import write_interactions

pytestmark = [pytest.mark.slow, pytest.mark.long]

CLIENTS = "abcde"
ROUNDS = 300


class Kits:
    """The kits of five clients, and the processes that were started from them."""

    def __init__(
        self,
        folder: Path,
        start: Callable[..., Command],
        go_on: str = "",
        *,
        deadline_seconds: float = 5.0,
        protection: str = "bfv",
    ) -> None:
        self.folder, self._start = folder, start
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        made = generate(
            n_users=40, n_items=60, n_clusters=4, interactions_per_user=12, noise=0.2, seed=5
        )
        write_interactions(folder / "data.csv", made.interactions)
        given = ("--data", "data.csv", "--clients", ",".join(CLIENTS), "--address", self.address)
        self.call("provision", "unused.toml", *given, "--into", "unused")
        text = (folder / "unused.toml").read_text()
        rounds = f"total = {ROUNDS}\ndeadline_seconds = {deadline_seconds}"
        text = re.sub(r"(?m)^total = .*$", rounds, text)
        text = text.replace('name = "bfv"', f'name = "{protection}"')
        text = text.replace("# go_on = []", f"go_on = [{go_on}]")
        (folder / "federation.toml").write_text(text)
        self.call("provision", "federation.toml")
        self.kits = folder / "kits"
        start(
            folder / "coordinator.log",
            *("coordinator", "run", str(self.kits / "coordinator" / "coordinator.toml")),
        ).first_line()
        start(
            folder / "authority.log",
            *("keys", "authority", "run", self.address, "--every-seconds", "0.2"),
            *("--into", str(self.kits / "authority")),
        )
        self.running = {name: self.client(name) for name in CLIENTS}

    def call(self, *arguments: str) -> None:
        """Run a command to its end."""
        command = self._start(self.folder / "calls.log", *arguments)
        assert command.ended() == 0, command.told

    def client(self, name: str, *flags: str, again: str = "") -> Command:
        """Start a client."""
        kit = self.kits / "clients" / name / "client.toml"
        return self._start(self.folder / f"{name}{again}.log", "client", "run", str(kit), *flags)

    def until(self, counted: int, *, after: int = 0, rounds: int = 3) -> int:
        """Wait for so many rounds in a row over so many clients; return the last one's number."""

        def seen() -> int:
            last = [found for found in self._counted() if found[0] > after][-rounds:]
            return last[-1][0] if [n for _, n in last] == [counted] * rounds else 0

        return poll(seen, f"{rounds} rounds over {counted} clients")

    def _counted(self) -> list[tuple[int, int]]:
        told = (self.folder / "coordinator.log").read_text()
        found = re.findall(r"round published .*counted=(\d+) .*round=(\d+)", told)
        return [(int(number), int(counted)) for counted, number in found]


def test_a_guest_is_killed_and_comes_back_and_a_core_member_leaves_for_good(tmp_path):
    with commands() as start:
        kits = Kits(tmp_path, start, go_on='"e"')
        last = kits.until(len(CLIENTS))
        kits.running["e"].process.kill()
        last = kits.until(4, after=last)
        kits.running["e"] = kits.client("e", again="-back")
        last = kits.until(len(CLIENTS), after=last)
        kits.call("client", "leave", str(kits.kits / "clients" / "d" / "client.toml"))
        kits.running["a"].wait_for("key epoch 3")
        kits.running["d"].process.kill()
        kits.until(4, after=last)
        for name in "abce":
            assert kits.running[name].process.poll() is None, kits.running[name].told
            assert "Traceback" not in kits.running[name].told
        assert list(kits.folder.rglob("audit.jsonl")) == [], "nothing had to be refused"
