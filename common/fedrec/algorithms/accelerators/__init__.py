"""Compiled kernels, one file each: optional, and at least twice as fast as the trainer.

An accelerator trains users on a CPU like the algorithm of its name, one user after the other
with all data of that user in the cache. A user's result depends on that user alone, and sums are
integers. So results do not depend on threads, chunks and order, nor on whether code was just
compiled or comes from the cache. `compiled` has the parts that all of them share.
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
    """A compiled kernel that trains users on a CPU by an algorithm's rules.

    Attributes:
        version: incremented whenever it gives other bits.
        serves: whether it supports an algorithm's settings.
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
        """Train a chunk of users on `threads` threads, and add their rounded changes to `sums`.

        It calls `fit` of the file with the algorithm's name, which it imports on first use.

        Args:
            private: the users' private tensors, first axis n_users. They may be overwritten.
        """
        result: ChunkResult = import_module(f"{__name__}.{algorithm.name}").fit(
            algorithm, chunk, start, private, sums, threads=threads
        )
        return result


ACCELERATORS: Mapping[str, Accelerator] = {
    "fedmf": Accelerator(
        version=1, serves=lambda algorithm: getattr(algorithm.sent.compression, "by", "") != "user"
    ),
    "pfedrec": Accelerator(
        version=1, serves=lambda algorithm: algorithm.shapes.update.structure == "dense"
    ),
    "fedncf": Accelerator(
        version=1, serves=lambda algorithm: getattr(algorithm.settings, "optimiser", "") == "sgd"
    ),
    "fedrap": Accelerator(
        version=1,
        serves=lambda algorithm: (
            algorithm.shapes.update.structure == "dense"
            and getattr(algorithm.settings, "noise_where", "") == "none"
        ),
    ),
    "gpfedrec": Accelerator(version=1, serves=lambda algorithm: True),
    "cofedrec": Accelerator(
        version=1,
        serves=lambda algorithm: (
            # Exponentials would be too small for float32, and tables of pairs too large.
            getattr(algorithm.settings, "temperature", 0.0) >= 0.025
            and algorithm.settings.batch_size <= 4096
        ),
    ),
    "pfedgraph": Accelerator(version=1, serves=lambda algorithm: True),
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
"""Accelerators by algorithm. An algorithm without one is trained by the trainer alone."""


def accelerator_for(algorithm: Algorithm) -> Accelerator | None:
    """Return an algorithm's accelerator, or None to use the trainer."""
    found = ACCELERATORS.get(algorithm.name)
    if found is None or not isinstance(algorithm, TrainedAlgorithm):
        return None
    return found if found.serves(algorithm) else None
