"""What algorithms have in common that train on minibatches of positives and sampled negatives."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.algorithms.algorithm import Algorithm
from fedrec.algorithms.declarations import AlgorithmSettings

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.accelerators.compiled import Sampled
    from fedrec.algorithms.algorithm import ChunkResult, RoundStart
    from fedrec.training.cohort import Chunk
    from fedrec.training.grid import RoundSums

__all__ = ["SampledAlgorithm", "SampledSettings"]


class SampledSettings(AlgorithmSettings):
    """Passes, minibatches and negatives."""

    local_epochs: int = Field(
        default=1, ge=1, le=100, description="Passes over a user's samples in each round."
    )
    batch_size: int = Field(default=256, ge=1, le=1_000_000, description="Samples in a minibatch.")
    negatives_per_positive: int = Field(
        default=4, ge=1, le=1000, description="Items sampled as negatives for each interaction."
    )


class SampledAlgorithm(Algorithm):
    """An algorithm whose steps are minibatches, in a compiled form and in one of tensors."""

    settings: SampledSettings

    @property
    def compiles(self) -> bool:
        """Whether the compiled form does what the settings ask for."""
        return True

    def steps(self, n_positives: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of minibatches in an epoch."""
        n_samples = n_positives * (1 + self.settings.negatives_per_positive)
        return -(-n_samples // self.settings.batch_size)

    def fit(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Train a chunk of users; see `Algorithm.fit`.

        On a processor users are trained one by one in compiled code, where there is any for the
        settings; else in lockstep as tensors, which never leave the device.
        """
        compiled = self.compiles and start.shared["item_embedding"].device.type == "cpu"
        train = self.fit_compiled if compiled else self.fit_in_lockstep
        return train(chunk, start, private, sums)

    @abstractmethod
    def fit_compiled(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Train a chunk on the processor, in code that is compiled when it is first called."""

    @abstractmethod
    def fit_in_lockstep(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Train a chunk as tensors on any device."""

    def sampled(self, chunk: Chunk, round_id: int) -> Sampled:
        """Return what compiled code draws this round's samples of a chunk from."""
        from fedrec.algorithms.accelerators.compiled import Sampled

        seed, epochs = self.plan.federation.seed, self.settings.local_epochs
        return Sampled.of(chunk, seed=seed, round_id=round_id, epochs=epochs)
