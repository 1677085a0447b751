"""fedrec's round beside the usual loop over clients in plain PyTorch, and how both are compared.

The loop is written as most federated code is: for every client a model (nn.Module) with its copy of
the item table, a TensorDataset, a DataLoader and an optimizer; autograd; then the server's average.
Both sides draw the negatives anew, train all users and aggregate; fedrec also clips, rounds and
counts. Both may use every core: compiled code trains on one thread and on as many as there are, the
trainer in one process and in as many worker processes, the loop on one thread and on all, of which
its better time counts. `--device` moves fedrec's side; the loop stays on the processor.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from client_samples import NEGATIVES
from machine_limits import GEMM, GEMM_FLOPS, TRIAD, TRIAD_BYTES, limits
from measuring import (
    add_device,
    describe_device,
    describe_machine,
    interleaved,
    print_ratio,
    summary,
)
from threadpoolctl import threadpool_limits

from fedrec.data import fetch_ml_100k, leave_one_out
from fedrec.data.splits import UserSplit
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.algorithm import accelerator_of
from fedrec.plan.schema import Plan, TrainingSettings
from fedrec.training.executors.executor import Executor
from fedrec.training.executors.processes import ProcessExecutor, Workers
from fedrec.training.learner import Learner
from fedrec.training.personalising import TrainedUsers, personalised
from fedrec.training.user_half import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Sizes that the arithmetic of a round follows from.

    Attributes:
        samples: sample updates of a round: positives and negatives, every epoch.
        batches: minibatches of a round, over all users.
        pairs: expected distinct (user, item) pairs among the samples.
    """

    n_users: int
    n_items: int
    samples: int
    batches: int
    pairs: int

    @classmethod
    def of(cls, users: UserSplit, n_items: int, *, epochs: int, batch_size: int) -> Work:
        """Return the sizes for users who draw `NEGATIVES` items for each that they have."""
        held = np.diff(users.train_indptr)
        samples = held * (1 + NEGATIVES)
        free = n_items - held
        distinct = held + free * (1.0 - (1.0 - 1.0 / free) ** (NEGATIVES * held))
        return cls(
            n_users=len(users),
            n_items=n_items,
            samples=int(samples.sum()) * epochs,
            batches=int((-(-samples // batch_size)).sum()) * epochs,
            pairs=int(distinct.sum()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The least arithmetic and traffic of a round, by formula; see each benchmark's docstring."""

    flops: float
    bytes: float


Loop = Callable[[UserSplit, SharedState, PrivateState], object]

ITEM_CLUSTERS = 30
"""Clusters of items that CoFedRec's rounds begin with, on both sides."""


def ml_100k() -> tuple[UserSplit, int]:
    """Return MovieLens-100K's 943 users, split, and the size of its catalogue."""
    data = fetch_ml_100k()
    interactions, _ = data.read()
    return leave_one_out(interactions.deduplicated(), data.catalogue), len(data.catalogue)


def compare(
    title: str,
    plans: dict[str, Plan],
    loop: Loop,
    cost: Callable[[Work], Cost],
    *,
    document: str,
    released: Callable[[Path], Loop] | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """Time a round of each plan and of the loop in turn; print both, ratios and rates.

    Args:
        title: what is trained.
        plans: fedrec's sides by name; they differ in nothing that the loop would do otherwise.
        loop: the same round in plain PyTorch; it must leave its arguments as they are.
        cost: the least work of a round.
        document: the benchmark's description.
        released: given the folder of the paper's code, a round of it; none without such code.
        arguments: those of the command line, by default all.
    """
    parser = argparse.ArgumentParser(description=document)
    parser.add_argument("--runs", type=int, default=5)
    if released:
        parser.add_argument(
            "--released", type=Path, metavar="FOLDER", help="time the paper's code in it, too"
        )
    add_device(parser)
    options = parser.parse_args(arguments)
    papers = released(options.released) if released and options.released else None
    runs, device = options.runs, options.device
    users, n_items = ml_100k()
    cores = torch.get_num_threads()
    sides: dict[str, Callable[[], object]] = {}
    executors: list[Executor] = []
    for name, plan in plans.items():
        if accelerator_of(plan) is not None and device == "cpu":
            play = round_of(plan, users, n_items)
            for threads in sorted({1, cores}):
                compiled = f"fedrec {name}, compiled, {_threads(threads)}"
                sides[compiled] = _with_threads(threads, play)
        alone = by_the_trainer(plan)
        sides[f"fedrec {name}, trainer"] = _with_threads(1, round_of(alone, users, n_items, device))
        if cores > 1 and device == "cpu":
            executors.append(ProcessExecutor(cores))
            sides[f"fedrec {name}, trainer, {cores} workers"] = _with_threads(
                cores, round_of(alone, users, n_items, workers=executors[-1])
            )
    mine = list(sides)
    learner = Learner(plan, n_items, device="cpu")
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    for threads in sorted({1, cores}):
        sides[_loop_name(threads)] = _with_threads(threads, lambda: loop(users, shared, private))
        if papers:
            sides[_papers_name(threads)] = _with_threads(
                threads, lambda: papers(users, shared, private)
            )
    spent: dict[str, list[float]] = {name: [] for name in sides}
    timed = {name: _counting(action, spent[name]) for name, action in sides.items()}
    try:
        seconds = interleaved(timed | limits(), runs=runs)
    finally:
        for executor in executors:
            executor.close()
    # The first run warms up.
    spent = {name: found[-runs:] for name, found in spent.items()}

    # Passes and minibatches of a wrapper are its base's.
    settings: Any = getattr(plan.algorithm, "base", plan.algorithm)
    work = Work.of(users, n_items, epochs=settings.local_epochs, batch_size=settings.batch_size)
    least = cost(work)
    print(describe_machine())
    print(describe_device(device))
    print(f"{title}: ML-100K, {work.n_users} users, {work.samples:,} sample updates a round")
    print(f"{cores} threads or workers of {os.cpu_count()} cores; all times with aggregation")
    rates = {
        TRIAD: TRIAD_BYTES / statistics.median(seconds[TRIAD]),
        GEMM: GEMM_FLOPS / statistics.median(seconds[GEMM]),
    }
    print(f"  {TRIAD}: {rates[TRIAD] / 1e9:.1f} GB/s; {GEMM}: {rates[GEMM] / 1e9:.0f} GFLOP/s")
    loops = {threads: seconds[_loop_name(threads)] for threads in sorted({1, cores})}
    for threads, found in loops.items():
        print(f"  {_loop_name(threads)}: {summary(found)}")
    others, single = [_faster(_loop_name, loops, seconds)], [_loop_name(1)]
    if papers:
        single.append(_papers_name(1))
        for threads in loops:
            print(f"  {_papers_name(threads)}: {summary(seconds[_papers_name(threads)])}")
        others.append(_faster(_papers_name, loops, seconds))
    for name in mine:
        for other in others:
            print_ratio(other, name, seconds)
        median = statistics.median(seconds[name])
        print(f"  {work.samples / median / 1e6:.2f} million sample updates a second")
        print(
            f"  {least.flops / median / 1e9:.2f} GFLOP/s, {least.flops / median / rates[GEMM]:.1%} "
            f"of the matrix product; {least.bytes / median / 1e9:.2f} GB/s, "
            f"{least.bytes / median / rates[TRIAD]:.1%} of the triad"
        )
    if device == "cpu":
        print("In processor time, each side on one thread:")
        for name in (each for each in mine if each.endswith(("trainer", _threads(1)))):
            for other in single:
                print_ratio(other, name, spent)


def _counting(action: Callable[[], object], spent: list[float]) -> Callable[[], object]:
    """Return an action that also records the processor time of this process."""

    def run() -> object:
        began = time.process_time()
        found = action()
        spent.append(time.process_time() - began)
        return found

    return run


def _faster(
    name_of: Callable[[int], str], threads: Iterable[int], seconds: dict[str, list[float]]
) -> str:
    return min(map(name_of, threads), key=lambda name: statistics.median(seconds[name]))


def _papers_name(threads: int) -> str:
    return f"the paper's code, {_threads(threads)}"


def _loop_name(threads: int) -> str:
    return f"per-client loop, {_threads(threads)}"


def _threads(number: int) -> str:
    return f"{number} thread{'s' if number > 1 else ''}"


def by_the_trainer(plan: Plan) -> Plan:
    """Return a plan without compiled code."""
    return plan.model_copy(update={"training": TrainingSettings(accelerated=False)})


def round_of(
    plan: Plan,
    users: UserSplit,
    n_items: int,
    device: str = "cpu",
    workers: Workers | Executor = 1,
) -> Callable[[], object]:
    """Return a whole round of all users: training, sums on the grid, and the next version."""
    learner = Learner(plan, n_items, device=device, resources=Resources(workers=workers))
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    if "item_cluster" in shared.tensors:
        # In a first round without clusters, compiled code would leave out CoFedRec's contrast.
        shared = shared.with_tensors(item_cluster=np.arange(n_items) % ITEM_CLUSTERS)

    def play() -> object:
        part = learner.contribute("train", 1, shared, users, private)
        after = learner.server.apply("train", 1, shared, part.vector)
        if not learner.server.algorithm.derived.personalises:
            return after
        assert part.trained is not None
        trained = TrainedUsers(
            user_keys=users.user_keys(),
            samples=np.diff(users.train_indptr),
            trained=part.trained,
            private=part.private,
            room=learner.local.room,
        )
        return personalised(learner.server, 1, shared, after, [trained])

    return play


def _with_threads(threads: int, action: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            # A server's rule multiplies by NumPy.
            with threadpool_limits(threads, user_api="blas"):
                return action()
        finally:
            torch.set_num_threads(before)

    return run


def plan_of(algorithm: dict[str, object], **update: object) -> Plan:
    """Return a plan in which every item is trained and no round measures quality."""
    return Plan.model_validate(
        {
            "federation": {"maximum_users": 1024, "minimum_item_users": 1},
            "algorithm": algorithm,
            "update": {"structure": "dense"} | update,
            "protection": {"name": "none"},
            "evaluation": {"every_rounds": 1_000_000},
        }
    )


def tensors_of(state: SharedState | PrivateState) -> MappingProxyType[str, torch.Tensor]:
    """Return a state's tensors as float32 for the loop, copied."""
    return MappingProxyType(
        {
            name: torch.from_numpy(np.array(values, dtype=np.float32))
            for name, values in state.tensors.items()
        }
    )
