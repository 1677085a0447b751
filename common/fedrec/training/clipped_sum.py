"""Sums under noise: users train one by one, and each one's whole contribution is clipped.

A compiled round adds users up as it goes, which leaves nothing to clip. What a user contributes
depends on that user alone, so training one at a time gives the same values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.privacy.clipping import clipped_to
from fedrec.privacy.mechanism import Mechanism
from fedrec.training.cohort import Chunk, Cohort
from fedrec.training.state import SharedState

if TYPE_CHECKING:
    from fedrec.training.learner import Learner

__all__ = ["ClippedSum"]


class ClippedSum:
    """Adds up users' changes, none of them longer than the mechanism's bound.

    Counts and denominators are left out: they are exact, and a fixed number stands for them.

    Attributes:
        total: all tensors end to end, int64 (change values,), in grid steps.
        n_clipped: users whose contribution was shrunk.
        finite: whether every value was finite.
    """

    def __init__(
        self, learner: Learner, shared: SharedState, cohort: Cohort, mechanism: Mechanism
    ) -> None:
        self._learner = learner
        self._shared = shared
        self._cohort = cohort
        self._bound = mechanism.bound
        self._sent = learner.layout.noisy
        self.total = np.zeros(learner.layout.change_slice.stop, dtype=np.int64)
        self.n_clipped = 0
        self.finite = True

    def fit(self, chunk: Chunk, start: RoundStart, private: dict[str, torch.Tensor]) -> ChunkResult:
        """Train a chunk's users one after the other; see `Algorithm.fit`."""
        from fedrec.training.local_round import changes_of_sums

        learner, found = self._learner, []
        for place, user in enumerate(chunk.user_index.tolist()):
            alone = self._cohort.chunk_of(
                np.array([user], dtype=np.int64), learner.device, n_steps=chunk.n_steps
            )
            own = {name: values[place : place + 1] for name, values in private.items()}
            sums = learner.empty_sums(self._shared)
            found.append(learner.algorithm.fit(alone, start, own, sums))
            self.finite = self.finite and sums.finite
            changes = changes_of_sums(learner, self._cohort, sums)
            parts = [changes[tensor.name].reshape(-1) for tensor in learner.layout.tensors]
            values, shrunk = clipped_to(np.where(self._sent, np.concatenate(parts), 0), self._bound)
            self.total += values
            self.n_clipped += shrunk
        names = found[0].private
        return ChunkResult(
            private={name: torch.cat([one.private[name] for one in found]) for name in names},
            loss=torch.cat([one.loss for one in found]),
            clipped=torch.cat([one.clipped for one in found]),
        )
