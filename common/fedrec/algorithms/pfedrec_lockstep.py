"""PFedRec on any device: all users of a chunk in lockstep, as tensors that never leave it.

The low-rank form is derived in `fedrec.algorithms.pfedrec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from fedrec.algorithms.algorithm import RoundStart
from fedrec.tensor_products import product_of_blocks
from fedrec.training.cohort import Chunk
from fedrec.training.grid import RoundSums
from fedrec.training.samplers import Samples, Step

if TYPE_CHECKING:
    from fedrec.algorithms.pfedrec import PFedRec

__all__ = ["PersonalLockstep"]

_PAIRS_AT_ONCE = 16_384


class PersonalLockstep:
    """The state of a chunk between minibatches, in the low-rank form.

    Attributes:
        heads: w, float32 (n_users, dim).
        biases: c, float32 (n_users,).
        loss: summed over the samples so far, before the steps that they lead to, (n_users,).
    """

    def __init__(
        self,
        algorithm: PFedRec,
        chunk: Chunk,
        start: RoundStart,
        private: Mapping[str, torch.Tensor],
        samples: Samples,
    ) -> None:
        settings = algorithm.settings
        self._chunk = chunk
        self._samples = samples
        self._rate = settings.learning_rate
        self._item_rate = algorithm.item_rate
        self._items = start.shared["item_embedding"]
        self._items_transposed = self._items.T.contiguous()
        self.heads, self.biases = private["user_embedding"], private["user_bias"]
        # Sizes of products are multiples of 8: others depend on the number of users.
        n_steps = _padded(chunk.n_steps * settings.local_epochs)
        self._coefficient = self._items.new_zeros((chunk.n_users, samples.width, n_steps))
        self._history = self._items.new_zeros((chunk.n_users, n_steps, _padded(settings.dim)))
        self._step = 0
        self.loss = self._items.new_zeros(chunk.n_users)

    def take(self, step: Step) -> None:
        """Do both steps of a minibatch, for every user who has one left."""
        chosen, self._step = step.samples, step.index
        user = self._samples.user.index_select(0, chosen)
        cell = self._samples.cell.index_select(0, chosen)
        pair = self._samples.pair.index_select(0, chosen)
        label = self._samples.label.index_select(0, chosen)
        taking = step.sizes > 0
        sizes = step.sizes.clamp(min=1)

        logits = self._logits(user, cell, pair)
        error, small = _errors(logits, label)
        loss = logits.clamp(min=0) - logits * label + torch.log1p(small)
        self.loss += torch.segment_reduce(loss, "sum", lengths=step.sizes, unsafe=True)
        errors = self._over_pairs(pair, error)
        gradient = self._head_gradient(errors) / sizes[:, None]
        slope = torch.segment_reduce(error, "sum", lengths=step.sizes, unsafe=True) / sizes
        heads, biases = self.heads - self._rate * gradient, self.biases - self._rate * slope
        self.heads = torch.where(taking[:, None], heads, self.heads)
        self.biases = torch.where(taking, biases, self.biases)

        error, _ = _errors(self._logits(user, cell, pair), label)
        errors = self._over_pairs(pair, error)
        self._coefficient[:, :, step.index] = errors * (-self._item_rate / sizes)[:, None]
        self._history[:, step.index, : self.heads.shape[1]] = self.heads

    def _logits(self, user: torch.Tensor, cell: torch.Tensor, pair: torch.Tensor) -> torch.Tensor:
        """Return the samples' scores with rows as trained until the last minibatch."""
        scores = product_of_blocks(self.heads, self._items_transposed).view(-1).take(cell)
        scores += self.biases.index_select(0, user)
        if self._step:
            scores += self._correction().view(-1).take(pair)
        return scores

    def _correction(self) -> torch.Tensor:
        """Return sum_b coef_b <w, w_b> of every pair, float32 (n_users, width)."""
        history = self._history[:, :, : self.heads.shape[1]]
        similar = (history * self.heads[:, None, :]).sum(-1)
        return _batched(self._coefficient, similar[:, :, None]).squeeze(2)

    def _head_gradient(self, errors: torch.Tensor) -> torch.Tensor:
        """Return sum_j e_j E_{i_j} of every user's minibatch, float32 (n_users, dim).

        Args:
            errors: sum of e over the occurrences of each pair, (n_users, width).
        """
        gradient = product_of_blocks(self._over_items(errors), self._items)
        if not self._step:
            return gradient
        weight = _batched(errors[:, None, :], self._coefficient).squeeze(1)
        return gradient + (self._history * weight[:, :, None]).sum(1)[:, : gradient.shape[1]]

    def _over_pairs(self, pair: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        """Sum samples' values over the occurrences of each pair, (n_users, width).

        Occurrences of a pair have the same value, so that their order does not matter.
        """
        summed = error.new_zeros((self._chunk.n_users, self._samples.width))
        summed.view(-1).index_add_(0, pair, error)
        return summed

    def _over_items(self, values: torch.Tensor) -> torch.Tensor:
        """Spread pair values (n_users, width) over the item axis, (n_users, n_items)."""
        n_items = self._chunk.n_items
        spread = values.new_zeros((self._chunk.n_users, n_items + 1))
        return spread.scatter_(1, self._samples.pair_item, values)[:, :n_items]

    def scores(self) -> torch.Tensor:
        """Return the scores of all items with users' own rows, float32 (n_users, n_items)."""
        scores = product_of_blocks(self.heads, self._items_transposed)
        return scores + self._over_items(self._correction()) + self.biases[:, None]

    def hand_over(self, sums: RoundSums) -> torch.Tensor:
        """Add every touched row's change to the sum; return each user's clipped values."""
        items, dim = self._samples.pair_item, self.heads.shape[1]
        clipped = torch.zeros_like(items[:, 0])
        at_once = max(2, _PAIRS_AT_ONCE // items.shape[1])
        for start in range(0, len(items), at_once):
            part = slice(start, start + at_once)
            rows = _batched(self._coefficient[part], self._history[part])[:, :, :dim]
            over = sums["item_embedding"].add(items[part].reshape(-1), rows.reshape(-1, dim))
            clipped[part] = over.view(-1, items.shape[1]).sum(1)
        sums["users"].add_whole(self.heads.new_ones((len(items), 1)))
        return clipped


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def _errors(logits: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sigmoid(logits) - label, and exp(-|logits|)."""
    small = torch.exp(-logits.abs())
    return torch.where(logits >= 0, 1.0, small) / (1.0 + small) - label, small


def _batched(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left @ right for every user; a batch of one takes another kernel, so pad it."""
    if len(left) > 1:
        return torch.bmm(left, right)
    return torch.bmm(left.expand(2, -1, -1), right.expand(2, -1, -1))[:1]
