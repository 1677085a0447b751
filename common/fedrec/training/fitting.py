"""How a chunk of users is trained: by an algorithm's exact solution, or by the trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.training.trainer import Trainer

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.algorithm import Algorithm, ChunkResult, RoundStart
    from fedrec.training.cohort import Chunk
    from fedrec.training.grid import RoundSums

__all__ = ["Fit", "fit_of", "is_trained_by_steps"]

Fit = Callable[["Chunk", "dict[str, torch.Tensor]"], "ChunkResult"]
"""Trains a chunk of users with their private tensors."""


def is_trained_by_steps(algorithm: Algorithm, device: torch.device) -> bool:
    """Return whether the trainer does it on a processor, where one thread is all that it uses."""
    return isinstance(algorithm, TrainedAlgorithm) and device.type == "cpu"


def fit_of(algorithm: Algorithm, start: RoundStart, sums: RoundSums) -> Fit:
    """Return what trains the chunks of a round and adds their contributions to `sums`."""
    if isinstance(algorithm, TrainedAlgorithm):
        trainer = Trainer(algorithm, start)
        return lambda chunk, private: trainer.train(chunk, private, sums)
    return lambda chunk, private: algorithm.fit(chunk, start, private, sums)
