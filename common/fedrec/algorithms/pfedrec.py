"""PFedRec: "Dual Personalization on Federated Recommendation" (Zhang et al., IJCAI 2023).

Model of a user: score s_i = <w, E_i> + c with the user's own head w (dim) and bias c (scalar).
E (n_items x dim) is the item table that the user starts a round from and fine-tunes for itself;
there is no user embedding, w plays that part. Loss: mean binary cross-entropy of a minibatch,
negatives sampled. Private: w, c and the fine-tuned rows. Shared: the mean table.

Client, for every minibatch of b samples two steps on the same samples (the released code
alternates; the paper's two phases are the same where an epoch is one minibatch):

    (i)  w <- w - eta mean_j (e_j E_{i_j}),   c <- c - eta mean_j e_j,        e = sigmoid(s) - y
    (ii) s and e once more with the new head;
         E_i <- E_i - eta N lr_eta (1/b) sum over occurrences of i of (e_j w)

eta is `learning_rate`, lr_eta is `item_rate_scale`, and N is the number of items of the whole
catalogue, those included that too few users hold to be trained: the step is a public constant of
the federation and does not move with what was counted.

Server: E <- mean over participants of their whole tables, that is E + (sum of changes) / users.
A row that a user did not touch counts as unchanged. Counts per row are not needed and not sent:
they stay zero.

Low-rank form: whatever a user did to a row is a sum over its minibatches,

    E_i + sum_b coef_{b,i} w_b,    w_b the head after step (i) of minibatch b,

so that the tensors of `pfedrec_lockstep` hold no copy of item rows. Scores are <w, E_i> + c
+ sum_b coef_{b,i} <w, w_b>.

What is measured. The paper scores with the user's own table as its last training left it, before
the server's mean replaces it. With `personal_items` the scores that follow from it are kept as a
private tensor (n_users x n_items): for every item, touched or not, those of the head after round
r with the rows after round r, which started from the version before. The version that round r
published has no part in them; it is what round r + 1 starts from. Users who never trained have
the scores of the initial head and table, as in the paper, and users who sit out keep theirs. A
round that is abandoned leaves the earlier scores, because private state only changes with a
published round. Without `personal_items` the head after round r scores the version of round r.
The tensor is never made then: it takes 4 n_items bytes a user, on disk twice while a round is
staged.

Neither paper nor code clip. Here a user's change is clipped to `update.clip` before it is summed;
its own rows are not. Rows move by up to eta N lr_eta |w| / b for each occurrence, most in a last
minibatch of few samples; `update.clip = 256` leaves almost all of them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.declarations import AlgorithmSettings, Parameter, UpdateTensor
from fedrec.algorithms.sampled import SampledAlgorithm, SampledSettings
from fedrec.linear import product
from fedrec.streams import Purpose, normal, stream_key, uniform
from fedrec.training.state import PrivateState, SharedState

if TYPE_CHECKING:
    import torch

    from fedrec.config.schema import Plan
    from fedrec.training.cohort import Chunk
    from fedrec.training.grid import RoundSums

__all__ = ["PFedRec", "PFedRecSettings"]

_BYTES_PER_SAMPLE = 80
_FOLDING_PULL = 1e-3
"""PFedRec itself has no L2 coefficient: few steps from a small start keep its heads short."""


_USUAL_CLIP = 64.0


class PFedRecSettings(SampledSettings):
    """PFedRec: a score function of each user's own, and item rows fine-tuned for it."""

    name: Literal["pfedrec"] = Field(default="pfedrec", description="Which algorithm trains.")
    dim: int = Field(default=32, ge=1, le=1024, description="Length of an embedding vector.")
    learning_rate: float = Field(
        default=0.1, gt=0, le=1000, description="Step size (eta) of a user's head and bias."
    )
    item_rate_scale: float = Field(
        default=80.0,
        gt=0,
        le=1e6,
        description="Item rows are trained with eta x items of the catalogue x this (lr_eta).",
    )
    personal_items: bool = Field(
        default=True,
        description="Score with a user's own fine-tuned item rows, as the paper does; the client "
        "keeps n_items scores for each user. false scores with the published table.",
    )


