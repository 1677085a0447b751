"""Train in worker processes on this machine. Tasks of a worker that died are done again."""

from __future__ import annotations

import math
import os
import queue
import weakref
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms.cohort import Cohort
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.errors import ERRORS, FedrecError, InternalError, TrainingError
from fedrec.telemetry import logger_of
from fedrec.training.blocks import BLOCK_USERS
from fedrec.training.executors.executor import (
    Executor,
    Job,
    JobResult,
    SerialExecutor,
    can_be_made_again,
    recipe_of,
)
from fedrec.training.executors.scratch import ArrayPlace, PrivateRound, Scratch
from fedrec.training.executors.worker_process import WorkerProcess

_TASKS_A_WORKER = 2
_MOST_BYTES = 32 << 20
"""The memory of one task's users. More users at once aren't faster."""
_SECONDS_A_MINIBATCH = 70e-6
_SECONDS_A_SAMPLE = 0.1e-6
_SECONDS_A_VALUE = 7e-9
_SECONDS_A_WEIGHT = 0.4e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """Users that one worker trains at once.

    Attributes:
        members: the users' positions in the cohort, ascending int64 (n_users,).
        n_steps: the most steps that one of them needs.
        cost: the number of steps of their blocks.
    """

    members: NDArray[np.int64]
    n_steps: int
    cost: int


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
    n_samples = n_positives * (1 + algorithm.negatives_per_positive)
    each = _SECONDS_A_SAMPLE + _SECONDS_A_VALUE * values + _SECONDS_A_WEIGHT * weights
    return passes * (n_minibatches * _SECONDS_A_MINIBATCH + n_samples * each)


class Crew:
    """Running workers and the files that they share.

    Attributes:
        heard: (worker, answer), or (worker, None) if it has died.
    """

    def __init__(self, folder: Path | None) -> None:
        self.scratch = Scratch(folder)
        self.heard: queue.Queue[tuple[WorkerProcess, dict[str, Any] | None]] = queue.Queue()
        self.workers: list[WorkerProcess] = []
        self._cohorts: weakref.WeakKeyDictionary[Cohort, dict[str, Any]] = (
            weakref.WeakKeyDictionary()
        )

    def start(self) -> WorkerProcess:
        """Start one more worker, and return it."""
        worker = WorkerProcess(self.scratch.path, self.heard)
        self.workers.append(worker)
        return worker

    def dismiss(self, worker: WorkerProcess) -> None:
        """Remove a worker that has died."""
        self.workers.remove(worker)
        worker.end()

    def cohort(self, cohort: Cohort) -> dict[str, Any]:
        """Return the description of a cohort for workers. Its tables are written once."""
        known = self._cohorts.get(cohort)
        if known is not None:
            return known
        tables = cohort.tables
        places = self.scratch.keep(
            {
                "user_keys": tables.user_keys,
                "pointers": tables.pointers,
                "positives": tables.positives,
                "excluded_pointers": tables.excluded_pointers,
                "excluded": tables.excluded,
            }
        )
        weakref.finalize(cohort, Path(places["pointers"].path).unlink, missing_ok=True)
        told = {
            "say": "cohort",
            "n_items": tables.n_items,
            "tables": {name: place.to_json() for name, place in places.items()},
        }
        self._cohorts[cohort] = told
        return told

    def end(self) -> None:
        """End all workers, then delete the files that they share."""
        for worker in self.workers:
            worker.tell({"say": "end"})
        for worker in self.workers:
            worker.end()
        self.workers.clear()
        self.scratch.remove()


_LOG = "fedrec.training"
_DEATHS_A_WORKER = 2
"""The number of deaths per worker that a round survives."""


@dataclass(slots=True, kw_only=True)
class _Share:
    """One worker's part of the round.

    Attributes:
        places: the places of its sums.
        task: its present task.
        last: its last answer.
    """

    places: dict[str, ArrayPlace]
    done: list[WorkerTask] = field(default_factory=list)
    task: WorkerTask | None = None
    metrics: NDArray[np.int64] = field(default_factory=lambda: np.zeros(4, dtype=np.int64))
    finite: bool = True
    last: dict[str, Any] = field(default_factory=dict)


