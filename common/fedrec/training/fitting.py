"""Train a chunk of users, report metrics of it, and add the papers' noise to uploads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms.cohort import BlockChange, ChangeSink, idle_change
from fedrec.algorithms.declarations import UploadNoise
from fedrec.algorithms.exact import ExactAlgorithm
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.algorithms.whole_decay import decaying, shrinking
from fedrec.evaluation.metrics import LOSS_BITS, MAXIMUM_LOSS
from fedrec.privacy.noise import RandomBits, gaussian_noise, laplace_noise
from fedrec.tensor_products import one_thread
from fedrec.training.trainer import Trainer

if TYPE_CHECKING:
    from fedrec.algorithms.accelerators import Accelerator
    from fedrec.algorithms.algorithm import Algorithm, ChunkResult, RoundStart
    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums
    from fedrec.training.blocks import Room

_KINDS = {"laplace": laplace_noise, "gaussian": gaussian_noise}


class NoisyUploads:
    """A `ChangeSink` that passes on users' changes as whole tables with noise on every value.

    A row that a user didn't touch has only noise. It counts as touched, because it is part of the
    user's upload.

    Args:
        sums: the sink that receives the noisy tables.
        tables: the item rows at the start of the round, (n_items, ...).
        shrinking: the shrinking of untouched rows (see `fedrec.algorithms.whole_decay.shrinking`).
        bits: the source of noise, by default a new stream. Only tests give one.
    """

    def __init__(
        self,
        sums: ChangeSink,
        noise: UploadNoise,
        tables: Mapping[str, torch.Tensor],
        shrinking: Mapping[str, torch.Tensor] | None = None,
        bits: RandomBits | None = None,
    ) -> None:
        self._sums, self._noise, self._tables = sums, noise, tables
        self._shrinking = shrinking or {}
        self._n_items = len(tables[noise.tensors[0]])
        self._bits = bits or RandomBits()

    def add_block(self, change: BlockChange) -> torch.Tensor:
        """Add the users' uploads to the sums (see `ChangeSink`)."""
        tables = self._shrunk({name: self._table(change, name) for name in change.rows})
        for name in self._noise.tensors:
            tables[name] += self._drawn(tables[name])
        n_users = len(change.item)
        every = torch.arange(self._n_items, device=change.item.device)
        return self._sums.add_block(
            BlockChange(
                item=every.expand(n_users, -1),
                rows=tables,
                whole=change.whole,
                weight=change.weight,
                loss=change.loss,
            )
        )

    def _shrunk(self, rows: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the changes in float64. Changes that carry noise are clipped in length."""
        found = {name: values.to(torch.float64) for name, values in rows.items()}
        clip = self._noise.clip
        if clip is None:
            return found
        squares = [found[name].square().flatten(1).sum(1) for name in self._noise.tensors]
        norm = torch.stack(squares).sum(0).sqrt()
        factor = (clip / norm.clamp(min=clip))[:, None, None]
        return found | {name: found[name] * factor for name in self._noise.tensors}

    def _table(self, change: BlockChange, name: str) -> torch.Tensor:
        """Return users' changes of a tensor as whole tables, (n_users, n_items, width)."""
        rows = change.rows[name]
        n_users, _, width = rows.shape
        # One more row takes the positions without an item.
        table = rows.new_zeros((n_users, self._n_items + 1, width))
        if change.steps is not None and name in self._shrinking:
            begun = self._tables[name].reshape(1, self._n_items, width)
            shrunk = self._shrinking[name].index_select(0, change.steps)
            table[:, :-1] = idle_change(begun, shrunk)
        users = torch.arange(n_users, device=change.item.device)[:, None]
        table[users, change.item] = rows
        return table[:, :-1]

    def _drawn(self, like: torch.Tensor) -> torch.Tensor:
        """Return noise of a tensor's shape."""
        drawn = _KINDS[self._noise.kind](self._noise.scale, math.prod(like.shape), self._bits)
        return torch.from_numpy(drawn).view(like.shape).to(like.device)


Fit = Callable[["Chunk", "dict[str, torch.Tensor]"], "ChunkResult"]
"""A function that trains a chunk of users with their private tensors."""


def fit_of(
    algorithm: Algorithm,
    start: RoundStart,
    sums: RoundSums,
    accelerator: Accelerator | None,
    room: Room | None = None,
) -> Fit:
    """Return the function that trains a round's chunks and adds contributions to `sums`.

    Args:
        room: the number of users that fit a device at once, or None for a processor, whose blocks
            have one size.
    """
    if isinstance(algorithm, ExactAlgorithm):
        return lambda chunk, private: algorithm.fit(chunk, start, private, sums)
    assert isinstance(algorithm, TrainedAlgorithm)
    if accelerator is not None and start.active.device.type == "cpu":
        fit, threads = partial(accelerator.fit, algorithm), torch.get_num_threads()

        def train(chunk: Chunk, private: dict[str, torch.Tensor]) -> ChunkResult:
            # torch's own threads would slow the compiled ones down.
            with one_thread():
                return fit(chunk, start, private, sums, threads=threads)

        return train
    trainer, noise = Trainer(algorithm, start, room), algorithm.upload_noise
    # This also works with worker processes: every process draws from its own source.
    sink: ChangeSink = sums
    if noise is not None:
        tables = {**start.shared, **decaying(algorithm, start)}
        sink = NoisyUploads(sums, noise, tables, shrinking(algorithm, start))

    def by_the_trainer(chunk: Chunk, private: dict[str, torch.Tensor]) -> ChunkResult:
        # A library may split a product among threads, and then bits depend on their number.
        # More threads would hardly be faster, but processes are (`client.workers`).
        with one_thread():
            return trainer.train(chunk, private, sink)

    return by_the_trainer


MAXIMUM_CLIPPED = 1 << 20
"""The largest number of clipped values of one user that metrics distinguish."""


def training_sums(loss: torch.Tensor, clipped: torch.Tensor) -> NDArray[np.int64]:
    """Return (participants, loss, clipped values, clipped users) of a chunk, as integers."""
    bounded = torch.where(torch.isfinite(loss), loss.clamp(0.0, MAXIMUM_LOSS), MAXIMUM_LOSS)
    units = torch.round(bounded * (1 << LOSS_BITS)).to(torch.int64)
    parts = (
        torch.ones_like(units),
        units,
        clipped.clamp(max=MAXIMUM_CLIPPED),
        (clipped > 0).to(torch.int64),
    )
    return torch.stack([part.sum() for part in parts]).cpu().numpy().astype(np.int64)