class PFedRec(SampledAlgorithm):
    """Personal heads, personal item rows, a mean table; see the module's docstring."""

    settings: PFedRecSettings

    not_under_noise: ClassVar[str] = ""
    name: ClassVar[str] = "pfedrec"
    counts_rows: ClassVar[bool] = False
    settings_type: ClassVar[type[AlgorithmSettings]] = PFedRecSettings
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(name="item_embedding", shape=("n_items", "dim"), scope="shared"),
        Parameter(name="user_embedding", shape=("n_users", "dim"), scope="private"),
        Parameter(name="user_bias", shape=("n_users",), scope="private"),
        Parameter(name="personal_scores", shape=("n_users", "n_items"), scope="private"),
    )
    updates: ClassVar[tuple[str, ...]] = ("dense",)
    combination_reason: ClassVar[str] = (
        "pfedrec averages whole item tables, for which no low-rank form is defined."
    )
    divergence_remedy: ClassVar[str] = "Lower algorithm.item_rate_scale or algorithm.learning_rate."

    @property
    def item_rate(self) -> float:
        """Step size of item rows, eta N lr_eta."""
        return self.settings.learning_rate * self.n_items * self.settings.item_rate_scale

    @staticmethod
    def warnings(plan: Plan, n_items: int = 0) -> list[str]:
        """Say when the public range is too narrow for the large steps of item rows."""
        if plan.update.clip >= _USUAL_CLIP:
            return []
        return [
            f"update.clip is {plan.update.clip:g}, but PFedRec takes large steps: with 16 about "
            "one value in a hundred is clipped on MovieLens-100K, with 256 one in a hundred "
            "thousand. Set update.clip = 256, and watch clipped_values in rounds.jsonl."
        ]

    @property
    def tensors(self) -> tuple[UpdateTensor, ...]:
        """The change of the item table, and how many users it was summed over."""
        return (
            UpdateTensor(
                name="item_embedding",
                shape=(self.n_items, self.settings.dim),
                limit=self.plan.update.clip,
                fraction_bits=self.plan.update.fraction_bits,
                per_item=True,
            ),
            UpdateTensor(name="users", shape=(1,), limit=1.0, fraction_bits=0, signed=False),
        )

    def initial_shared(self) -> SharedState:
        """Return E with entries N(0, 1)."""
        key = stream_key(self.plan.federation.seed, Purpose.ITEM_EMBEDDING)
        table = normal(key, (self.n_items, self.settings.dim))
        return SharedState(MappingProxyType({"item_embedding": table}))

    def initial_private(self, user_keys: NDArray[np.int64]) -> PrivateState:
        """Return everybody's head: one draw, uniform between -1/sqrt(dim) and 1/sqrt(dim)."""
        dim = self.settings.dim
        key = stream_key(self.plan.federation.seed, Purpose.USER_EMBEDDING)
        head = (2.0 * uniform(key, np.arange(dim + 1)) - 1.0) / math.sqrt(dim)
        tensors = {"user_embedding": head[:dim], "user_bias": head[dim]}
        if self.settings.personal_items:
            table = self.initial_shared().tensors["item_embedding"]
            tensors["personal_scores"] = product(table, head[:dim, None])[:, 0] + head[dim]
        n_users = len(user_keys)
        return PrivateState(
            MappingProxyType(
                {
                    name: np.repeat(value[None].astype(np.float32), n_users, axis=0)
                    for name, value in tensors.items()
                }
            )
        )

    def bytes_per_user(self, n_active: int, n_steps: int) -> int:
        """Return the memory of a user's samples, its coefficients and rows over all items."""
        n_samples = n_steps * self.settings.batch_size
        width = min(n_active, n_samples)
        coefficients = 4 * width * (n_steps * self.settings.local_epochs + 16)
        return 24 * n_active + 4 * self.n_items + coefficients + _BYTES_PER_SAMPLE * n_samples

    def fit_compiled(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Train a chunk on the processor; see `fedrec.algorithms.accelerators.pfedrec`."""
        import torch

        from fedrec.algorithms.accelerators.pfedrec import CpuRound, CpuUsers, train_users

        settings, total = self.settings, sums["item_embedding"]
        found = train_users(
            CpuUsers(
                sampled=self.sampled(chunk, start.round),
                heads=private["user_embedding"].numpy(),
                biases=private["user_bias"].numpy(),
            ),
            CpuRound(
                items=start.shared["item_embedding"].numpy(),
                rate=settings.learning_rate,
                item_rate=self.item_rate,
                epochs=settings.local_epochs,
                batch_size=settings.batch_size,
                negatives_per_positive=settings.negatives_per_positive,
                scale=total.scale,
                bound=total.bound,
                personal=settings.personal_items,
            ),
            threads=torch.get_num_threads(),
        )
        total.add_sums(torch.from_numpy(found.change), finite=found.finite)
        sums["users"].add_whole(torch.ones((chunk.n_users, 1)))
        trained = {
            "user_embedding": torch.from_numpy(found.heads),
            "user_bias": torch.from_numpy(found.biases),
        }
        if settings.personal_items:
            trained["personal_scores"] = private["personal_scores"].index_copy(
                1, start.active, torch.from_numpy(found.scores)
            )
        return ChunkResult(
            private=trained,
            loss=torch.from_numpy(found.loss),
            clipped=torch.from_numpy(found.clipped),
        )

    def fit_in_lockstep(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Train a chunk as tensors on any device; see `fedrec.algorithms.pfedrec_lockstep`."""
        from fedrec.algorithms.pfedrec_lockstep import PersonalLockstep
        from fedrec.training.samplers import draw_samples, steps

        settings, seed = self.settings, self.plan.federation.seed
        samples = draw_samples(
            chunk,
            seed=seed,
            round_id=start.round,
            negatives_per_positive=settings.negatives_per_positive,
            batch_size=settings.batch_size,
        )
        training = PersonalLockstep(self, chunk, start, private, samples)
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
        trained = {"user_embedding": training.heads, "user_bias": training.biases}
        if settings.personal_items:
            trained["personal_scores"] = private["personal_scores"].index_copy(
                1, start.active, training.scores()
            )
        seen = (samples.pointers[1:] - samples.pointers[:-1]) * settings.local_epochs
        return ChunkResult(private=trained, loss=training.loss / seen, clipped=clipped)

    def scores(
        self, chunk: Chunk, start: RoundStart, private: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the scores of users' own rows, or of the published table."""
        from fedrec.training.grid import product_of_blocks

        if self.settings.personal_items:
            return private["personal_scores"].index_select(1, start.active)
        table = start.shared["item_embedding"].T.contiguous()
        return product_of_blocks(private["user_embedding"], table) + private["user_bias"][:, None]

    def fold_in(
        self, items: NDArray[np.float64], positives: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Fit a head to the published table, without the bias, which changes no order."""
        from fedrec.algorithms.fedmf_folding import fold_in_vector

        return fold_in_vector(
            items,
            positives,
            negatives_per_positive=self.settings.negatives_per_positive,
            regularisation=_FOLDING_PULL,
        )

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Return the mean table: E + (sum of changes) / participants."""
        mean = change["item_embedding"] / max(1.0, float(change["users"][0]))
        return shared.with_tensors(item_embedding=shared.tensors["item_embedding"] + mean)
