"""How a chunk of users is trained, what is reported of it, and the papers' noise on uploads."""

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
    """A `ChangeSink` that hands users' changes on as whole tables with noise on every value.

    A row that a user did not touch has noise alone, and counts as touched: it is part of what the
    user uploads.

    Args:
        sums: takes what comes of it.
        tables: what item rows are at the start of the round, (n_items, ...).
        shrinking: what untouched rows shrink by; see `fedrec.algorithms.whole_decay.shrinking`.
        bits: where noise comes from; a stream of its own by default. Tests alone give one.
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
        """Add the users' uploads up; see `ChangeSink`."""
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
        """Return the changes, in float64, those that carry noise no longer than the clip."""
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
        # One row more takes the places without an item.
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
"""Trains a chunk of users with their private tensors."""


def fit_of(
    algorithm: Algorithm,
    start: RoundStart,
    sums: RoundSums,
    accelerator: Accelerator | None,
    room: Room | None = None,
) -> Fit:
    """Return what trains the chunks of a round and adds their contributions to `sums`.

    Args:
        room: how many users fit a device at once; None for a processor's blocks, which have one
            size.
    """
    if isinstance(algorithm, TrainedAlgorithm):
        if accelerator is not None and start.active.device.type == "cpu":
            fit, threads = partial(accelerator.fit, algorithm), torch.get_num_threads()

            def train(chunk: Chunk, private: dict[str, torch.Tensor]) -> ChunkResult:
                # torch's own threads would only get in the way of the compiled ones.
                with one_thread():
                    return fit(chunk, start, private, sums, threads=threads)

            return train
        trainer, noise = Trainer(algorithm, start, room), algorithm.upload_noise
        # With worker processes, too: every process draws from a source of its own.
        sink: ChangeSink = sums
        if noise is not None:
            tables = {**start.shared, **decaying(algorithm, start)}
            sink = NoisyUploads(sums, noise, tables, shrinking(algorithm, start))

        def by_the_trainer(chunk: Chunk, private: dict[str, torch.Tensor]) -> ChunkResult:
            # A library may split a product among threads, and then bits follow their number.
            # More threads would hardly be faster; processes are (`client.workers`).
            with one_thread():
                return trainer.train(chunk, private, sink)

        return by_the_trainer
    return lambda chunk, private: algorithm.fit(chunk, start, private, sums)


MAXIMUM_CLIPPED = 1 << 20
"""More clipped values of one user are not told apart."""


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
