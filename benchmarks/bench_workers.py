"""Two warm worker processes against training in one, on a round of all ML-100K users.

Both sides are the trainer's round with everything in it: negatives drawn, users trained, changes
clipped, rounded and summed, the next version made. With workers that includes writing the tables
that they share, handing out tasks and adding up their sums. The rounds of both sides are compared
to the bit. FedMF (dim 32, two epochs) and PFedRec (dim 32, one epoch, scores of all items kept),
minibatches of 256, four negatives for each positive; every process has one thread.

Memory is each worker's proportional set size (`/proc/PID/smaps_rollup`), the largest seen while it
worked, above that of the same process before its first task.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from measuring import describe_machine, interleaved, print_ratio
from per_client_loop import ml_100k, plan_of

from fedrec.data.splits import UserSplit
from fedrec.plan.schema import Plan
from fedrec.training.executors.executor import Executor, SerialExecutor
from fedrec.training.executors.processes import ProcessExecutor
from fedrec.training.learner import Contribution, Learner
from fedrec.training.user_half import Resources

ALGORITHMS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "FedMF": ({"name": "fedmf", "dim": 32, "local_epochs": 2, "batch_size": 256}, {}),
    "PFedRec": ({"name": "pfedrec", "dim": 32, "batch_size": 256}, {"clip": 256.0}),
}
SECONDS_BETWEEN_LOOKS = 0.005


class Watch:
    """The largest proportional set size of some processes while it is open, in MiB."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.largest = {pid: mib_of(pid) for pid in pids}
        self._over = threading.Event()
        self._eye = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._eye.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._eye.join()

    def _look(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LOOKS):
            for pid, known in self.largest.items():
                self.largest[pid] = max(known, mib_of(pid))


def mib_of(pid: int) -> float:
    """Return a process's proportional set size; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def round_of(
    plan: Plan, users: UserSplit, n_items: int, executor: Executor
) -> Callable[[], object]:
    """Return a whole round; see the module's docstring."""
    learner = Learner(plan, n_items, device="cpu", resources=Resources(workers=executor))
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)

    def play() -> Contribution:
        part = learner.contribute("train", 1, shared, users, private)
        learner.server.apply("train", 1, shared, part.vector)
        return part

    return play


def main() -> None:
    """Print both sides' times, their ratio, and the workers' memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    users, n_items = ml_100k()
    print(describe_machine())
    for name, (algorithm, update) in ALGORITHMS.items():
        # The trainer's own arithmetic: compiled code has threads, and needs no processes.
        plan = plan_of(algorithm, **update)
        trainer = plan.training.model_copy(update={"accelerated": False})
        plan = plan.model_copy(update={"training": trainer})
        executor = ProcessExecutor(options.workers)
        try:
            executor.start()
            idle = {pid: mib_of(pid) for pid in executor.processes}
            alone = round_of(plan, users, n_items, SerialExecutor())
            there = round_of(plan, users, n_items, executor)
            one, other = alone(), there()
            assert isinstance(one, Contribution) and isinstance(other, Contribution)
            if not np.array_equal(one.vector, other.vector):
                raise SystemExit(f"{name}: the workers' sums are not those of one process.")
            with Watch(executor.processes) as watched:
                there()
            workers = f"{options.workers} workers"
            seconds = interleaved({"one process": alone, workers: there}, runs=options.runs)
            print(f"{name}, dim 32: {len(users)} users, same bits")
            print_ratio("one process", workers, seconds)
            above = [watched.largest[pid] - idle[pid] for pid in idle]
            print(
                f"  a worker's memory: {statistics.mean(idle.values()):.0f} MiB idle, at most "
                f"{max(above):.0f} MiB more while it works"
            )
        finally:
            executor.close()


if __name__ == "__main__":
    main()
