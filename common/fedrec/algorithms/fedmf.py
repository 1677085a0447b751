"""FedMF: federated matrix factorisation with implicit feedback, as CoLR's base model.

Section 4.1 of the CoLR paper (`fedrec.updates.colr`), by the rules of its released code.
`fedrec.algorithms.trained` has the four rules that no paper has.
A plain version is in tests/reference/plain_fedmf.py.

Model: score s = <p, q_i>, loss binary cross-entropy, negatives sampled. Private: the user vector p
(dim). Shared: the item table Q (n_items x dim), of which q_i is a row.

Client, per minibatch of samples j, simultaneously from old values, with e_j = sigmoid(s_j) - y_j
(`FedMF.penalty`, `FedMF.phases`, and `TrainedBlock._move` in training/trained_block.py):

    p   <- p   - eta mean_j (e_j q_{i_j} + 2 gamma p)                              after eq. 3
    q_i <- q_i - eta mean over occurrences of i (e_j p + 2 gamma q_i)              after eq. 4

Under a low-rank update structure q_i = Q_i + A_i B, and A moves in place of Q:

    A_i <- A_i - eta sqrt(r/d) mean over occurrences of i (e_j p + 2 gamma q_i) B^T

Server (`mean_changes` by holders): Q_i <- Q_i + (sum over users of A_i / n_i) B, where n_i users
touched row i. For dense updates B = I and r = d.

Differences from the paper, all as in the released code:

- Eq. 3 and 4 have the gradient of squared errors, in which e_j = s_j - y_j, summed over all of a
  user's samples. Here the loss is cross-entropy. p moves by its mean over a minibatch and a row by
  the mean over the row's own samples, whatever the size of the minibatch.
- The paper's penalty is lambda/2 (|p|^2 + |Q|^2) on all of Q, once per loss. Here it is
  gamma (|p|^2 + |q_i|^2) per sample, so a user pulls only the rows that it touches. lambda is
  2 gamma.
- Algorithm 1 weighs users by N_u / N and names a ServerOpt with the rate eta_s. Here each row's sum
  is divided by n_i and added as it is.
- The paper does not give first values. They are N(0, 1/d) in both tables.

Update structures (`fedrec.updates`) choose B, omit some of its rows for some users, or compress A
before it is summed and its mean after it. If rows are omitted, B above is B[S_u], and A is zero
outside S_u.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.batch import Batch, Values, dot
from fedrec.algorithms.declarations import (
    About,
    AlgorithmSettings,
    Normal,
    Parameter,
    SearchSpace,
)
from fedrec.algorithms.optimisers import Phase, Sgd
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings

if TYPE_CHECKING:
    import torch


class FedMFSettings(TrainedSettings):
    """FedMF: matrix factorisation by local gradient steps, the base of CoLR."""

    name: Literal["fedmf"] = Field(default="fedmf", description="Which algorithm trains.")
    dim: int = Field(default=32, ge=1, le=1024, description="Length of an embedding vector.")
    learning_rate: float = Field(
        default=0.5, gt=0, le=1000, description="Step size (eta) of users and items."
    )
    regularisation: float = Field(
        default=5e-4,
        ge=0,
        le=10,
        description="L2 coefficient (gamma) per training sample: gamma |x|^2, with the derivative "
        "2 gamma x.",
    )
    local_epochs: int = Field(
        default=2, ge=1, le=100, description="Passes over a user's samples in each round."
    )
    aggregation: Literal["count"] = Field(
        default="count",
        description="Item rows are divided by the number of users that touched them.",
    )

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        return {
            "algorithm.dim": (8, 16, 32, 64),
            "algorithm.learning_rate": (0.5, 1.0, 2.0, 4.0),
            "algorithm.regularisation": (0.0005, 0.005, 0.05),
            "algorithm.local_epochs": (1, 2),
        }


class FedMF(TrainedAlgorithm):
    """Closed update rule of FedMF and CoLR. See the module's docstring."""

    settings: FedMFSettings

    settings_type: ClassVar[type[AlgorithmSettings]] = FedMFSettings
    about: ClassVar[About] = ABOUT["fedmf"]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Q and p, with entries N(0, 1/dim)."""
        dim = self.settings.dim
        begin = Normal(1.0 / math.sqrt(dim))
        return (
            Parameter("item_embedding", "rows", (dim,), begin, mean="holders", structured=True),
            Parameter("user_embedding", "own", (dim,), begin),
        )

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return one simultaneous step per minibatch."""
        rate = self.settings.learning_rate
        step = Sgd({"user_embedding": rate, "item_embedding": rate}, per_occurrence=True)
        return (Phase(steps=((step,),), epochs=self.settings.local_epochs),)

    def score(self, v: Values) -> torch.Tensor:
        """Return <p, q_i>."""
        return dot(v.item_embedding, v.user_embedding)

    def penalty(self, v: Values, batch: Batch) -> torch.Tensor | float:
        """Return gamma (|p|^2 + |q_i|^2), the mean over the samples."""
        from fedrec.tensor_products import square_sums

        gamma = self.settings.regularisation
        if not gamma:
            return 0.0
        rows = square_sums(v.item_embedding)
        return gamma * (batch.weighted_sum(rows) + v.user_embedding.square().sum(-1))

    @property
    def folding_pull(self) -> float:
        """Weight of |p|^2 in FedMF's own loss."""
        return self.settings.regularisation
