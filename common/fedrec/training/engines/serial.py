"""Training in this process: chunk after chunk, on whatever device it is."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.tensor_products import one_thread
from fedrec.training.engines import chunk_metrics
from fedrec.training.engines.engine import Executor, Job, JobResult
from fedrec.training.fitting import fit_of
from fedrec.training.user_tables import open_tables

_COMPILED_BYTES = 128 << 20
"""Memory of users whom compiled code trains at once: more makes nobody faster, and as little as
this is used again by the next ones, in place of new memory."""


class SerialExecutor(Executor):
    """The plain loop over chunks of users."""

    def train(self, job: Job) -> JobResult:
        """Train a job's users; see `Executor.train`."""
        algorithm, device = job.algorithm, job.device
        sums = job.sums.empty(device)
        fit = fit_of(algorithm, job.start, sums, job.accelerator, job.block_room(job.start, sums))
        tables = open_tables(job.private, job.room, job.on_device)
        memory_bytes = job.memory_bytes
        if job.accelerator is not None and device.type == "cpu":
            memory_bytes = min(memory_bytes, _COMPILED_BYTES)
        metrics = np.zeros(4, dtype=np.int64)
        # What torch's threads do here is short, and they would go on to wait for more of it where
        # compiled ones work.
        with one_thread() if isinstance(algorithm, TrainedAlgorithm) else nullcontext():
            for chunk in job.cohort.chunks(
                participating=job.participating,
                steps=algorithm.steps,
                bytes_per_user=algorithm.bytes_per_user,
                memory_bytes=memory_bytes,
                device=device,
            ):
                result = fit(chunk, tables.take(chunk.user_index))
                tables.put(chunk.user_index, result.private)
                metrics += chunk_metrics.training_sums(result.loss, result.clipped)
        private = tables.finish()
        return JobResult(sums=sums, metrics=metrics, private=private, finite=tables.finite)
