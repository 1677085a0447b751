"""How a round of training grows with the number of users: seconds and peak memory.

FedMF (dim 16, CoLR rank 4, one local epoch) on made-up users with 100 interactions each among
50,000 items, drawn by a power law, everybody in one process and nothing measured. Every size runs
in a process of its own, whose peak resident memory is what the operating system reports. Processor
time is that of all threads; it says how the work grows even beside other processes.

    python benchmarks/bench_growth.py [--users 10000 1000000] [--rounds 4]
    git worktree add ../before COMMIT
    python benchmarks/bench_growth.py --users 1000000 --rounds 2 --repeat 2 --against ../before

`--against` measures another checkout by its own benchmark, by turns with this one.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measuring import add_device, describe_device, describe_machine, summary

N_ITEMS, PER_USER = 50_000, 100


def made_up(n_users: int):
    """Return users with distinct items, popular ones more often."""
    from fedrec.data.splits import UserSplit

    random = np.random.default_rng(0)
    items = np.empty((n_users, PER_USER), dtype=np.int64)
    # Strides that are prime to the number of items give distinct items without a search.
    for begin in range(0, n_users, 10_000):
        part = slice(begin, min(begin + 10_000, n_users))
        size = part.stop - begin
        start = (N_ITEMS * random.random((size, 1)) ** 3).astype(np.int64)
        stride = 2 * random.integers(0, N_ITEMS // 20, (size, 1)) * 5 + 1
        items[part] = np.sort((start + stride * np.arange(PER_USER)) % N_ITEMS, axis=1)
    nobody = np.full(n_users, -1, dtype=np.int64)
    return UserSplit(
        user_ids=tuple(f"u{number}" for number in range(n_users)),
        train_indptr=np.arange(0, n_users * PER_USER + 1, PER_USER, dtype=np.int64),
        train_items=items.reshape(-1),
        validation_items=nobody,
        test_items=nobody,
    )


def measure(n_users: int, rounds: int, device: str) -> None:
    """Print the seconds of some rounds and this process's peak memory."""
    from fedrec.plan.schema import Plan
    from fedrec.training.learner import Learner

    users = made_up(n_users)
    plan = Plan.model_validate(
        {
            "federation": {"maximum_users": 1 << n_users.bit_length(), "minimum_item_users": 1},
            "algorithm": {"dim": 16, "local_epochs": 1},
            "update": {"structure": "colr", "rank": 4},
            "evaluation": {"every_rounds": 1_000_000},
        }
    )
    learner = Learner(plan, N_ITEMS, device=device)
    learner.warm_up()
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    seconds = []
    began = time.process_time()
    for number in range(1, rounds + 1):
        begin = time.perf_counter()
        part = learner.contribute("train", number, shared, users, private)
        shared = learner.server.apply("train", number, shared, part.vector)
        private = part.private
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    processor = (time.process_time() - began) / rounds
    samples = n_users * PER_USER * 5
    print(
        f"  {n_users:>9,} users: a round {summary(seconds[1:] or seconds)}; "
        f"{samples / min(seconds) / 1e6:.1f} million samples a second at best; "
        f"processor time a round {processor:.1f} s; peak memory {peak:.2f} GiB",
        flush=True,
    )


def main() -> None:
    """Measure every size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--one", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--against", type=Path, help="the folder of another checkout")
    add_device(parser)
    options = parser.parse_args()
    if options.one:
        measure(options.one, options.rounds, options.device)
        return
    print(describe_machine())
    print(describe_device(options.device))
    for n_users in options.users * options.repeat:
        work = ["--one", str(n_users), "--rounds", str(options.rounds)]
        if options.against:
            print(f"{options.against.name}:", flush=True)
            run_checkout(options.against.resolve(), work)
            print("this one:", flush=True)
        subprocess.run([sys.executable, __file__, *work, "--device", options.device], check=True)


def run_checkout(folder: Path, work: list[str]) -> None:
    """Measure another checkout with the libraries of this one, and compiled code of its own."""
    paths = os.pathsep.join(str(folder / part) for part in ("common", "server", "client", "lab"))
    script = str(folder / "benchmarks" / Path(__file__).name)
    with tempfile.TemporaryDirectory() as compiled:
        environment = {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": compiled, "FEDREC_CACHE": compiled}
        subprocess.run([sys.executable, script, *work], check=True, env=os.environ | environment)


if __name__ == "__main__":
    main()
