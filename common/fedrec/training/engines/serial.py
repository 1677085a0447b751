"""Training in this process: chunk after chunk, on whatever device it is."""

from __future__ import annotations

import numpy as np

from fedrec.training.engines import chunk_metrics
from fedrec.training.engines.engine import Engine, Job, Trained
from fedrec.training.fitting import fit_of
from fedrec.training.user_tables import open_tables

__all__ = ["SerialEngine"]


class SerialEngine(Engine):
    """The plain loop over chunks of users."""

    def train(self, job: Job) -> Trained:
        """Train a job's users; see `Engine.train`."""
        algorithm, device = job.algorithm, job.device
        sums = job.sums.empty(device)
        fit = fit_of(algorithm, job.start, sums, job.accelerator, job.block_room(job.start, sums))
        tables = open_tables(job.private, job.room, job.on_device)
        metrics = np.zeros(4, dtype=np.int64)
        for chunk in job.cohort.chunks(
            participating=job.participating,
            steps=algorithm.steps,
            bytes_per_user=algorithm.bytes_per_user,
            memory_bytes=job.memory_bytes,
            device=device,
        ):
            result = fit(chunk, tables.take(chunk.user_index))
            tables.put(chunk.user_index, result.private)
            metrics += chunk_metrics.training_sums(result.loss, result.clipped)
        private = tables.finish()
        return Trained(sums=sums, metrics=metrics, private=private, finite=tables.finite)
