"""A round under masks of a thousand clients against a real coordinator, in one process.

Clients talk to the coordinator's engine without a wire; everything else is as it would be over
one: signed messages, a transaction and a sync for what is acknowledged, keys made anew, shares,
masks, signatures, and the sum unmasked. A twentieth of the clients vanish after their shares and as
many after their vectors. The published sum is compared with the plain one. The list of keys, which
is the same for all, is checked by one client only. Under a coordinator that may lie every client
also checks the signatures of all others, which takes one machine minutes for a thousand of them.

    python benchmarks/bench_masked_federation.py [--clients 1000] [--values 100]
        [--runs 3] [--coordinator semi-honest|malicious]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import structlog
from measuring import describe_machine, summary

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from world.light import play_round


def measure(n_clients: int, n_values: int, runs: int, coordinator: str) -> None:
    """Play rounds, and print what each step took and how many clients are in the sum."""
    seconds: dict[str, list[float]] = {}

    def note_step(phase: str, taken: float) -> None:
        seconds.setdefault(phase, []).append(taken)

    before, after = range(0, n_clients, 20), range(1, n_clients, 20)
    whole = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            counted = asyncio.run(
                play_round(
                    Path(folder),
                    n_clients,
                    values=n_values,
                    coordinator=coordinator,
                    before=before,
                    after=after,
                    on_step=note_step,
                )
            )
            whole.append(time.perf_counter() - begin)
    print(f"{n_clients} clients, {n_values} values, {coordinator} coordinator: ", end="")
    print(f"{counted} in the sum, {len(after)} of them gone before it was unmasked")
    for phase, values in seconds.items():
        print(f"  {phase}: {summary(values)}")
    print(f"  everything, keys of the federation included: {summary(whole)}")


def main() -> None:
    """Measure rounds of one size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--values", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--coordinator", choices=("semi-honest", "malicious"), default="semi-honest"
    )
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    print(describe_machine())
    measure(arguments.clients, arguments.values, arguments.runs, arguments.coordinator)


if __name__ == "__main__":
    main()
