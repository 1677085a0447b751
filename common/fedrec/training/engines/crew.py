"""Worker processes that run, and the files that they share."""

from __future__ import annotations

import queue
import weakref
from pathlib import Path
from typing import Any

from fedrec.algorithms.cohort import Cohort
from fedrec.training.engines.scratch import Scratch
from fedrec.training.engines.worker_process import WorkerProcess

__all__ = ["Crew"]


class Crew:
    """Running workers and the files that they share.

    Attributes:
        heard: (worker, what it says), None where it has died.
    """

    def __init__(self, folder: Path | None) -> None:
        self.scratch = Scratch(folder)
        self.heard: queue.Queue[tuple[WorkerProcess, dict[str, Any] | None]] = queue.Queue()
        self.workers: list[WorkerProcess] = []
        self._cohorts: weakref.WeakKeyDictionary[Cohort, dict[str, Any]] = (
            weakref.WeakKeyDictionary()
        )

    def start(self) -> WorkerProcess:
        """Return one more worker."""
        worker = WorkerProcess(self.scratch.path, self.heard)
        self.workers.append(worker)
        return worker

    def dismiss(self, worker: WorkerProcess) -> None:
        """Take leave of a worker that has died."""
        self.workers.remove(worker)
        worker.end()

    def cohort(self, cohort: Cohort) -> dict[str, Any]:
        """Return what workers are told of a cohort; its tables are written once."""
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
        """End all workers, then remove what they share."""
        for worker in self.workers:
            worker.tell({"say": "end"})
        for worker in self.workers:
            worker.end()
        self.workers.clear()
        self.scratch.remove()
