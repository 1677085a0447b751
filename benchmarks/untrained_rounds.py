"""Rounds of a federation whose coordinator and clients are processes and that trains nothing."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from measuring import peak_bytes
from small_federation import federation

from fedrec.identity.certificates import Credentials
from fedrec.wire.admin_link import AdminLink
from fedrec_lab.demo.parties import Processes

_END_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UntrainedRounds:
    """What rounds without training took.

    Attributes:
        seconds: from the opening of each round of training to that of the next.
        message_bytes: an update's length, and nearly that of the sum that each client gets.
        coordinator_peak_bytes: the most resident memory of the coordinator's process.
    """

    seconds: list[float]
    message_bytes: int
    coordinator_peak_bytes: int


def untrained_rounds(
    protection: str,
    n_clients: int,
    rounds: int,
    *,
    n_items: int = 37_500,
    rank: int = 4,
    dim: int = 0,
) -> UntrainedRounds:
    """Run a federation to its end, over TLS.

    Args:
        rounds: of training; before them is one that counts, behind them one that measures.
        rank: of the update; 0 sends whole rows.
        dim: of the algorithm, where whole rows are sent.

    Raises:
        SystemExit: a round was abandoned, or a client did not get the sum of all clients' vectors.
    """
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        workspace = federation(
            Path(scratch) / "run",
            n_clients=n_clients,
            n_items=n_items,
            rank=rank,
            rounds=rounds,
            protection=protection,
            algorithm={"dim": dim} if dim else None,
        )
        processes = stack.enter_context(Processes(Path(scratch) / "logs"))
        coordinator = processes.start(
            "coordinator",
            "coordinator",
            "run",
            str(workspace.parties.coordinator),
            talks=True,
        )
        address = processes.first_line("coordinator")["address"]
        log = stack.enter_context((Path(scratch) / "clients.log").open("a+", encoding="utf-8"))
        children = [
            _client(settings, address, log, stack) for settings in workspace.parties.clients
        ]
        link = AdminLink(address, Credentials.load(workspace.operator, "the benchmark"))
        stack.callback(link.close)
        opened, size = [], 0
        for event in link.events():
            if event.kind == "round opened":
                opened.append(event.unix_seconds)
            if event.kind == "update counted":
                size = max(size, event.fields["bytes"])
            if event.kind == "round abandoned":
                raise SystemExit(f"Round {event.round} was abandoned: {event.fields}{_end_of(log)}")
            if event.kind == "run finished":
                break
        peak = peak_bytes(coordinator.pid)
        if any([child.wait(_END_SECONDS) for child in children]):
            raise SystemExit(f"A client failed.{_end_of(log)}")
    return UntrainedRounds(
        seconds=[b - a for a, b in itertools.pairwise(opened[1:])],
        message_bytes=size,
        coordinator_peak_bytes=peak,
    )


def _end_of(log: TextIO) -> str:
    log.seek(0)
    return f"\nThe clients' log ends with:\n{log.read()[-2000:]}"


def _client(settings: Path, address: str, log: TextIO, stack: ExitStack) -> subprocess.Popen[bytes]:
    """Start a client that ends with the stack, if not before."""
    script = Path(__file__).with_name("small_federation.py")
    child = subprocess.Popen(
        [sys.executable, str(script), str(settings), address],
        stdout=subprocess.DEVNULL,
        stderr=log,
    )

    def end() -> None:
        child.terminate()
        child.wait()

    stack.callback(end)
    return child
