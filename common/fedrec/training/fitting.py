"""How a chunk of users is trained: exactly, in compiled code, or by the trainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.changes import ChangeSink
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.algorithms.whole_decay import decaying, shrinking
from fedrec.tensor_products import one_thread
from fedrec.training.noisy_uploads import NoisyUploads
from fedrec.training.trainer import Trainer

if TYPE_CHECKING:
    from fedrec.algorithms.accelerators import Accelerator
    from fedrec.algorithms.algorithm import Algorithm, ChunkResult, RoundStart
    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums
    from fedrec.training.blocks import Room

__all__ = ["Fit", "fit_of", "is_trained_by_steps"]

Fit = Callable[["Chunk", "dict[str, torch.Tensor]"], "ChunkResult"]
"""Trains a chunk of users with their private tensors."""


def is_trained_by_steps(
    algorithm: Algorithm, device: torch.device, accelerator: Accelerator | None
) -> bool:
    """Return whether the trainer does it on a processor, where one thread is all that it uses."""
    return isinstance(algorithm, TrainedAlgorithm) and device.type == "cpu" and accelerator is None


def fit_of(
    algorithm: Algorithm,
    start: RoundStart,
    sums: RoundSums,
    accelerator: Accelerator | None,
    room: Room | None = None,
) -> Fit:
    """Return what trains the chunks of a round and adds their contributions to `sums`.

    Args:
        room: how many users fit a device at once; None for a processor's blocks, which have one
            size.
    """
    if isinstance(algorithm, TrainedAlgorithm):
        if accelerator is not None and start.active.device.type == "cpu":
            fit, threads = partial(accelerator.fit, algorithm), torch.get_num_threads()

            def train(chunk: Chunk, private: dict[str, torch.Tensor]) -> ChunkResult:
                # torch's own threads would only get in the way of the compiled ones.
                with one_thread():
                    return fit(chunk, start, private, sums, threads=threads)

            return train
        trainer, noise = Trainer(algorithm, start, room), algorithm.upload_noise
        # With worker processes, too: every process draws from a source of its own.
        sink: ChangeSink = sums
        if noise is not None:
            tables = {**start.shared, **decaying(algorithm, start)}
            sink = NoisyUploads(sums, noise, tables, shrinking(algorithm, start))

        def by_the_trainer(chunk: Chunk, private: dict[str, torch.Tensor]) -> ChunkResult:
            # A library may split a product among threads, and then bits follow their number.
            # More threads would hardly be faster; processes are (`client.workers`).
            with one_thread():
                return trainer.train(chunk, private, sink)

        return by_the_trainer
    return lambda chunk, private: algorithm.fit(chunk, start, private, sums)
