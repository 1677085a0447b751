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
        """Train a chunk of users; see `Algorithm.fit`.

        On a processor users are trained one by one in compiled code, elsewhere in lockstep as
        tensors, which never leave the device.
        """
        train = self.fit_compiled if items.device.type == "cpu" else self.fit_in_lockstep
        return train(chunk, items, basis, private, total, round_id)

    def fit_compiled(
        self,
        chunk: Chunk,
        items: torch.Tensor,
        basis: torch.Tensor | None,
        private: dict[str, torch.Tensor],
        total: GridSum,
        round_id: int,
    ) -> ChunkResult:
        """Train a chunk on the processor; see `fedrec.algorithms.fedmf_cpu`."""
        import torch

        from fedrec.algorithms.fedmf_cpu import CpuRound, CpuUsers, train_users
        from fedrec.training.grid import product_of_blocks

        settings = self.plan.algorithm
        keys = chunk.user_keys.numpy()

        def stream(purpose: Purpose, counter: int = 0) -> NDArray[np.int64]:
            key = stream_key(self.plan.federation.seed, purpose, round_id, counter)
            return np.asarray(user_stream(key, keys))

        low_items = items if basis is None else product_of_blocks(items, basis.T.contiguous())
        no_basis = np.zeros((1, items.shape[1]), dtype=np.float32)
        found = train_users(
            CpuUsers(
                pointers=chunk.pointers.numpy(),
                positives=chunk.positives.numpy(),
                excluded_pointers=chunk.excluded_pointers.numpy(),
                excluded=chunk.excluded.numpy(),
                negative_keys=stream(Purpose.NEGATIVES),
                shuffle_keys=np.stack(
                    [stream(Purpose.SHUFFLE, epoch) for epoch in range(settings.local_epochs)]
                ),
                vectors=private["user_embedding"].numpy(),
            ),
            CpuRound(
                items=items.numpy(),
                low_items=low_items.numpy(),
                basis=no_basis if basis is None else basis.numpy(),
                has_basis=basis is not None,
                rate=settings.learning_rate,
                gamma=settings.regularisation,
                epochs=settings.local_epochs,
                batch_size=settings.batch_size,
                negatives_per_positive=settings.negatives_per_positive,
                scale=total.scale,
                bound=total.bound,
            ),
            threads=torch.get_num_threads(),
        )
        total.add_sums(
            torch.from_numpy(found.change), torch.from_numpy(found.counts), finite=found.finite
        )
        return ChunkResult(
            private={"user_embedding": torch.from_numpy(found.vectors)},
            loss=torch.from_numpy(found.loss),
            clipped=torch.from_numpy(found.clipped),
        )

    def fit_in_lockstep(
        self,
        chunk: Chunk,
        items: torch.Tensor,
        basis: torch.Tensor | None,
        private: dict[str, torch.Tensor],
        total: GridSum,
        round_id: int,
    ) -> ChunkResult:
        """Train a chunk as tensors on any device."""
        from fedrec.training.samplers import draw_samples, steps

        settings = self.plan.algorithm
        seed = self.plan.federation.seed
        samples = draw_samples(
            chunk,
            seed=seed,
            round_id=round_id,
            negatives_per_positive=settings.negatives_per_positive,
            batch_size=settings.batch_size,
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
        shape = (chunk.n_users, samples.width)
        self._coefficient = users.new_zeros((*shape, n_steps))
        self._decay = users.new_ones(shape)
        self._history = users.new_zeros((chunk.n_users, n_steps, self._low_items.shape[1]))
        self._step = 0
        self.loss = users.new_zeros(chunk.n_users)

    def take(self, step: Step) -> None:
        """Do one simultaneous step of every user who has a minibatch left."""
        import torch

        chosen = step.samples
        cell = self._samples.cell.index_select(0, chosen)
        pair = self._samples.pair.index_select(0, chosen)
        label = self._samples.label.index_select(0, chosen)
        self._step = s = step.index
        low_users = self.users
        if self._basis is not None:
            low_users = self._product(self.users, self._basis.T.contiguous())
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

        scores = self._product(self.users, self._items_transposed)
        if not self._step:
            return scores.view(-1).take(cell)
        similar = (self._history * low_users[:, None, :]).sum(-1)
        trained = _batched(self._coefficient, similar[:, :, None]).squeeze(2) * self._decay
        if not self._pull:
            return scores.view(-1).take(cell) + trained.view(-1).take(pair)
        shrunk = self._ratio * (1.0 - self._decay)
        low = scores
        if self._basis is not None:
            low = self._product(low_users, self._low_transposed)
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
        gradient = self._product(self._over_items(errors), self._items)
        if not self._step:
            return gradient
        kept = errors * self._decay
        weight = _batched(kept[:, None, :], self._coefficient).squeeze(1)
        low = (self._history.transpose(1, 2) * weight[:, None, :]).sum(-1)
        if self._pull:
            shrunk = self._over_items((kept - errors) * self._ratio)
            low = low + self._product(shrunk, self._low_items)
        return gradient + (low if self._basis is None else self._product(low, self._basis))

    def _over_items(self, values: torch.Tensor) -> torch.Tensor:
        """Spread pair values (n_users, width) over the item axis, (n_users, n_items)."""
        n_items = self._chunk.n_items
        spread = values.new_zeros((self._chunk.n_users, n_items + 1))
        return spread.scatter_(1, self._samples.pair_item, values)[:, :n_items]

    def hand_over(self, total: GridSum) -> torch.Tensor:
        """Add every touched row's A to the sum; return each user's number of clipped values."""
        import torch

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
                rows -= shrunk * (self._ratio * (1.0 - decay))
            over = total.add(item, rows.view(-1, width))
            clipped[part] = over.view(-1, items.shape[1]).sum(1)
        total.count(items.reshape(-1))
        return clipped


def _batched(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left @ right for every user; a batch of one takes another kernel, so pad it."""
    import torch

    if len(left) > 1:
        return torch.bmm(left, right)
    return torch.bmm(left.expand(2, -1, -1), right.expand(2, -1, -1))[:1]
