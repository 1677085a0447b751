"""The crew of worker processes on this machine. Tasks of a worker that died are done again."""

from __future__ import annotations

import queue
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.algorithm import Algorithm, RoundStart
from fedrec.algorithms.cohort import Cohort
from fedrec.data.mapped_items import MappedItems
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import Protocol
from fedrec.evaluation.protocols import Ranking
from fedrec.telemetry import logger_of
from fedrec.training.executors.executor import arrays_of, error_of, numbers_of, recipe_of
from fedrec.training.executors.scratch import CANDIDATES, ArrayPlace, Scratch
from fedrec.training.executors.worker_process import WorkerProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """Users that one worker trains at once.

    Attributes:
        members: the users' positions in the cohort, ascending int64 (n_users,).
        n_steps: the largest number of steps that one of them needs.
        cost: the number of steps of their blocks.
    """

    members: NDArray[np.int64]
    n_steps: int
    cost: int


_TABLES = ("user_keys", "pointers", "positives", "excluded_pointers", "excluded")


class Crew:
    """Running workers and the files that they share.

    Attributes:
        heard: (worker, answer), or (worker, None) if it has died.
    """

    def __init__(self, folder: Path | None) -> None:
        self.scratch = Scratch(folder)
        self.heard: queue.Queue[tuple[WorkerProcess, dict[str, Any] | None]] = queue.Queue()
        self.workers: list[WorkerProcess] = []
        self._kept: weakref.WeakKeyDictionary[Cohort | Ranking, dict[str, Any]] = (
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
        known = self._kept.get(cohort)
        if known is None:
            tables = cohort.tables
            arrays = {name: getattr(tables, name) for name in _TABLES}
            known = self._keep(cohort, {"say": "cohort", "n_items": tables.n_items}, arrays)
        return known

    def ranking(self, ranking: Ranking, protocols: Collection[Protocol]) -> dict[str, Any]:
        """Return the description of a ranking for workers. Its arrays are written once.

        Candidates are drawn here, because each worker would draw those of all users.
        """
        kept = ranking.kept_candidates() if set(protocols) - {"full"} else None
        known = self._kept.get(ranking)
        if known is None or (kept is not None and not known["arrays"].keys() & CANDIDATES):
            histories = ranking.histories
            arrays = {entry.name: getattr(histories, entry.name) for entry in fields(histories)}
            if kept is not None:
                arrays |= {name: own.numpy() for name, own in zip(CANDIDATES, kept, strict=True)}
            about = {"say": "ranking", "n_items": ranking.n_items, "seed": ranking.seed}
            if isinstance(histories.train_items, MappedItems):
                del arrays["train_items"]
                about["train_items"] = histories.train_items.to_json()
            known = self._keep(ranking, about, arrays)
        return known

    def _keep(
        self,
        matter: Cohort | Ranking,
        about: dict[str, Any],
        arrays: Mapping[str, NDArray[Any]],
    ) -> dict[str, Any]:
        places = self.scratch.keep(arrays)
        path = next(iter(places.values())).path
        weakref.finalize(matter, Path(path).unlink, missing_ok=True)
        message = about | {"arrays": {name: place.to_json() for name, place in places.items()}}
        self._kept[matter] = message
        return message

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
class Share:
    """One worker's part of the round.

    Attributes:
        places: the places of its sums.
        task: its present task.
        last: its last answer.
    """

    places: dict[str, ArrayPlace]
    metrics: NDArray[np.int64]
    done: list[WorkerTask] = field(default_factory=list)
    task: WorkerTask | None = None
    finite: bool = True
    last: dict[str, Any] = field(default_factory=dict)


T = TypeVar("T")


class CrewWork(ABC, Generic[T]):
    """Give tasks to a crew, and add up the numbers that workers answer.

    Args:
        tasks: all the work, the largest task first.
        n_workers: the maximum number of workers.
        number: the round, for the log.
        like: the form of an answer's numbers.
    """

    say: ClassVar[str]

    def __init__(
        self,
        crew: Crew,
        tasks: list[WorkerTask],
        *,
        n_workers: int,
        number: int,
        like: NDArray[np.int64],
    ) -> None:
        self._crew, self._tasks = crew, tasks
        self._waiting = deque(tasks)
        self._n_workers = min(n_workers, len(tasks))
        self._number, self._like = number, like
        self._n_deaths = 0
        self._shares: dict[WorkerProcess, Share] = {}
        self._files: list[Path] = []
        self._briefing: list[tuple[object, dict[str, Any]]] = []

    def close(self) -> None:
        """Remove the files."""
        for path in self._files:
            path.unlink(missing_ok=True)

    @abstractmethod
    def run(self) -> T:
        """Do all tasks, and return the result."""

    def _work(self) -> NDArray[np.int64]:
        """Do all tasks, and return the sum of their numbers."""
        while len(self._crew.workers) < self._n_workers:
            self._crew.start()
        if self._tasks:
            self._briefing = self._brief()
        for worker in list(self._crew.workers)[: self._n_workers]:
            self._give(worker)
        while self._waiting or any(share.task is not None for share in self._shares.values()):
            worker, answer = self._crew.heard.get()
            if answer is None:
                self._reap(worker)
            elif answer["say"] == "ready":
                continue
            elif answer["say"] == "failed":
                raise error_of(answer, worker.last_words())
            else:
                self._note(worker, answer)
                self._give(worker)
        return sum((share.metrics for share in self._shares.values()), np.zeros_like(self._like))

    @abstractmethod
    def _brief(self) -> list[tuple[object, dict[str, Any]]]:
        """Return the messages that every worker needs before its first task.

        Each comes with an object. A worker gets no two messages about the same one.
        """

    @abstractmethod
    def _begin(self, worker: WorkerProcess) -> Share:
        """Return a worker's share before its first task."""

    def _about_model(
        self, algorithm: Algorithm, start: RoundStart, tables: Mapping[str, Any]
    ) -> list[tuple[object, dict[str, Any]]]:
        """Return the messages about an algorithm, and about the model that users start from."""
        places = self._crew.scratch.keep(arrays_of(start))
        self._files.append(Path(places["active"].path))
        about = {
            "say": "round",
            **numbers_of(start),
            "start": {name: place.to_json() for name, place in places.items()},
            **tables,
        }
        return [
            (algorithm, {"say": "algorithm", "recipe": recipe_of(algorithm)}),
            # A token, so that workers' handles don't keep the round's tables alive.
            (object(), about),
        ]

    def _give(self, worker: WorkerProcess) -> None:
        """Give a worker the largest remaining task."""
        if not self._waiting:
            return
        share = self._shares.get(worker)
        if share is None:
            for matter, header in self._briefing:
                worker.tell_once(matter, header)
            share = self._shares[worker] = self._begin(worker)
        share.task = task = self._waiting.popleft()
        worker.tell({"say": self.say, **self._task_fields(task)}, task.members.tobytes())

    @abstractmethod
    def _task_fields(self, task: WorkerTask) -> dict[str, Any]:
        """Return what a worker needs to know of a task, except for its users."""

    def _note(self, worker: WorkerProcess, answer: dict[str, Any]) -> None:
        share = self._shares[worker]
        assert share.task is not None
        share.done.append(share.task)
        share.task = None
        share.metrics = share.metrics + np.array(answer["metrics"], dtype=np.int64)
        share.finite = share.finite and answer.get("private_finite", True)
        share.last = answer

    def _reap(self, worker: WorkerProcess) -> None:
        """Replace a worker that died. Its sums count only if it died between two tasks."""
        code, words = worker.exit_code(), worker.last_words()
        logger_of(_LOG).warning(
            "worker process died", exit_code=code, round=self._number, said=words
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
