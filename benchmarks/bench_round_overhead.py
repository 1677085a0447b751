"""What a round costs beside training: coordinator and clients as processes, nothing trained.

Updates of 0.75 MB (187,500 values of 4 bytes under protection none). The time is from the
opening of one round to that of the next, taken from the coordinator's journal, so it contains
everything: long polls, uploads, fsyncs, the sum, the reveal where there is one, the download and
the clients' own bookkeeping.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import describe_machine, summary
from small_federation import federation

from fedrec.demo.processes import Processes
from fedrec.identity.certificates import Credentials
from fedrec.wire.admin_link import AdminLink


def round_seconds(protection: str, n_clients: int, rounds: int) -> tuple[list[float], int]:
    """Run a federation and return the seconds of its training rounds and a message's bytes."""
    with tempfile.TemporaryDirectory() as scratch:
        workspace = federation(
            Path(scratch) / "run",
            n_clients=n_clients,
            n_items=37_500,
            rank=4,
            rounds=rounds,
            protection=protection,
        )
        children = []
        with Processes(Path(scratch) / "logs") as processes:
            processes.start(
                "coordinator",
                "coordinator",
                "run",
                str(workspace.coordinator_settings),
                talks=True,
            )
            address = processes.first_line("coordinator")["address"]
            script = Path(__file__).with_name("small_federation.py")
            try:
                for settings in workspace.client_settings:
                    command = [sys.executable, str(script), str(settings), address]
                    children.append(
                        subprocess.Popen(
                            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                        )
                    )
                link = AdminLink(address, Credentials.load(workspace.operator, "the benchmark"))
                opened, size = [], 0
                for event in link.events():
                    if event.kind == "round opened":
                        opened.append(event.unix_seconds)
                    if event.kind == "update counted":
                        size = event.fields["bytes"]
                    if event.kind == "round abandoned":
                        raise SystemExit(f"Round {event.round} was abandoned: {event.fields}")
                    if event.kind == "run finished":
                        break
                link.close()
            finally:
                for child in children:
                    child.terminate()
                    child.wait()
    return [b - a for a, b in itertools.pairwise(opened[1:])], size


def main() -> None:
    """Print the seconds of a round under none, bfv and ckks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(describe_machine())
    for protection, n_clients in (("none", 2), ("none", 3), ("bfv", 3), ("ckks", 3)):
        seconds, size = round_seconds(protection, n_clients, rounds)
        print(f"{protection}, {n_clients} clients, {size:,} bytes each: {summary(seconds)} a round")


if __name__ == "__main__":
    main()
