"""FedMF: federated matrix factorisation with implicit feedback, as CoLR's base model.

Model: score s = <p, q_i>, loss binary cross-entropy, negatives sampled. Private: the user vector
p (dim). Shared: the item table Q (n_items x dim).

Client, per minibatch of size b, simultaneously from old values (specs of CoLR's released code):
    p   <- p   - eta * mean_j (e_j q_{i_j} + 2 gamma p),             e = sigmoid(s) - y
    A_i <- A_i - eta sqrt(r/d) * mean over occurrences of i (e_j p + 2 gamma q_i) B^T
with q_i = Q_i + A_i B; for dense updates B = I and r = d.
Server: Q_i <- Q_i + (sum of A_i / number of users who touched i) B.
Update structures (`fedrec.updates`) choose B, leave some of its rows out for some users (then B
above is B[S_u], and A is zero outside S_u), or compress A before it is summed and its mean after.

A user's rows need no copy of Q (low-rank form): B B^T = (d/r) I, so with delta = 1 - 2 gamma eta
sqrt(d/r) and m the number of minibatches so far that held item i,
    A_i = -(r/d) (1 - delta^m) Q_i B^T + delta^m sum_s c_{i,s} (p_s B^T),
where p_s is the user vector at the start of step s and c one scalar per row and step. Scores and
gradients are then products of whole matrices plus scalar corrections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.declarations import AlgorithmSettings, Parameter, UpdateTensor
from fedrec.algorithms.sampled import SampledAlgorithm, SampledSettings
from fedrec.training.state import SharedState
from fedrec.updates import UPDATES, Compressed, PaperNumbers

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.accelerators.fedmf import CpuResult
    from fedrec.config.schema import Plan
    from fedrec.training.cohort import Chunk
    from fedrec.training.grid import GridSum, RoundSums

__all__ = ["FedMF", "FedMFSettings"]


class FedMFSettings(SampledSettings):
    """FedMF: matrix factorisation by local gradient steps, the base of CoLR."""

    name: Literal["fedmf"] = Field(default="fedmf", description="Which algorithm trains.")
    dim: int = Field(default=32, ge=1, le=1024, description="Length of an embedding vector.")
    learning_rate: float = Field(
        default=0.5, gt=0, le=1000, description="Step size (eta) of users and items."
    )
    regularisation: float = Field(
        default=5e-4, ge=0, le=10, description="L2 coefficient (gamma) per training sample."
    )
    local_epochs: int = Field(
        default=2, ge=1, le=100, description="Passes over a user's samples in each round."
    )
    aggregation: Literal["count"] = Field(
        default="count",
        description="Item rows are divided by the number of users who touched them.",
    )


class FedMF(SampledAlgorithm):
    """Closed update rule of FedMF and CoLR; see the module's docstring."""

    settings: FedMFSettings

    not_under_noise: ClassVar[str] = ""
    name: ClassVar[str] = "fedmf"
    settings_type: ClassVar[type[AlgorithmSettings]] = FedMFSettings
    updates: ClassVar[tuple[str, ...]] = ("dense", "colr", "scolr", "svd", "topk")
    combination_reason: ClassVar[str] = (
        "FedMF sums changes of item rows, which every protection can add, and measures by scores "
        "of single items, which every protocol can rank."
    )
    divergence_remedy: ClassVar[str] = (
        "Lower algorithm.learning_rate or raise algorithm.regularisation."
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(name="item_embedding", shape=("n_items", "dim"), scope="shared"),
        Parameter(name="user_embedding", shape=("n_users", "dim"), scope="private"),
    )

    def __init__(self, plan: Plan, n_items: int) -> None:
        super().__init__(plan, n_items)
        self.structure = UPDATES[plan.update.structure](plan.update, self.settings.dim)
        self.compression = self.structure if isinstance(self.structure, Compressed) else None

    @staticmethod
    def problem(plan: Plan) -> tuple[tuple[str, ...], str] | None:
        """Refuse ranks that the length of the vectors does not allow."""
        assert isinstance(plan.algorithm, FedMFSettings)
        problem = UPDATES[plan.update.structure].problem(plan.update, plan.algorithm.dim)
        return (("update.rank", "algorithm.dim"), problem) if problem else None

    @property
    def tensors(self) -> tuple[UpdateTensor, ...]:
        """A, n_items x width of the update structure; for some, who trained each of its values."""
        shape = (self.n_items, self.structure.width)
        change = UpdateTensor(
            name="item_embedding",
            shape=shape,
            limit=self.plan.update.clip,
            fraction_bits=self.plan.update.fraction_bits,
            per_item=True,
        )
        if not self.structure.counts_entries:
            return (change,)
        entries = UpdateTensor(
            name="entries", shape=shape, limit=1.0, fraction_bits=0, per_item=True, signed=False
        )
        return (change, entries)

    def bytes_per_user(self, n_active: int, n_steps: int) -> int:
        """Return the memory of a few float32 rows over all active items, and of a user's change."""
        return (24 + 4 * self.settings.dim * self._compresses_users) * n_active

    def start(
        self, shared: SharedState, active: NDArray[np.int64], round_id: int, device: torch.device
    ) -> RoundStart:
        """Return Q's active rows and the round's basis B."""
        import torch

        start = super().start(shared, active, round_id, device)
        basis = self.structure.basis(self.plan.federation.seed, round_id)
        if basis is None:
            return start
        return replace(start, basis=torch.from_numpy(basis.astype(np.float32)).to(device))

    def fit_compiled(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Train a chunk on the processor; see `fedrec.algorithms.accelerators.fedmf`."""
        import torch

        from fedrec.algorithms.accelerators.fedmf import CpuRound, CpuUsers, train_users
        from fedrec.training.grid import product_of_blocks

        settings, total = self.settings, sums["item_embedding"]
        items, basis = start.shared["item_embedding"], start.basis
        low_items = items if basis is None else product_of_blocks(items, basis.T.contiguous())
        no_basis = np.zeros((1, items.shape[1]), dtype=np.float32)
        members = self._members(start, chunk)
        found = train_users(
            CpuUsers(
                sampled=self.sampled(chunk, start.round),
                vectors=private["user_embedding"].numpy(),
                members=np.ones((1, total.width), np.float32)
                if members is None
                else members.numpy(),
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
                counts_entries=self.structure.counts_entries,
                keeps_rows=self._compresses_users,
            ),
            threads=torch.get_num_threads(),
        )
        clipped = torch.from_numpy(found.clipped)
        if self._compresses_users:
            clipped = self._add_compressed(found, start.n_items, total)
        total.add_sums(torch.from_numpy(found.change), finite=found.finite)
        if self.structure.counts_entries:
            sums["entries"].add_sums(torch.from_numpy(found.entries), finite=True)
        sums.add_counts(torch.from_numpy(found.counts))
        return ChunkResult(
            private={"user_embedding": torch.from_numpy(found.vectors)},
            loss=torch.from_numpy(found.loss),
            clipped=clipped,
        )

    @property
    def _compresses_users(self) -> bool:
        return self.compression is not None and self.compression.by == "user"

    def _add_compressed(self, found: CpuResult, n_items: int, total: GridSum) -> torch.Tensor:
        """Compress each user's rows and add them up; return users' numbers of clipped values."""
        import torch

        from fedrec.algorithms.accelerators.fedmf import padded_users

        assert self.compression is not None
        clipped = [torch.zeros(0, dtype=torch.int64)]
        for items, rows in padded_users(found):
            small = self.compression.compress_each(torch.from_numpy(rows), n_items)
            over = total.add(torch.from_numpy(items).reshape(-1), small.reshape(-1, total.width))
            clipped.append(over.view(items.shape).sum(1))
        return torch.cat(clipped)

    def fit_in_lockstep(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Train a chunk as tensors on any device."""
        from fedrec.algorithms.fedmf_lockstep import Lockstep
        from fedrec.training.samplers import draw_samples, steps

        settings = self.settings
        seed = self.plan.federation.seed
        samples = draw_samples(
            chunk,
            seed=seed,
            round_id=start.round,
            negatives_per_positive=settings.negatives_per_positive,
            batch_size=settings.batch_size,
        )
        training = Lockstep(
            self, chunk, start, private["user_embedding"], samples, self._members(start, chunk)
        )
        for epoch in range(settings.local_epochs):
            for step in steps(
                chunk,
                samples,
                seed=seed,
                round_id=start.round,
                epoch=epoch,
                batch_size=settings.batch_size,
            ):
                training.take(step)
        clipped = training.hand_over(sums)
        seen = (samples.pointers[1:] - samples.pointers[:-1]) * settings.local_epochs
        return ChunkResult(
            private={"user_embedding": training.users},
            loss=training.loss / seen,
            clipped=clipped,
        )

    def _members(self, start: RoundStart, chunk: Chunk) -> torch.Tensor | None:
        return self.structure.members(
            self.plan.federation.seed, start.round, chunk.user_keys, start.party_key
        )

    def compress(
        self, changes: dict[str, NDArray[np.int64]], n_users: int
    ) -> tuple[dict[str, NDArray[np.int64]], int]:
        """Compress the sum where clients do that, within the range that the sum has anyway."""
        if self.compression is None or self.compression.by == "user":
            return changes, 0
        bound = float(n_users << self.plan.update.fraction_bits)
        kept = self.compression.compress(changes["item_embedding"].astype(np.float64))
        rounded = np.rint(kept)
        inside = np.clip(rounded, -bound, bound)
        return {"item_embedding": inside.astype(np.int64)}, int((inside != rounded).sum())

    def paper_numbers(self) -> PaperNumbers:
        """Return the size of a message as the CoLR paper counts it."""
        return self.structure.paper_numbers(self.n_items)

    def fold_in(
        self, items: NDArray[np.float64], positives: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Minimise FedMF's own loss over p; see `fedrec.algorithms.fedmf_folding`."""
        from fedrec.algorithms.fedmf_folding import fold_in_vector

        return fold_in_vector(
            items,
            positives,
            negatives_per_positive=self.settings.negatives_per_positive,
            regularisation=self.settings.regularisation,
        )

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Divide by the counts and merge: Q + (A / max(1, counts)) B."""
        basis = self.structure.basis(self.plan.federation.seed, round_id)
        divisor = change["entries"] if self.structure.counts_entries else counts[:, None]
        mean = change["item_embedding"] / np.maximum(divisor, 1)
        if self.compression:
            mean = self.compression.compress(mean)
        table = self.structure.merge(shared.tensors["item_embedding"], mean, basis)
        return shared.with_tensors(item_embedding=table)
