"""Training in worker processes on this machine, for what one thread of Python holds back.

Workers start with the first job and stay until the engine is closed. Tables lie in files that all
of them map; what goes through pipes is names, users' positions and a few numbers. Every worker has
sums of its own, which are added up at the end of a round, in integers. A worker that dies is
replaced, and what it did in the round is done again.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from fedrec.training.engines.crew import Crew
from fedrec.training.engines.engine import Engine, Job, Trained
from fedrec.training.engines.process_round import ProcessRound
from fedrec.training.engines.recipe import can_be_made_again
from fedrec.training.engines.serial import SerialEngine
from fedrec.training.engines.tasks import tasks_of
from fedrec.training.fitting import is_trained_by_steps

__all__ = ["ProcessEngine", "fits_processes"]


def fits_processes(job: Job) -> bool:
    """Return whether a job is the trainer's, on a processor, and its algorithm can be imported.

    Compiled code has threads of its own, exact solutions and devices gain nothing.
    """
    trained = is_trained_by_steps(job.algorithm, job.device, job.accelerator)
    return trained and can_be_made_again(job.algorithm)


class ProcessEngine(Engine):
    """Trains jobs that fit processes in processes, all others here.

    Args:
        n_workers: processes.
        folder: where the folder of shared files is made; None for the system's temporary one.
    """

    def __init__(self, n_workers: int, folder: Path | None = None) -> None:
        self.n_workers = n_workers
        self._folder = folder
        self._crew: Crew | None = None
        self._end: weakref.finalize[..., ProcessEngine] | None = None

    @property
    def processes(self) -> tuple[int, ...]:
        """The workers that run now."""
        return () if self._crew is None else tuple(worker.pid for worker in self._crew.workers)

    def train(self, job: Job) -> Trained:
        """Train a job's users; see `Engine.train`.

        Raises:
            TrainingError: workers keep dying.
            StorageError: there is no room for the shared files.
        """
        if not fits_processes(job):
            return SerialEngine().train(job)
        tasks, crew = tasks_of(job, self.n_workers), self._present()
        try:
            with ProcessRound(crew, job, tasks, n_workers=self.n_workers) as held:
                return held.run()
        except BaseException:
            # Who works on after that would answer into another round.
            self.close()
            raise

    def start(self) -> None:
        """Start all workers ahead of the first job, and return when they can begin."""
        crew = self._present()
        missing = self.n_workers - len(crew.workers)
        for _ in range(missing):
            crew.start()
        for _ in range(missing):
            worker, answer = crew.heard.get()
            if answer is None:
                # It will be missed, and replaced, when there is something to do.
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
    # A forked child leaves its parent's workers alone.
    if os.getpid() == owner:
        crew.end()
