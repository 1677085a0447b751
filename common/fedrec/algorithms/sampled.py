"""What algorithms have in common that train on minibatches of positives and sampled negatives."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.algorithms.algorithm import Algorithm
from fedrec.algorithms.declarations import AlgorithmSettings
from fedrec.streams import Purpose, stream_key, user_stream

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.algorithm import ChunkResult, RoundStart
    from fedrec.training.cohort import Chunk
    from fedrec.training.grid import RoundSums

__all__ = ["Sampled", "SampledAlgorithm", "SampledSettings", "all_finite"]


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
        seed, epochs = self.seed, self.settings.local_epochs
        return Sampled.of(chunk, seed=seed, round_id=round_id, epochs=epochs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What compiled code draws a chunk's samples from; see `fedrec.training.cohort.Chunk`.

    Attributes:
        negative_keys: each user's stream of negatives, int64 (n_users,).
        shuffle_keys: each epoch's and user's shuffle, int64 (epochs, n_users).
    """

    pointers: NDArray[np.int64]
    positives: NDArray[np.int64]
    excluded_pointers: NDArray[np.int64]
    excluded: NDArray[np.int64]
    negative_keys: NDArray[np.int64]
    shuffle_keys: NDArray[np.int64]

    @classmethod
    def of(cls, chunk: Chunk, *, seed: int, round_id: int, epochs: int) -> Sampled:
        """Return the tables and streams of a chunk that lies in the processor's memory."""
        keys = chunk.user_keys.numpy()

        def stream(purpose: Purpose, counter: int = 0) -> NDArray[np.int64]:
            return np.asarray(user_stream(stream_key(seed, purpose, round_id, counter), keys))

        return cls(
            pointers=chunk.pointers.numpy(),
            positives=chunk.positives.numpy(),
            excluded_pointers=chunk.excluded_pointers.numpy(),
            excluded=chunk.excluded.numpy(),
            negative_keys=stream(Purpose.NEGATIVES),
            shuffle_keys=np.stack([stream(Purpose.SHUFFLE, epoch) for epoch in range(epochs)]),
        )


def all_finite(train: Callable[[int], bool], n_parts: int) -> bool:
    """Train every part on a thread of its own; return whether all said that it is finite."""
    if n_parts == 1:
        return train(0)
    with ThreadPoolExecutor(n_parts) as pool:
        return all(list(pool.map(train, range(n_parts))))
