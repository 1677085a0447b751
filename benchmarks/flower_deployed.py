"""Flower deployed on this machine: a SuperLink, SuperNodes and an app that trains nothing.

Started as Flower's guide to its deployment runtime says, each a process of its own, with TLS off
(`--insecure`) and everything else by default, but for what needs a network: telemetry, the question
for a newer version and the installation of the app's dependencies are off.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flower_environment import environment, installed
from measuring import peak_bytes

FLOWER = "1.42.0"
_APP = Path(__file__).with_name("flower_echo")
_LOOK_SECONDS = 0.05
_START_SECONDS = 120.0
_ROUND_SECONDS = 180.0
_GRACE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerRounds:
    """What rounds of a Flower app without training took.

    Attributes:
        seconds: from the opening of each round to that of the next.
        first_seconds: from the first command to the end of the first round.
        superlink_peak_bytes: the most resident memory of the SuperLink's process.
        app_peak_bytes: that of the server app's, which averages.
    """

    seconds: list[float]
    first_seconds: float
    superlink_peak_bytes: int
    app_peak_bytes: int


def flower_environment(folder: Path) -> Path:
    """Return the programs' folder of an environment with Flower, which is made where it is not."""
    if installed(folder, "flwr") != FLOWER:
        environment(folder, f"flwr=={FLOWER}", f"numpy=={np.__version__}")
    return folder / "bin"


def flower_rounds(programs: Path, n_nodes: int, rounds: int, n_values: int) -> FlowerRounds:
    """Deploy Flower, run the app, and end everything.

    Args:
        programs: `bin` of Flower's environment.
        rounds: as many seconds are returned.
        n_values: of 4 bytes each, in each direction.

    Raises:
        SystemExit: a round failed, or the average was wrong.
    """
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        home = Path(scratch)
        stack.callback(_end_all, home)
        deployment = _Deployment(programs, home)
        begin = time.time()
        port, *others = _free_ports(1 + n_nodes)
        superlink = deployment.start(
            "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        for number, own in enumerate(others):
            deployment.start(
                "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}",
                "--port", str(own),
                "--node-config", f"partition-id={number} num-partitions={n_nodes}",
            )  # fmt: skip
        deployment.wait_for(port)
        into = home / "notes.json"
        deployment.run(port, nodes=n_nodes, rounds=rounds + 1, values=n_values, into=str(into))
        limit = _START_SECONDS + _ROUND_SECONDS * (rounds + 1)
        for _ in deployment.looks(limit, "the app to end"):
            if into.exists():
                break
        notes = json.loads(into.read_text(encoding="utf-8"))
        if notes["fault"]:
            raise SystemExit(f"Flower's run failed: {notes['fault']}\n{deployment.log()}")
        return FlowerRounds(
            seconds=[b - a for a, b in itertools.pairwise(notes["opened"])],
            first_seconds=notes["finished"][0] - begin,
            superlink_peak_bytes=peak_bytes(superlink.pid),
            app_peak_bytes=notes["peak_bytes"],
        )


class _Deployment:
    """The processes of one deployment, which share a folder and a log.

    Args:
        home: a temporary folder; every process has its name in its environment.
    """

    def __init__(self, programs: Path, home: Path) -> None:
        self._programs = programs
        self._home = home
        self._log = home / "log"
        self._environment = os.environ | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one of Flower's programs."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [self._programs / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def wait_for(self, port: int) -> None:
        """Wait until the SuperLink answers."""
        for _ in self.looks(_START_SECONDS, "the SuperLink"):
            with suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                return

    def run(self, port: int, **chosen: int | str) -> None:
        """Submit the app, as `flwr run` does."""
        app = self._home / "app"
        shutil.copytree(_APP, app)
        lines = ["[superlink]", 'default = "here"', "[superlink.here]", "insecure = true"]
        lines.append(f'address = "127.0.0.1:{port}"')
        (self._home / "config.toml").write_text("\n".join(lines), encoding="utf-8")
        settings = self._home / "run.toml"
        # JSON's numbers and strings are TOML's.
        text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in chosen.items())
        settings.write_text(text, encoding="utf-8")
        asked = self.start("flwr", "run", str(app), "here", "--run-config", str(settings))
        self._started.remove(asked)
        if asked.wait(_START_SECONDS):
            raise SystemExit(f"flwr run failed:\n{self.log()}")

    def looks(self, seconds: float, what: str) -> Iterator[None]:
        """Yield from time to time, until it takes too long or a process has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            yield
            if any(process.poll() is not None for process in self._started):
                raise SystemExit(f"A process of Flower ended:\n{self.log()}")
            time.sleep(_LOOK_SECONDS)
        raise SystemExit(f"{seconds:.0f} s were not enough for {what}:\n{self.log()}")

    def log(self) -> str:
        """Return the end of what the processes said."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-4000:]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]


def _end_all(home: Path) -> None:
    """End every process of a deployment, those that its processes started and left, too."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE_SECONDS
        for pid in _of_deployment(home):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while _of_deployment(home) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)


def _of_deployment(home: Path) -> list[int]:
    """Return the processes that have this deployment's folder in their environment."""
    mark, found = f"FLWR_HOME={home}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found
