"""How a round grows with the number of users: seconds, peak memory and disk by stage.

FedMF (dim 16, CoLR rank 4, one local epoch) on made-up users with 100 interactions each among
50,000 items, drawn by a power law. Their items are in mapped files of 100,000 users each.
Training uses compiled code in one process, and measuring `--workers` processes. Every size runs in
a process of its own. Peak memory adds the peaks of all its processes, which count mapped files.
Processor time is that of all threads and processes; it says how the work grows even beside other
processes.

    python benchmarks/bench_growth.py [--users 10000 1000000] [--rounds 4]
    python benchmarks/bench_growth.py --users 10000000 --rounds 1 --sample 10000
    git worktree add ../before COMMIT
    python benchmarks/bench_growth.py --users 1000000 --rounds 2 --repeat 2 --against ../before

`--sample` is the number of users that are measured, `--share` the share of users that train, and
`--against` measures another checkout with the same script, by turns with this one. `--rounds 0`
ends after the count, which is measured three times.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from measuring import (
    add_device,
    describe_device,
    describe_machine,
    peak_bytes,
    processor_seconds,
    summary,
)

N_ITEMS, PER_USER = 50_000, 100


def made_up(n_users: int, folder: Path):
    """Return users with distinct items, popular ones more often."""
    from fedrec.data.mapped_items import MappedItems
    from fedrec.data.splits import UserSplit
    from fedrec.own_folder import MOST_FILE_USERS

    random = np.random.default_rng(0)
    held = np.empty((n_users, 2), dtype=np.int64)

    def parts():
        # Strides that are prime to the number of items give distinct items without a search.
        for begin in range(0, n_users, MOST_FILE_USERS):
            size = min(MOST_FILE_USERS, n_users - begin)
            start = (N_ITEMS * random.random((size, 1)) ** 3).astype(np.int64)
            stride = 2 * random.integers(0, N_ITEMS // 20, (size, 1)) * 5 + 1
            items = (start + stride * np.arange(PER_USER + 2)) % N_ITEMS
            held[begin : begin + size] = items[:, PER_USER:]
            yield np.sort(items[:, :PER_USER], axis=1).ravel()

    in_files = MappedItems.written(parts(), folder)
    return UserSplit(
        user_ids=tuple(f"u{number}" for number in range(n_users)),
        train_indptr=np.arange(0, n_users * PER_USER + 1, PER_USER, dtype=np.int64),
        train_items=in_files,
        validation_items=np.ascontiguousarray(held[:, 0]),
        test_items=np.ascontiguousarray(held[:, 1]),
    )


def family() -> list[int]:
    """Return the ids of this process and of its children."""
    own = os.getpid()
    tasks = Path(f"/proc/{own}/task").iterdir()
    return [own, *(int(pid) for task in tasks for pid in (task / "children").read_text().split())]


@contextmanager
def stage(name: str, folder: Path):
    """Print a stage's seconds, and what its processes and its files reached."""
    begin, used = time.perf_counter(), processor_seconds(family())
    yield
    seconds = time.perf_counter() - begin
    processor = processor_seconds(family()) - used
    disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    peak = sum(peak_bytes(pid) for pid in family())
    print(
        f"    {name:<9} {seconds:7.1f} s, processor time {processor:7.1f} s, "
        f"peak memory {peak / 2**30:5.2f} GiB, disk {disk / 1e9:5.2f} GB",
        flush=True,
    )


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Print what some rounds take, by stage."""
    from fedrec.plan.schema import Plan
    from fedrec.training.evaluator import Evaluator
    from fedrec.training.learner import Learner
    from fedrec.training.user_half import Resources

    n_users = options.one
    plan = Plan.model_validate(
        {
            "federation": {"maximum_users": 1 << n_users.bit_length(), "minimum_item_users": 1},
            "algorithm": {"dim": 16, "local_epochs": 1},
            "update": {"structure": "colr", "rank": 4},
            "evaluation": {"every_rounds": 1_000_000},
        }
    )
    resources = Resources(workers=options.workers, scratch=folder)
    learner = Learner(plan, N_ITEMS, device=options.device, resources=resources)
    learner.warm_up()
    print(f"  {n_users:,} users:", flush=True)
    with stage("users", folder):
        users = made_up(n_users, folder)
        shared = learner.server.initial_shared()
        private = learner.local.initial_private(users)
    for _ in range(3):
        with stage("count", folder):
            part = learner.contribute("count", 1, shared, users, private)
    if not options.rounds:
        learner.local.close()
        return
    shared = learner.server.apply("count", 1, shared, part.vector)
    with stage("cohort", folder):
        learner.local.cohort(shared, users)
    chosen = np.random.default_rng(1).random(n_users) < options.share
    seconds = []
    with stage("training", folder):
        for number in range(2, options.rounds + 2):
            begin = time.perf_counter()
            part = learner.contribute("train", number, shared, users, private, chosen)
            shared = learner.server.apply("train", number, shared, part.vector)
            private = part.private
            seconds.append(time.perf_counter() - begin)
    samples = int(chosen.sum()) * PER_USER * 5
    print(
        f"    a round {summary(seconds[1:] or seconds)}; "
        f"{samples / min(seconds) / 1e6:.1f} million samples a second at best",
        flush=True,
    )
    if options.sample:
        sample = np.sort(np.random.default_rng(2).permutation(n_users)[: options.sample])
        some, own = users.select(sample), private.rows(sample)
        evaluator = Evaluator(learner.local)
        for _ in range(options.rounds):
            with stage("measuring", folder):
                evaluator.measure(shared, some, own, references=False, number=number)
    learner.local.close()


def main() -> None:
    """Measure every size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--one", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--against", type=Path, help="the folder of another checkout")
    add_device(parser)
    options = parser.parse_args()
    if options.one:
        with tempfile.TemporaryDirectory() as folder:
            measure(options, Path(folder))
        return
    print(describe_machine())
    print(describe_device(options.device))
    for n_users in options.users * options.repeat:
        work = [sys.executable, __file__, "--one", str(n_users)]
        for name in ("rounds", "share", "sample", "workers", "device"):
            work += [f"--{name}", str(getattr(options, name))]
        if options.against:
            print(f"{options.against.name}:", flush=True)
            run_checkout(options.against.resolve(), work)
            print("this one:", flush=True)
        subprocess.run(work, check=True)


def run_checkout(folder: Path, work: list[str]) -> None:
    """Measure another checkout with the libraries of this one, and compiled code of its own."""
    paths = os.pathsep.join(str(folder / part) for part in ("common", "server", "client", "lab"))
    with tempfile.TemporaryDirectory() as compiled:
        environment = {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": compiled, "FEDREC_CACHE": compiled}
        subprocess.run(work, check=True, env=os.environ | environment)


if __name__ == "__main__":
    main()
