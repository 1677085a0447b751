"""FedMF: federated matrix factorisation with implicit feedback, as CoLR's base model.

Model: score s = <p, q_i>, loss binary cross-entropy, negatives sampled. Private: the user vector
p (dim). Shared: the item table Q (n_items x dim).

Client, per minibatch of size b, simultaneously from old values (specs of CoLR's released code):
    p   <- p   - eta * mean_j (e_j q_{i_j} + 2 gamma p),             e = sigmoid(s) - y
    A_i <- A_i - eta sqrt(r/d) * mean over occurrences of i (e_j p + 2 gamma q_i) B^T
with q_i = Q_i + A_i B; for dense updates B = I and r = d.
Server: Q_i <- Q_i + (sum of A_i / number of users who touched i) B.

A user's rows need no copy of Q (low-rank form): B B^T = (d/r) I, so with delta = 1 - 2 gamma eta
sqrt(d/r) and m the number of minibatches so far that held item i,
    A_i = -(r/d) (1 - delta^m) Q_i B^T + delta^m sum_s c_{i,s} (p_s B^T),
where p_s is the user vector at the start of step s and c one scalar per row and step. Scores and
gradients are then products of whole matrices plus scalar corrections.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.algorithm import Algorithm, ChunkResult, Parameter
from fedrec.streams import Purpose, normal, stream_key, user_stream
from fedrec.training.state import PrivateState, SharedState

if TYPE_CHECKING:
    import torch

    from fedrec.training.cohort import Chunk
    from fedrec.training.grid import GridSum
    from fedrec.training.samplers import Samples, Step

__all__ = ["FedMF"]

_PAIRS_AT_ONCE = 16_384


class FedMF(Algorithm):
    """Closed update rule of FedMF and CoLR; see the module's docstring."""

    name: ClassVar[str] = "fedmf"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(name="item_embedding", shape=("n_items", "dim"), scope="shared"),
        Parameter(name="user_embedding", shape=("n_users", "dim"), scope="private"),
    )

    def initial_shared(self) -> SharedState:
        """Return Q with entries N(0, 1/dim)."""
        dim = self.plan.algorithm.dim
        key = stream_key(self.plan.federation.seed, Purpose.ITEM_EMBEDDING)
        table = normal(key, (self.n_items, dim)) * (1.0 / math.sqrt(dim))
        return SharedState(MappingProxyType({"item_embedding": table}))

    def initial_private(self, user_keys: NDArray[np.int64]) -> PrivateState:
        """Return every user's p with entries N(0, 1/dim)."""
        dim = self.plan.algorithm.dim
        key = stream_key(self.plan.federation.seed, Purpose.USER_EMBEDDING)
        vectors = normal(user_stream(key, user_keys), (len(user_keys), dim))
        scaled = (vectors * (1.0 / math.sqrt(dim))).astype(np.float32)
        return PrivateState(MappingProxyType({"user_embedding": scaled}))

    def bytes_per_user(self, n_active: int) -> int:
        """Return the memory of a few float32 rows over all active items."""
        return 24 * n_active

    def fit(
        self,
        chunk: Chunk,
        items: torch.Tensor,
        basis: torch.Tensor | None,
        private: dict[str, torch.Tensor],
        total: GridSum,
        round_id: int,
    ) -> ChunkResult:
        """Train a chunk in lockstep; see `Algorithm.fit`."""
        from fedrec.training.samplers import draw_samples, steps

        settings = self.plan.algorithm
        seed = self.plan.federation.seed
        samples = draw_samples(
            chunk,
            seed=seed,
            round_id=round_id,
            negatives_per_positive=settings.negatives_per_positive,
        )
        training = _Lockstep(self, chunk, items, basis, private["user_embedding"], samples)
        for epoch in range(settings.local_epochs):
            for step in steps(
                chunk,
                samples,
                seed=seed,
                round_id=round_id,
                epoch=epoch,
                batch_size=settings.batch_size,
            ):
                training.take(step)
        clipped = training.hand_over(total)
        seen = (samples.pointers[1:] - samples.pointers[:-1]) * settings.local_epochs
        return ChunkResult(
            private={"user_embedding": training.users},
            loss=training.loss / seen,
            clipped=clipped,
        )

    def scores(self, items: torch.Tensor, private: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return <p, q_i> for all users and items."""
        from fedrec.training.grid import product_of_blocks

        return product_of_blocks(private["user_embedding"], items.T.contiguous())

    def apply(
        self,
        shared: SharedState,
        change: NDArray[np.float64],
        counts: NDArray[np.int64],
        basis: NDArray[np.float64] | None,
    ) -> SharedState:
        """Divide by the counts and merge: Q + (A / max(1, counts)) B."""
        mean = change / np.maximum(counts, 1)[:, None]
        table = self.structure.merge(shared.tensors["item_embedding"], mean, basis)
        return shared.with_tensors(item_embedding=table)


class _Lockstep:
    """The state of a chunk between minibatches, in the low-rank form."""

    def __init__(
        self,
        algorithm: FedMF,
        chunk: Chunk,
        items: torch.Tensor,
        basis: torch.Tensor | None,
        users: torch.Tensor,
        samples: Samples,
    ) -> None:
        import torch

        from fedrec.training.grid import product_of_blocks

        settings = algorithm.plan.algorithm
        self._product = product_of_blocks
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
        n_steps = chunk.n_batches * settings.local_epochs
        n_pairs = len(samples.pair_user)
        self._step = 0
        self._coefficient = users.new_zeros((n_pairs, n_steps))
        self._decay = users.new_ones(n_pairs)
        self._history = users.new_zeros((chunk.n_users, n_steps, self._low_items.shape[1]))
        self.loss = users.new_zeros(chunk.n_users)
        self._errors = users.new_zeros(chunk.n_users * chunk.n_items)
        self._occurrences = torch.zeros_like(self._errors)

    def take(self, step: Step) -> None:
        """Do one simultaneous step of every user who has a minibatch left."""
        import torch

        chosen = step.samples
        user, item = self._samples.user[chosen], self._samples.item[chosen]
        pair, label = self._samples.pair[chosen], self._samples.label[chosen]
        cell = user * self._chunk.n_items + item
        decay = self._decay[pair]
        self._step = s = step.index
        low_users = self.users if self._basis is None else self._product(
            self.users, self._basis.T.contiguous()
        )
        self._history[:, s] = low_users

        logits = self._logits(low_users, user, pair, cell, decay)
        error = 1.0 / (1.0 + torch.exp(-logits)) - label
        self.loss.index_add_(
            0, user, logits.clamp(min=0) - logits * label + torch.log1p(torch.exp(-logits.abs()))
        )
        active = step.sizes > 0
        self.users = torch.where(
            active[:, None],
            self.users - self._rate * self._user_gradient(user, pair, cell, decay, error, step),
            self.users,
        )
        mean_error = self._errors[cell] / self._occurrences[cell]
        self._decay[pair] = decay * self._delta
        self._coefficient[pair, s] = -self._rate * self._scale * mean_error / (decay * self._delta)

    def _logits(
        self,
        low_users: torch.Tensor,
        user: torch.Tensor,
        pair: torch.Tensor,
        cell: torch.Tensor,
        decay: torch.Tensor,
    ) -> torch.Tensor:
        """Return <p, q_i> of the samples, with q_i as each user has trained it so far."""
        logits = self._product(self.users, self._items_transposed).view(-1)[cell]
        if self._pull:
            low = logits
            if self._basis is not None:
                low = self._product(low_users, self._low_transposed).view(-1)[cell]
            logits = logits - self._ratio * (1.0 - decay) * low
        if self._step:
            similar = (self._history[:, : self._step] * low_users[:, None, :]).sum(-1)
            past = self._coefficient[pair, : self._step]
            logits = logits + decay * (past * similar[user]).sum(-1)
        return logits

    def _user_gradient(
        self,
        user: torch.Tensor,
        pair: torch.Tensor,
        cell: torch.Tensor,
        decay: torch.Tensor,
        error: torch.Tensor,
        step: Step,
    ) -> torch.Tensor:
        """Return mean_j (e_j q_{i_j} + 2 gamma p), and leave the sums of errors per cell."""
        import torch

        shape = (self._chunk.n_users, self._chunk.n_items)
        self._errors.zero_().index_add_(0, cell, error)
        self._occurrences.zero_().index_add_(0, cell, torch.ones_like(error))
        gradient = self._product(self._errors.view(shape), self._items)
        low = None
        if self._pull:
            shrunk = torch.zeros_like(self._errors)
            shrunk[cell] = self._errors[cell] * (1.0 - decay)
            low = -self._ratio * self._product(shrunk.view(shape), self._low_items)
        if self._step:
            past = self._coefficient[pair, : self._step] * (error * decay)[:, None]
            weight = past.new_zeros((self._chunk.n_users, self._step)).index_add_(0, user, past)
            spread = (self._history[:, : self._step].transpose(1, 2) * weight[:, None, :]).sum(-1)
            low = spread if low is None else low + spread
        if low is not None:
            gradient = gradient + (low if self._basis is None else self._product(low, self._basis))
        return gradient / step.sizes.clamp(min=1)[:, None] + self._pull * self.users

    def hand_over(self, total: GridSum) -> torch.Tensor:
        """Add every touched row's A to the sum; return each user's number of clipped values."""
        samples = self._samples
        clipped = self.loss.new_zeros(self._chunk.n_users, dtype=samples.user.dtype)
        for start in range(0, len(samples.pair_user), _PAIRS_AT_ONCE):
            part = slice(start, start + _PAIRS_AT_ONCE)
            owner, item = samples.pair_user[part], samples.pair_item[part]
            decay = self._decay[part, None]
            rows = self._low_items[item] * (-self._ratio * (1.0 - decay))
            for s in range(self._step + 1):
                rows += self._history[owner, s] * (decay * self._coefficient[part, s, None])
            clipped.index_add_(0, owner, total.add(item, rows))
        total.count(samples.pair_item)
        return clipped
