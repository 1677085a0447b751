"""Compiled kernels, one file each: optional, at least twice as fast as what they stand in for.

An accelerator trains users on a processor as the algorithm of its name does, one user after the
other with everything of that user in the cache. A user's result depends on that user alone, and
sums are integers: hence neither on threads, chunks and order nor on whether code was compiled
just now or comes from the cache. What all of them share is in `compiled`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from fedrec.algorithms.algorithm import Algorithm, ChunkResult, RoundStart
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.algorithms.wrapper import Wrapper

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums

__all__ = ["ACCELERATORS", "Accelerator", "accelerator_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A compiled kernel that trains users as an algorithm says, on a processor.

    Attributes:
        version: counted up whenever it gives other bits.
        serves: whether it does what an algorithm's settings ask for.
    """

    version: int
    serves: Callable[[TrainedAlgorithm], bool]

    def fit(
        self,
        algorithm: TrainedAlgorithm,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
        *,
        threads: int,
    ) -> ChunkResult:
        """Train a chunk of users, on so many threads, and add their rounded changes to `sums`.

        The file of the algorithm's name is imported when it is first used; its `fit` does it.

        Args:
            private: the users' private tensors, first axis n_users; they may be written into.
        """
        result: ChunkResult = import_module(f"{__name__}.{algorithm.name}").fit(
            algorithm, chunk, start, private, sums, threads=threads
        )
        return result


ACCELERATORS: Mapping[str, Accelerator] = {
    "fedmf": Accelerator(
        version=1, serves=lambda algorithm: getattr(algorithm.compression, "by", "") != "user"
    ),
    "pfedrec": Accelerator(
        version=1, serves=lambda algorithm: algorithm.update.structure == "dense"
    ),
    "fedncf": Accelerator(
        version=1, serves=lambda algorithm: getattr(algorithm.settings, "optimiser", "") == "sgd"
    ),
    "fedrap": Accelerator(
        version=1,
        serves=lambda algorithm: (
            algorithm.update.structure == "dense"
            and getattr(algorithm.settings, "noise_where", "") == "none"
        ),
    ),
    "plgc": Accelerator(
        version=1,
        serves=lambda algorithm: (
            isinstance(algorithm, Wrapper)
            and algorithm.base.name == "fedmf"
            and algorithm.settings.mixing
            and not algorithm.settings.weight
        ),
    ),
}
"""By algorithm; an algorithm without one is trained by the trainer alone."""


def accelerator_for(algorithm: Algorithm) -> Accelerator | None:
    """Return what stands in for an algorithm's training, or None for the trainer itself."""
    found = ACCELERATORS.get(algorithm.name)
    if found is None or not isinstance(algorithm, TrainedAlgorithm):
        return None
    return found if found.serves(algorithm) else None
