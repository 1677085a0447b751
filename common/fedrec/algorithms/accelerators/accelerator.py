"""What is known of an accelerator before it is imported: which trainings it stands in for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.algorithm import ChunkResult, RoundStart
    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums
    from fedrec.algorithms.trained import TrainedAlgorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A compiled kernel that trains users as an algorithm says, on a processor.

    Attributes:
        module: its file, which has the function `fit`; imported when it is first used.
        version: counted up whenever it gives other bits.
        serves: whether it does what an algorithm's settings ask for.
    """

    module: str
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

        Args:
            private: the users' private tensors, first axis n_users; they may be written into.
        """
        result: ChunkResult = import_module(self.module).fit(
            algorithm, chunk, start, private, sums, threads=threads
        )
        return result
