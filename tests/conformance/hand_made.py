"""Samples chosen by hand for the trainer, for steps worked out on paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conformance.unrounded import UnroundedSums
from numpy.typing import NDArray

from fedrec.algorithms.algorithm import ChunkResult
from fedrec.algorithms.cohort import Chunk
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.algorithms.whole_decay import decaying, shrinking
from fedrec.model.state import SharedState
from fedrec.training import trainer
from fedrec.training.blocks import Block, BlockSize

Sample = tuple[int, int]
"""An item and its label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandMade:
    """One block of users whose only minibatch has given samples, in float64."""

    samples: Sequence[Sequence[Sample]]
    n_items: int

    def chunk(self) -> Chunk:
        """Return the users; only what training asks of a chunk is filled in."""
        held = [len({item for item, label in own if label}) for own in self.samples]
        nothing = torch.zeros(0, dtype=torch.int64)
        return Chunk(
            user_index=torch.arange(len(held)),
            user_keys=torch.arange(len(held)),
            pointers=torch.tensor([0, *np.cumsum(held).tolist()]),
            positives=nothing,
            excluded_pointers=nothing,
            excluded=nothing,
            n_items=self.n_items,
            n_steps=1,
        )

    def block(self) -> Block:
        """Return the samples as rows with weights."""
        distinct = [sorted({item for item, _ in own}) for own in self.samples]
        shape = (len(self.samples), max(map(len, distinct)) + 1)
        item = torch.full(shape, self.n_items)
        label, weight = torch.zeros(shape).double(), torch.zeros(shape).double()
        for user, own in enumerate(self.samples):
            for name, value in own:
                row = distinct[user].index(name)
                item[user, row], label[user, row] = name, value
                weight[user, row] += 1.0 / len(own)
        return Block(
            users=torch.arange(shape[0]),
            n_users=shape[0],
            item=item,
            label=label,
            share=torch.ones((1, shape[0])).double(),
            index=None,
            weight=weight[None, None],
        )

    def train(
        self,
        monkeypatch: pytest.MonkeyPatch,
        algorithm: TrainedAlgorithm,
        shared: Mapping[str, NDArray[np.float64]],
        private: Mapping[str, NDArray[np.float64]],
    ) -> tuple[ChunkResult, UnroundedSums]:
        """Train the users from given values."""

        def blocks(*_: object, **__: object) -> Iterator[Block]:
            yield self.block()

        users = torch.arange(len(self.samples))
        size = BlockSize(n_steps=1, n_rows=1, batch_size=1, epochs=1, gathers=True)
        monkeypatch.setattr(trainer, "draw_samples", lambda *_, **__: ())
        monkeypatch.setattr(trainer, "buckets_of", lambda *_, **__: [(size, users)])
        monkeypatch.setattr(trainer, "blocks_of", blocks)
        start = algorithm.derived.start(
            SharedState(shared), np.arange(self.n_items), 1, torch.device("cpu"), torch.float64
        )
        sums = UnroundedSums(self.n_items)
        # Training writes into what it is given.
        own = {name: torch.from_numpy(values.copy()) for name, values in private.items()}
        result = trainer.Trainer(algorithm, start).train(self.chunk(), own, sums)
        sums.settle(decaying(algorithm, start), shrinking(algorithm, start))
        return result, sums
