"""Train and measure in worker processes on this machine.

`executor_of` chooses: processes if the trainer has long rounds, else this process.
"""

from __future__ import annotations

import math
import os
import sys
import weakref
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.errors import StorageError
from fedrec.model.blocked_table import BlockedTable
from fedrec.training.blocks import BLOCK_USERS
from fedrec.training.executors.crew import Crew, CrewWork, Share, WorkerTask
from fedrec.training.executors.executor import (
    Executor,
    Job,
    JobResult,
    MeasureJob,
    SerialExecutor,
    can_be_made_again,
)
from fedrec.training.executors.scratch import PrivateRound
from fedrec.training.executors.worker_process import WorkerProcess

T = TypeVar("T")

_TASKS_A_WORKER = 2
_MOST_BYTES = 32 << 20
"""The memory of one task's users. More users at once aren't faster."""
_SECONDS_A_MINIBATCH = 70e-6
_SECONDS_A_SAMPLE = 0.1e-6
_SECONDS_A_VALUE = 7e-9
_SECONDS_A_WEIGHT = 0.4e-9


def tasks_of(job: Job, n_workers: int) -> list[WorkerTask]:
    """Return a job's users in about two tasks a worker, at least one a level, the largest first.

    The users of one task are similar, so that its blocks are full. A level's users are ordered by
    their number of items before they are cut into tasks.
    """
    held = job.cohort.n_positives
    steps = job.algorithm.steps(held)
    levels = list(job.cohort.levels(job.participating, job.algorithm.steps))
    total = sum(_cost(steps[members]) for members, _ in levels)
    aim = max(1, total // (_TASKS_A_WORKER * n_workers))
    memory = min(job.memory_bytes // n_workers, _MOST_BYTES)
    tasks = []
    for members, n_steps in levels:
        each = job.algorithm.bytes_per_user(len(job.cohort.active), n_steps)
        ordered = members[np.argsort(-held[members], kind="stable")]
        reached = np.cumsum(steps[ordered])
        n_parts = max(1, round(_cost(steps[members]) / aim))
        ends = np.searchsorted(reached, int(reached[-1]) * np.arange(1, n_parts) / n_parts)
        at_once = max(1, memory // max(each, 1))
        for part in np.split(ordered, np.unique(ends)):
            for begin in range(0, len(part), at_once):
                own = np.sort(part[begin : begin + at_once])
                tasks.append(WorkerTask(members=own, n_steps=n_steps, cost=_cost(steps[own])))
    return sorted(tasks, key=lambda task: -task.cost)


def _cost(steps: NDArray[np.int64]) -> int:
    """Return the steps of all blocks of some users. All users of a block have the same number."""
    sizes, n_users = np.unique(steps, return_counts=True)
    return int((-(-n_users // BLOCK_USERS) * sizes).sum())


def estimated_seconds(job: Job) -> float:
    """Return the estimated time of a trainer's job on one processor.

    The estimate adds four terms for every epoch and step. Each minibatch of a user takes 70 us, and
    each sample 0.1 us. Each value of rows and tensors that belong to a user or an item takes 7 ns,
    and each weight of a shared network 0.4 ns. On the machine of
    `docs/explanation/performance.md`, it is within a factor of two for FedMF, PFedRec and FedNCF.
    That is enough to tell seconds from minutes.
    """
    algorithm = job.algorithm
    assert isinstance(algorithm, TrainedAlgorithm)
    values = weights = 0
    for entry in algorithm.parameters:
        if entry.name == algorithm.kept_scores or entry.applied:
            continue
        if entry.scope == "net":
            weights += math.prod(entry.shape)
        else:
            values += math.prod(entry.shape)
    passes = sum(phase.epochs * len(phase.steps) for phase in algorithm.phases(job.start.scalars))
    held = job.cohort.n_positives
    levels = [members for members, _ in job.cohort.levels(job.participating, algorithm.steps)]
    n_positives = sum(int(held[members].sum()) for members in levels)
    n_minibatches = sum(int(algorithm.steps(held[members]).sum()) for members in levels)
    n_samples = n_positives * (1 + algorithm.derived.negatives_per_positive)
    each = _SECONDS_A_SAMPLE + _SECONDS_A_VALUE * values + _SECONDS_A_WEIGHT * weights
    return passes * (n_minibatches * _SECONDS_A_MINIBATCH + n_samples * each)


class ProcessRound(CrewWork[JobResult]):
    """Train one job on a crew."""

    say = "task"

    def __init__(self, crew: Crew, job: Job, tasks: list[WorkerTask], *, n_workers: int) -> None:
        super().__init__(
            crew,
            tasks,
            n_workers=n_workers,
            number=job.start.round,
            like=np.zeros(4, dtype=np.int64),
        )
        self._job = job
        self._sums = job.sums.empty(job.device)

    def run(self) -> JobResult:
        """Train all users, and return the result."""
        self._private = PrivateRound(self._crew.scratch, self._job.private, self._job.room)
        with closing(self._private):
            return self._trained()

    def _trained(self) -> JobResult:
        metrics, finite = self._work(), True
        for share in self._shares.values():
            self._sums.add_parts(
                {name: torch.from_numpy(place.open("c")) for name, place in share.places.items()},
                finite=share.last["sums_finite"],
                n_shrunk=share.last["n_shrunk"],
            )
            finite = finite and share.finite
        none = np.zeros(0, dtype=np.int64)
        trained = np.concatenate([none, *(task.members for task in self._tasks)])
        private, finite = self._private.finish(trained, finite=finite)
        return JobResult(sums=self._sums, metrics=metrics, private=private, finite=finite)

    def _brief(self) -> list[tuple[object, dict[str, Any]]]:
        cohort = self._crew.cohort(self._job.cohort)
        model = self._about_model(self._job.algorithm, self._job.start, self._private.sent())
        return [(cohort, cohort), *model]

    def _begin(self, worker: WorkerProcess) -> Share:
        forms = {
            name: (str(part.numpy().dtype), part.shape) for name, part in self._sums.parts.items()
        }
        places = self._crew.scratch.lay_out(forms)
        self._files.append(Path(places[""].path))
        sent = {name: place.to_json() for name, place in places.items()}
        worker.tell({"say": "sums", "shape": asdict(self._job.sums), "places": sent})
        return Share(places=places, metrics=self._like)

    def _task_fields(self, task: WorkerTask) -> dict[str, Any]:
        return {"n_steps": task.n_steps}


_MEASURED_TASKS_A_WORKER = 4


class ProcessMeasuring(CrewWork[NDArray[np.int64]]):
    """Measure one job on a crew."""

    say = "measure"

    def __init__(self, crew: Crew, job: MeasureJob, *, n_workers: int) -> None:
        users = np.arange(job.cohort.n_users)
        n_tasks = min(len(users), _MEASURED_TASKS_A_WORKER * n_workers)
        parts = np.array_split(users, n_tasks) if n_tasks else []
        super().__init__(
            crew,
            [WorkerTask(members=part, n_steps=0, cost=len(part)) for part in parts],
            n_workers=n_workers,
            number=job.scoring.start.round,
            like=job.measures.empty(),
        )
        self._job = job

    def run(self) -> NDArray[np.int64]:
        """Measure all users, and return their sums."""
        return self._work()

    def _brief(self) -> list[tuple[object, dict[str, Any]]]:
        scoring, tables = self._job.scoring, {}
        for name in scoring.private.tensors.keys() & scoring.algorithm.scoring:
            values = scoring.private.tensors[name]
            if isinstance(values, BlockedTable):
                # Workers trust the paths that they receive.
                values.check()
                tables[name] = values.to_json()
            else:
                place = self._crew.scratch.copy(values)
                self._files.append(Path(place.path))
                tables[name] = place.to_json()
        about = self._about_model(scoring.algorithm, scoring.start, {"old": tables, "new": {}})
        cohort = self._crew.cohort(self._job.cohort)
        ranking = self._crew.ranking(self._job.ranking, self._job.measures.protocols)
        return [(cohort, cohort), (ranking, ranking), *about]

    def _begin(self, worker: WorkerProcess) -> Share:
        return Share(places={}, metrics=self._like)

    def _task_fields(self, task: WorkerTask) -> dict[str, Any]:
        return {
            **asdict(self._job.measures),
            "memory_bytes": self._job.memory_bytes // self._n_workers,
        }


def fits_processes(job: Job) -> bool:
    """Return whether a job uses the trainer on a CPU, and its algorithm can be imported.

    Compiled code has its own threads. Exact solutions and devices gain nothing from processes.
    """
    on_processor = job.device.type == "cpu" and job.accelerator is None
    trained = isinstance(job.algorithm, TrainedAlgorithm) and on_processor
    return trained and can_be_made_again(job.algorithm)


def fits_measuring(job: MeasureJob) -> bool:
    """Return whether a job scores on a CPU, and its algorithm can be imported."""
    scoring = job.scoring
    return scoring.on_device.device.type == "cpu" and can_be_made_again(scoring.algorithm)


class ProcessExecutor(Executor):
    """Train and measure jobs that fit processes in worker processes, and all others here.

    Args:
        n_workers: the number of processes.
        folder: the parent of the folder of shared files, or None for the system's temporary folder.
    """

    def __init__(self, n_workers: int, folder: Path | None = None) -> None:
        self.n_workers = n_workers
        self._folder = folder
        self._crew: Crew | None = None
        self._end: weakref.finalize[..., ProcessExecutor] | None = None

    @property
    def processes(self) -> tuple[int, ...]:
        """The running worker processes."""
        return () if self._crew is None else tuple(worker.pid for worker in self._crew.workers)

    def train(self, job: Job) -> JobResult:
        """Train a job's users (see `Executor.train`).

        Raises:
            TrainingError: workers keep dying.
            StorageError: the disk has no room for the shared files.
        """
        if not fits_processes(job):
            return SerialExecutor().train(job)
        tasks = tasks_of(job, self.n_workers)
        return self._run(ProcessRound(self._present(), job, tasks, n_workers=self.n_workers))

    def measure(self, job: MeasureJob) -> NDArray[np.int64]:
        """Measure a job's users (see `Executor.measure`).

        Raises:
            TrainingError: workers keep dying.
            StorageError: the disk has no room for the shared files.
        """
        if not fits_measuring(job):
            return SerialExecutor().measure(job)
        return self._run(ProcessMeasuring(self._present(), job, n_workers=self.n_workers))

    def _run(self, work: CrewWork[T]) -> T:
        try:
            with closing(work):
                return work.run()
        except BaseException:
            # A worker that is still busy would answer into another round.
            self.close()
            raise

    def start(self) -> None:
        """Start all workers ahead of the first job, and return when they are ready."""
        crew = self._present()
        missing = self.n_workers - len(crew.workers)
        for _ in range(missing):
            crew.start()
        for _ in range(missing):
            worker, answer = crew.heard.get()
            if answer is None:
                # The next job notices that it is missing, and replaces it.
                crew.dismiss(worker)

    def _present(self) -> Crew:
        if self._crew is None:
            self._crew = Crew(self._folder)
            self._end = weakref.finalize(self, _end, self._crew, os.getpid())
        return self._crew

    def close(self) -> None:
        """End the workers and remove the shared files."""
        if self._end is not None:
            self._end()
        self._crew = self._end = None


def _end(crew: Crew, owner: int) -> None:
    # A forked child doesn't touch its parent's workers.
    if os.getpid() == owner:
        crew.end()


Workers = int | Literal["auto"]
"""The number of processes for training.

"auto" uses several for long rounds, and 1 trains in this process."""

MOST_BY_THEMSELVES = 8
"""The maximum number of processes that "auto" starts. Each uses 200 MiB."""
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
LONG_ROUND_SECONDS = 5.0
"""The shortest round for which "auto" starts workers.

Starting them takes two seconds, and each uses the memory of a Python with torch."""


SHORTEST_MEASURING_SECONDS = 0.2
"""The shortest measuring for which workers are used. Shorter ones take longer to hand out."""


def executor_of(workers: Workers, *, threads: int = 0, folder: Path | None = None) -> Executor:
    """Return the executor that `client.workers` asks for.

    Args:
        threads: the maximum number of processors that "auto" uses, or 0 for all that this process
            may use.
        folder: the folder of workers' shared files, or None for the system's temporary folder.
    """
    n_workers = _processors(threads) if workers == "auto" else workers
    # Without its own interpreter, as inside another program, a worker can't be started.
    if n_workers < 2 or not sys.executable:
        return SerialExecutor()
    least = LONG_ROUND_SECONDS if workers == "auto" else 0.0
    return _ChoosingExecutor(ProcessExecutor(n_workers, folder), least)


def _processors(threads: int) -> int:
    """Return the number of processors that "auto" uses: those of this process or its container."""
    if hasattr(os, "sched_getaffinity"):
        found = len(os.sched_getaffinity(0))
    else:
        found = os.cpu_count() or 1
    return max(1, min(found, _share_of_container(), threads or MOST_BY_THEMSELVES))


def _share_of_container() -> int:
    """Return the number of processors that a container may use, if it has a limit."""
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        return int(quota) // int(period)
    except (OSError, ValueError):
        # There is no limit, or it is "max".
        return os.cpu_count() or 1


class _ChoosingExecutor(Executor):
    """Use processes for long jobs that fit them, and this process for others."""

    def __init__(self, processes: ProcessExecutor, least_seconds: float) -> None:
        self._processes, self._least = processes, least_seconds
        self._serial = SerialExecutor()

    def train(self, job: Job) -> JobResult:
        """Train a job's users (see `Executor.train`)."""
        there = fits_processes(job) and estimated_seconds(job) >= self._least
        return (self._processes if there else self._serial).train(job)

    def measure(self, job: MeasureJob) -> NDArray[np.int64]:
        """Measure a job's users (see `Executor.measure`)."""
        least = SHORTEST_MEASURING_SECONDS if self._processes.processes else self._least
        there = fits_measuring(job) and job.estimated_seconds >= max(
            least, SHORTEST_MEASURING_SECONDS
        )
        if there:
            # This process needs no disk for it.
            with suppress(StorageError):
                return self._processes.measure(job)
        return self._serial.measure(job)

    def close(self) -> None:
        """End the worker processes."""
        self._processes.close()
