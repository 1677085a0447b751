"""FedMF on any device: all users of a chunk in lockstep, as tensors that never leave it.

The low-rank form is derived in `fedrec.algorithms.fedmf`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.algorithm import RoundStart
from fedrec.tensor_products import product_of_blocks
from fedrec.training.cohort import Chunk
from fedrec.training.grid import RoundSums
from fedrec.training.samplers import Samples, Step

if TYPE_CHECKING:
    from fedrec.algorithms.fedmf import FedMF

__all__ = ["Lockstep"]

_PAIRS_AT_ONCE = 16_384


class Lockstep:
    """The state of a chunk between minibatches, in the low-rank form.

    Args:
        members: which rows of B each user trains, (n_users, width); None for all.
    """

    def __init__(
        self,
        algorithm: FedMF,
        chunk: Chunk,
        start: RoundStart,
        users: torch.Tensor,
        samples: Samples,
        members: torch.Tensor | None = None,
    ) -> None:
        settings, items, basis = algorithm.settings, start.shared["item_embedding"], start.basis
        self._structure, self._compression = algorithm.structure, algorithm.compression
        self._catalogue_size = start.n_items
        self._members = members
        self._chunk = chunk
        self._samples = samples
        self._rate = settings.learning_rate
        self._pull = 2.0 * settings.regularisation
        self._ratio = algorithm.structure.width / settings.dim
        self._scale = math.sqrt(self._ratio)
        self._delta = 1.0 - self._pull * self._rate / self._scale
        self._items = items
        self._items_transposed = items.T.contiguous()
        self._basis = basis
        self._low_items = items if basis is None else product_of_blocks(items, basis.T.contiguous())
        self._low_transposed = self._low_items.T.contiguous()
        self.users = users
        n_steps = chunk.n_steps * settings.local_epochs
        shape = (chunk.n_users, samples.width)
        self._coefficient = users.new_zeros((*shape, n_steps))
        self._decay = users.new_ones(shape)
        self._history = users.new_zeros((chunk.n_users, n_steps, self._low_items.shape[1]))
        self._step = 0
        self.loss = users.new_zeros(chunk.n_users)

    def take(self, step: Step) -> None:
        """Do one simultaneous step of every user who has a minibatch left."""
        chosen = step.samples
        cell = self._samples.cell.index_select(0, chosen)
        pair = self._samples.pair.index_select(0, chosen)
        label = self._samples.label.index_select(0, chosen)
        self._step = s = step.index
        low_users = self.users
        if self._basis is not None:
            low_users = self._own(product_of_blocks(self.users, self._basis.T.contiguous()))
        self._history[:, s] = low_users

        logits = self._logits(low_users, cell, pair)
        small = torch.exp(-logits.abs())
        positive = logits >= 0
        error = torch.where(positive, 1.0 / (1.0 + small), small / (1.0 + small)) - label
        loss = logits.clamp(min=0) - logits * label + torch.log1p(small)
        self.loss += torch.segment_reduce(loss, "sum", lengths=step.sizes, unsafe=True)

        errors = torch.zeros_like(self._decay)
        errors.view(-1).index_add_(0, pair, error)
        occurrences = torch.zeros_like(self._decay)
        occurrences.view(-1).index_add_(0, pair, torch.ones_like(error))
        gradient = self._user_gradient(errors) / step.sizes.clamp(min=1)[:, None]
        moved = self.users - self._rate * (gradient + self._pull * self.users)
        self.users = torch.where(step.sizes[:, None] > 0, moved, self.users)
        touched = occurrences > 0
        self._decay = torch.where(touched, self._decay * self._delta, self._decay)
        self._coefficient[:, :, s] = (
            errors * (-self._rate * self._scale) / (occurrences.clamp(min=1) * self._decay)
        )

    def _logits(
        self, low_users: torch.Tensor, cell: torch.Tensor, pair: torch.Tensor
    ) -> torch.Tensor:
        """Return <p, q_i> of the samples, with q_i as each user has trained it so far."""

        scores = product_of_blocks(self.users, self._items_transposed)
        if not self._step:
            return scores.view(-1).take(cell)
        similar = (self._history * low_users[:, None, :]).sum(-1)
        trained = _batched(self._coefficient, similar[:, :, None]).squeeze(2) * self._decay
        if not self._pull:
            return scores.view(-1).take(cell) + trained.view(-1).take(pair)
        shrunk = self._ratio * (1.0 - self._decay)
        low = scores
        if self._basis is not None:
            low = product_of_blocks(low_users, self._low_transposed)
        return (
            scores.view(-1).take(cell)
            + trained.view(-1).take(pair)
            - shrunk.view(-1).take(pair) * low.view(-1).take(cell)
        )

    def _user_gradient(self, errors: torch.Tensor) -> torch.Tensor:
        """Return sum_j e_j q_{i_j} of every user's minibatch, float32 (n_users, dim).

        Args:
            errors: sum of e over the occurrences of each pair, (n_users, width).
        """
        gradient = product_of_blocks(self._over_items(errors), self._items)
        if not self._step:
            return gradient
        kept = errors * self._decay
        weight = _batched(kept[:, None, :], self._coefficient).squeeze(1)
        low = (self._history.transpose(1, 2) * weight[:, None, :]).sum(-1)
        if self._pull:
            shrunk = self._over_items((kept - errors) * self._ratio)
            low = low + self._own(product_of_blocks(shrunk, self._low_items))
        return gradient + (low if self._basis is None else product_of_blocks(low, self._basis))

    def _own(self, low: torch.Tensor) -> torch.Tensor:
        """Return values (n_users, width), zero where a user does not train that row of B."""
        return low if self._members is None else low * self._members

    def _over_items(self, values: torch.Tensor) -> torch.Tensor:
        """Spread pair values (n_users, width) over the item axis, (n_users, n_items)."""
        n_items = self._chunk.n_items
        spread = values.new_zeros((self._chunk.n_users, n_items + 1))
        return spread.scatter_(1, self._samples.pair_item, values)[:, :n_items]

    def hand_over(self, sums: RoundSums) -> torch.Tensor:
        """Add every touched row's A to the sum; return each user's number of clipped values."""
        items = self._samples.pair_item
        width = self._history.shape[2]
        low_items = torch.cat([self._low_items, self._low_items.new_zeros((1, width))])
        clipped = torch.zeros_like(items[:, 0])
        at_once = max(2, _PAIRS_AT_ONCE // items.shape[1])
        for start in range(0, len(items), at_once):
            part = slice(start, start + at_once)
            decay, item = self._decay[part, :, None], items[part].reshape(-1)
            rows = _batched(self._coefficient[part], self._history[part]) * decay
            if self._pull:
                shrunk = low_items.index_select(0, item).view(rows.shape)
                if self._members is not None:
                    shrunk = shrunk * self._members[part, None, :]
                rows -= shrunk * (self._ratio * (1.0 - decay))
            if self._compression and self._compression.by == "user":
                rows = self._compression.compress_each(rows, self._catalogue_size)
            if self._structure.counts_entries and self._members is not None:
                own = self._members[part, None, :].expand(rows.shape)
                sums["entries"].add(item, own.reshape(-1, width))
            over = sums["item_embedding"].add(item, rows.reshape(-1, width))
            clipped[part] = over.view(-1, items.shape[1]).sum(1)
        sums.count(items.reshape(-1))
        return clipped


def _batched(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left @ right for every user; a batch of one takes another kernel, so pad it."""
    if len(left) > 1:
        return torch.bmm(left, right)
    return torch.bmm(left.expand(2, -1, -1), right.expand(2, -1, -1))[:1]