class ProcessRound:
    """Run one job on a crew.

    Args:
        tasks: the whole job, the largest task first.
        n_workers: the most workers to use.
    """

    def __init__(self, crew: Crew, job: Job, tasks: list[WorkerTask], *, n_workers: int) -> None:
        self._crew, self._job, self._tasks = crew, job, tasks
        self._waiting = deque(tasks)
        self._n_workers = min(n_workers, len(tasks))
        self._n_deaths = 0
        self._shares: dict[WorkerProcess, _Share] = {}
        self._sums = job.sums.empty(job.device)
        self._files: list[Path] = []
        self._briefing: list[tuple[object, dict[str, Any]]] = []

    def __enter__(self) -> ProcessRound:
        self._private = PrivateRound(self._crew.scratch, self._job.private, self._job.room)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._private.remove()
        for path in self._files:
            path.unlink(missing_ok=True)

    def run(self) -> JobResult:
        """Train all users, and return the result."""
        while len(self._crew.workers) < self._n_workers:
            self._crew.start()
        if self._tasks:
            self._brief()
        for worker in list(self._crew.workers)[: self._n_workers]:
            self._give(worker)
        while self._waiting or any(share.task is not None for share in self._shares.values()):
            worker, answer = self._crew.heard.get()
            if answer is None:
                self._bury(worker)
            elif answer["say"] == "ready":
                continue
            elif answer["say"] == "failed":
                raise _error_of(answer, worker.last_words())
            else:
                self._note(worker, answer)
                self._give(worker)
        return self._sum_up()

    def _brief(self) -> None:
        """Prepare the messages that every worker needs before its first task."""
        job, start = self._job, self._job.start
        arrays = {f"shared.{name}": values.numpy() for name, values in start.shared.items()}
        arrays["active"] = start.active.numpy()
        if start.basis is not None:
            arrays["basis"] = start.basis.numpy()
        places = self._crew.scratch.keep(arrays)
        self._files.append(Path(places["active"].path))
        about = {
            "say": "round",
            "round": start.round,
            "n_items": start.n_items,
            "scalars": dict(start.scalars),
            "party_key": start.party_key,
            "start": {name: place.to_json() for name, place in places.items()},
            **self._private.sent(),
        }
        self._briefing = [
            (job.algorithm, {"say": "algorithm", "recipe": recipe_of(job.algorithm)}),
            (job.cohort, self._crew.cohort(job.cohort)),
            # A token, so that workers' handles don't keep the round's tables alive.
            (object(), about),
        ]

    def _give(self, worker: WorkerProcess) -> None:
        """Give a worker the largest remaining task."""
        if not self._waiting:
            return
        share = self._shares.get(worker)
        if share is None:
            share = self._shares[worker] = _Share(places=self._own_sums())
            for matter, header in self._briefing:
                worker.tell_once(matter, header)
            places = {name: place.to_json() for name, place in share.places.items()}
            worker.tell({"say": "sums", "shape": asdict(self._job.sums), "places": places})
        share.task = task = self._waiting.popleft()
        worker.tell({"say": "task", "n_steps": task.n_steps}, task.members.tobytes())

    def _own_sums(self) -> dict[str, ArrayPlace]:
        forms = {
            name: (str(part.numpy().dtype), part.shape) for name, part in self._sums.parts.items()
        }
        places = self._crew.scratch.lay_out(forms)
        self._files.append(Path(places[""].path))
        return places

    def _note(self, worker: WorkerProcess, answer: dict[str, Any]) -> None:
        share = self._shares[worker]
        assert share.task is not None
        share.done.append(share.task)
        share.task = None
        share.metrics += np.array(answer["metrics"], dtype=np.int64)
        share.finite = share.finite and answer["private_finite"]
        share.last = answer

    def _bury(self, worker: WorkerProcess) -> None:
        """Replace a worker that died. Its sums count only if it died between two tasks."""
        code, words = worker.exit_code(), worker.last_words()
        logger_of(_LOG).warning(
            "worker process died", exit_code=code, round=self._job.start.round, said=words
        )
        self._crew.dismiss(worker)
        self._n_deaths += 1
        if self._n_deaths > _DEATHS_A_WORKER * self._n_workers:
            raise TrainingError(
                f"Worker processes died {self._n_deaths} times in one round, "
                f"the last with exit code {code}{f' after: {words[-300:]}' if words else ''}. The "
                "version before this round is intact.",
                remedy="If the machine ran out of memory, lower client.workers or "
                "client.memory_mib. client.workers = 1 trains in this process.",
            )
        share = self._shares.get(worker)
        if share is not None and share.task is not None:
            del self._shares[worker]
            self._waiting.extendleft([*share.done, share.task])
        self._give(self._crew.start())

    def _sum_up(self) -> JobResult:
        metrics, finite = np.zeros(4, dtype=np.int64), True
        for share in self._shares.values():
            self._sums.add_parts(
                {name: torch.from_numpy(place.open("c")) for name, place in share.places.items()},
                finite=share.last["sums_finite"],
                n_shrunk=share.last["n_shrunk"],
            )
            metrics += share.metrics
            finite = finite and share.finite
        none = np.zeros(0, dtype=np.int64)
        trained = np.concatenate([none, *(task.members for task in self._tasks)])
        private, finite = self._private.finish(trained, finite=finite)
        return JobResult(sums=self._sums, metrics=metrics, private=private, finite=finite)


def _error_of(answer: dict[str, Any], words: str) -> FedrecError:
    """Return the error of a worker as an error of this process."""
    logger_of(_LOG).warning("worker process failed", where=answer["where"], said=words)
    kinds = {kind.__name__: kind for kind in ERRORS.values()}
    kind = kinds.get(answer["error"]) if answer["known"] else None
    if kind is not None:
        return kind(answer["message"], remedy=answer["remedy"])
    return InternalError(
        f"A worker process failed: {answer['error']}: {answer['message']}.",
        remedy="Its traceback is in the log. Set client.workers = 1 to train in this process.",
    )


def fits_processes(job: Job) -> bool:
    """Return whether a job uses the trainer on a CPU, and its algorithm can be imported.

    Compiled code has its own threads. Exact solutions and devices gain nothing from processes.
    """
    on_processor = job.device.type == "cpu" and job.accelerator is None
    trained = isinstance(job.algorithm, TrainedAlgorithm) and on_processor
    return trained and can_be_made_again(job.algorithm)


class ProcessExecutor(Executor):
    """Train jobs that fit processes in worker processes, and all others here.

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
        tasks, crew = tasks_of(job, self.n_workers), self._present()
        try:
            with ProcessRound(crew, job, tasks, n_workers=self.n_workers) as held:
                return held.run()
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
