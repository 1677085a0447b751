"""Choose the executor: processes if the trainer has long rounds, else this process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import StorageError
from fedrec.training.executors.executor import Executor, Job, JobResult, SerialExecutor
from fedrec.training.executors.measuring import MeasureJob
from fedrec.training.executors.processes import (
    ProcessExecutor,
    estimated_seconds,
    fits_measuring,
    fits_processes,
)

Workers = int | Literal["auto"]
"""The number of processes for training.

"auto" uses several for long rounds, and 1 trains in this process."""

MOST_BY_THEMSELVES = 8
"""The most processes that "auto" starts. Each uses 200 MiB."""
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
LONG_ROUND_SECONDS = 5.0
"""The shortest round for which "auto" starts workers.

Starting them takes two seconds, and each uses the memory of a Python with torch."""


SHORTEST_MEASURING_SECONDS = 0.2
"""The shortest measuring for which workers are used. Shorter ones take longer to hand out."""


def executor_of(workers: Workers, *, threads: int = 0, folder: Path | None = None) -> Executor:
    """Return the executor that `client.workers` asks for.

    Args:
        threads: the most processors that "auto" uses, or 0 for all that this process may use.
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
