"""What a federation costs beside training: fedrec and Flower, both deployed as processes.

- rounds: the time from the opening of a round to that of the next, where clients train for no time
  at all, for 2 and 8 clients and updates of 0.75, 5.3 and 18.6 MB. Flower's clients send back the
  arrays that they got, one value changed; fedrec's send a dense update of as many values under
  protection none. Both get as much as they send. The first round is left out on both sides. Every
  run ends with an error where a client failed, a round was abandoned, or the last sum (fedrec,
  at each client) or average (Flower, at the server) is not what it has to be.
- memory: the most that fedrec's coordinator had resident with 16 clients at 18.6 MB; no Flower.
- start: from the command to the end of the first round of training. fedrec: `fedrec up` with three
  kits that nobody used before, so that clients make keys and enrol, the key authority makes an
  epoch, and a round that counts comes first; under bfv, training on MovieLens-100K. Flower:
  SuperLink and two SuperNodes at once, `flwr run` as soon as the SuperLink answers, 0.75 MB and no
  training.

fedrec talks over mutual TLS in everything, Flower over plain HTTP (`--insecure`, as in its guide).
Flower is installed into an environment of its own (`--environment` keeps it for the next time),
which takes a package index that pip can reach. Both sides run in turn, A B A B ...

    python benchmarks/bench_flower_deployed.py --environment ../flower
    python benchmarks/bench_flower_deployed.py --parts rounds --clients 8 --turns 1
    python benchmarks/bench_flower_deployed.py --parts memory
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flower_deployed import FLOWER, flower_environment, flower_rounds
from measuring import describe_machine, summary
from untrained_rounds import untrained_rounds

from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ROW_STEP
from fedrec_lab.demo.workspace import load_data, provisioned

SHAPES = {0.75: (23 * ROW_STEP, 31), 5.3: (80 * ROW_STEP, 64), 18.6: (280 * ROW_STEP, 64)}
"""Items and dim of an update of so many megabytes; each row comes with a count.

