"""FedMF: federated matrix factorisation with implicit feedback, as CoLR's base model.

Model: score s = <p, q_i>, loss binary cross-entropy, negatives sampled. Private: the user vector p
(dim). Shared: the item table Q (n_items x dim).

Client, per minibatch of size b, simultaneously from old values (as in CoLR's released code):
    p   <- p   - eta * mean_j (e_j q_{i_j} + 2 gamma p),             e = sigmoid(s) - y
    A_i <- A_i - eta sqrt(r/d) * mean over occurrences of i (e_j p + 2 gamma q_i) B^T

with q_i = Q_i + A_i B. For dense updates B = I and r = d.

Server: Q_i <- Q_i + (sum of A_i / number of users that touched i) B.

Update structures (`fedrec.updates`) choose B, omit some of its rows for some users, or compress A
before it is summed and its mean after it. If rows are omitted, B above is B[S_u], and A is zero
outside S_u.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.algorithm import Algorithm
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
        default=5e-4, ge=0, le=10, description="L2 coefficient (gamma) per training sample."
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

    name: ClassVar[str] = "fedmf"
    settings_type: ClassVar[type[AlgorithmSettings]] = FedMFSettings
    about: ClassVar[About] = ABOUT["fedmf"]

    @property
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
        return gamma * (batch.mean(rows) + v.user_embedding.square().sum(-1))

    # Without torch: it is an inner product.
    preferences = Algorithm.preferences

    @property
    def folding_pull(self) -> float:
        """Weight of |p|^2 in FedMF's own loss."""
        return self.settings.regularisation
