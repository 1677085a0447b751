"""Compiled kernels, one file each: optional, at least twice as fast as what they stand in for.

An accelerator trains users on a processor as the algorithm of its name does, one user after the
other with everything of that user in the cache. A user's result depends on that user alone, and
sums are integers: hence neither on threads, chunks and order nor on whether code was compiled
just now or comes from the cache. What all of them share is in `compiled`.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedrec.algorithms.accelerators.accelerator import Accelerator
from fedrec.algorithms.algorithm import Algorithm
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.algorithms.wrapper import Wrapper

__all__ = ["ACCELERATORS", "Accelerator", "accelerator_for"]

ACCELERATORS: Mapping[str, Accelerator] = {
    "fedmf": Accelerator(
        module="fedrec.algorithms.accelerators.fedmf",
        version=1,
        serves=lambda algorithm: not algorithm.compresses_users,
    ),
    "pfedrec": Accelerator(
        module="fedrec.algorithms.accelerators.pfedrec",
        version=1,
        serves=lambda algorithm: algorithm.update.structure == "dense",
    ),
    "fedncf": Accelerator(
        module="fedrec.algorithms.accelerators.fedncf",
        version=1,
        serves=lambda algorithm: getattr(algorithm.settings, "optimiser", "") == "sgd",
    ),
    "fedrap": Accelerator(
        module="fedrec.algorithms.accelerators.fedrap",
        version=1,
        serves=lambda algorithm: (
            algorithm.update.structure == "dense"
            and getattr(algorithm.settings, "noise_where", "") == "none"
        ),
    ),
    "plgc": Accelerator(
        module="fedrec.algorithms.accelerators.plgc",
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
