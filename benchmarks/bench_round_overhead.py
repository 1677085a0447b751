"""What a round costs beside training: coordinator and clients as processes, nothing trained.

Updates of 0.75 MB (187,500 values of 4 bytes under protection none). The time is from the
opening of one round to that of the next, taken from the coordinator's journal, so it contains
everything: long polls, uploads, fsyncs, the sum, the reveal where there is one, the download and
the clients' own bookkeeping.

    python benchmarks/bench_round_overhead.py --against ../before --repeat 3

runs another checkout's own benchmark by turns with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import describe_machine, summary
from untrained_rounds import untrained_rounds


def round_seconds(protection: str, n_clients: int, rounds: int) -> tuple[list[float], int]:
    """Run a federation and return the seconds of its training rounds and a message's bytes."""
    found = untrained_rounds(protection, n_clients, rounds)
    return found.seconds, found.message_bytes


def main() -> None:
    """Print the seconds of a round under none, bfv and ckks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--against", type=Path, help="the folder of another checkout")
    parser.add_argument("--repeat", type=int, default=3, help="how often both are run by turns")
    parser.add_argument("--protection", nargs="*", default=["none", "bfv", "ckks"])
    options = parser.parse_args()
    cases = [("none", 2), ("none", 3), ("bfv", 3), ("ckks", 3)]
    cases = [case for case in cases if case[0] in options.protection]
    if options.against:
        compare(options.against.resolve(), options.rounds, options.repeat, cases)
        return
    rounds = options.rounds
    print(describe_machine())
    for protection, n_clients in cases:
        seconds, size = round_seconds(protection, n_clients, rounds)
        print(f"{protection}, {n_clients} clients, {size:,} bytes each: {summary(seconds)} a round")


def compare(other: Path, rounds: int, repeat: int, cases: list[tuple[str, int]]) -> None:
    """Run another checkout by turns with this one, case by case, on the libraries of this one."""
    before = os.getloadavg()[0]
    print(describe_machine())
    for protection, n_clients in cases:
        sides: dict[str, list[float]] = {"there": [], "here": []}
        shares = []
        for _ in range(repeat):
            for name, folder in (("there", other), ("here", Path(__file__).resolve().parents[1])):
                seconds = run_checkout(folder, protection, n_clients, rounds)
                sides[name] += seconds
                shares.append(statistics.median(seconds))
        print(f"{protection}, {n_clients} clients, in {other.name} and here, by turns:")
        for name, values in sides.items():
            print(f"  {name}: {summary(values)} a round")
        ratios = [here / there for there, here in zip(shares[::2], shares[1::2], strict=True)]
        print(f"  here / there, medians of each turn: {summary(ratios, 'x')}", flush=True)
    print(f"  load averages before and after: {before:.1f}, {os.getloadavg()[0]:.1f}")


def run_checkout(folder: Path, protection: str, n_clients: int, rounds: int) -> list[float]:
    """Return the seconds of rounds as a checkout's own benchmark measures them."""
    parts = ("common", "server", "client", "lab", "benchmarks")
    paths = os.pathsep.join(str(folder / part) for part in parts)
    program = (
        "import json, bench_round_overhead as bench\n"
        f"print(json.dumps(bench.round_seconds({protection!r}, {n_clients}, {rounds})[0]))"
    )
    with tempfile.TemporaryDirectory() as compiled:
        environment = {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": compiled, "FEDREC_CACHE": compiled}
        printed = subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    found: list[float] = json.loads(printed)
    return found


if __name__ == "__main__":
    main()