Whole steps of rows, so that nothing is padded."""
MANY_CLIENTS, MOST_MEGABYTES = 16, 18.6
MOST_MEMORY_BYTES = 200_000_000
WANTED_RATIO = 20
KITS = 3


def compare_rounds(programs: Path, n_clients: int, megabytes: float, turns: int) -> None:
    """Print the seconds of a round of both, and the ratio, turn by turn."""
    n_items, dim = SHAPES[megabytes]
    n_values = n_items * (dim + 1)
    n_flower = 6 if n_clients == 2 else 3
    ours: list[float] = []
    theirs: list[float] = []
    ratios, memory, sizes = [], [0, 0, 0], set()
    for _ in range(turns):
        mine = untrained_rounds("none", n_clients, 21, n_items=n_items, rank=0, dim=dim)
        flower = flower_rounds(programs, n_clients, 1 + n_flower, n_values)
        ours += mine.seconds[1:]
        theirs += flower.seconds[1:]
        ratios.append(statistics.median(flower.seconds[1:]) / statistics.median(mine.seconds[1:]))
        found = mine.coordinator_peak_bytes, flower.superlink_peak_bytes, flower.app_peak_bytes
        memory = [max(pair) for pair in zip(memory, found, strict=True)]
        sizes.add(mine.message_bytes)
    print(
        f"{n_clients} clients, {max(sizes):,} bytes (fedrec), {4 * n_values:,} (Flower) each way:"
    )
    print(f"  Flower: {summary(theirs)} a round")
    print(f"  fedrec: {summary(ours)} a round")
    print(f"  Flower / fedrec: {statistics.median(theirs) / statistics.median(ours):.1f} x of all "
          f"rounds' medians; {summary(ratios, 'x')} of each turn's")  # fmt: skip
    if n_clients == 2:
        print(f"  wanted at 2: at least {WANTED_RATIO} x")
    coordinator, superlink, app = (n_bytes / 1e6 for n_bytes in memory)
    print(f"  resident at most: coordinator {coordinator:.0f} MB; "
          f"SuperLink {superlink:.0f} MB, its server app {app:.0f} MB")  # fmt: skip
    print(f"  load average {os.getloadavg()[0]:.1f}", flush=True)


def measure_memory() -> None:
    """Print the most resident memory of a coordinator with many clients and large updates."""
    n_items, dim = SHAPES[MOST_MEGABYTES]
    found = untrained_rounds("none", MANY_CLIENTS, 5, n_items=n_items, rank=0, dim=dim)
    print(f"{MANY_CLIENTS} clients, {found.message_bytes:,} bytes each way, 5 rounds of training: "
          f"the coordinator had {found.coordinator_peak_bytes / 1e6:.0f} MB resident at most, "
          f"wanted below {MOST_MEMORY_BYTES / 1e6:.0f}; {summary(found.seconds[1:])} a round",
          flush=True)  # fmt: skip


def up_seconds() -> tuple[float, float]:
    """Return the seconds from `fedrec up` to the end of the count round, and of the first trained.

    Raises:
        SystemExit: when the run ends before.
    """
    with tempfile.TemporaryDirectory() as scratch:
        plan = Plan.model_validate({"federation": {"name": "bench"}})
        data = load_data(synthetic=False)
        workspace = provisioned(Path(scratch) / "run", plan, data, n_clients=KITS)
        begin = time.perf_counter()
        with (Path(scratch) / "log").open("w") as log:
            up = subprocess.Popen(
                [sys.executable, "-m", "fedrec", "up", workspace.folder / "kits", "--no-page"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=scratch,
            )
        assert up.stdout is not None  # a pipe
        counted = 0.0
        try:
            for line in up.stdout:
                if line.startswith("round") and " count " in line:
                    counted = time.perf_counter() - begin
                if line.startswith("round") and " train " in line:
                    return counted, time.perf_counter() - begin
            raise SystemExit(f"fedrec up failed:\n{(Path(scratch) / 'log').read_text()}")
        finally:
            up.send_signal(signal.SIGINT)
            up.wait()
            up.stdout.close()


def compare_starts(programs: Path, turns: int) -> None:
    """Print the seconds to the first finished round of both."""
    n_items, dim = SHAPES[0.75]
    ours: list[float] = []
    theirs: list[float] = []
    counts = []
    # The first start on a machine compiles; that is not the start that is compared.
    up_seconds()
    for _ in range(turns):
        counted, trained = up_seconds()
        counts.append(counted)
        ours.append(trained)
        theirs.append(flower_rounds(programs, 2, 1, n_items * (dim + 1)).first_seconds)
    print("From the command to the end of the first round:")
    print(f"  Flower: {summary(theirs)}")
    print(f"  fedrec, with keys, enrolment, bfv and training: {summary(ours)}; "
          f"its round that counts: {summary(counts)}")  # fmt: skip
    ratios = [flower / own for own, flower in zip(ours, theirs, strict=True)]
    print(f"  Flower / fedrec: {summary(ratios, 'x')}, load average {os.getloadavg()[0]:.1f}")


def main() -> None:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ["rounds", "memory", "start"]
    parser.add_argument("--parts", nargs="*", choices=parts, default=parts)
    parser.add_argument("--clients", nargs="*", type=int, default=[2, 8])
    parser.add_argument("--megabytes", nargs="*", type=float, choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--turns", type=int, default=3, help="how often both are run by turns")
    parser.add_argument("--environment", type=Path, help="a folder that keeps Flower")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        programs = options.environment or Path(scratch)
        if options.parts != ["memory"]:
            programs = flower_environment(programs)
        print(f"{describe_machine()}; flwr {FLOWER}")
        print(f"niceness {os.nice(0)}, scheduler {os.sched_getscheduler(0)}, "
              f"load average {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
        if "rounds" in options.parts:
            for n_clients in options.clients:
                for megabytes in options.megabytes:
                    compare_rounds(programs, n_clients, megabytes, options.turns)
        if "memory" in options.parts:
            measure_memory()
        if "start" in options.parts:
            compare_starts(programs, options.turns)


if __name__ == "__main__":
    main()
