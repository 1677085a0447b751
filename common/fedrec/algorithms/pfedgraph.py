"""pFedGraph: "Personalized Federated Learning with Inferred Collaboration Graphs" (ICML 2023).

The paper is about images. Here it is around matrix factorisation, as PFedCLR measures it: the score
of a user with vector p and item table theta is s_i = <p, theta_i>. p is private, theta is sent.

Client: from theta <- the table that it received, `local_epochs` passes of Adam on p and the whole
table, for every minibatch one step by the gradient of

    mean cross-entropy - lambda <a, theta> / |theta|

lambda is `weight` and a the anchor that the user received, 0 in its first round. Norms and inner
products are over whole tables, so that Adam moves all rows, also those without a sample.

Server (`personalise`), with theta_0 the first table of all and D_j the training items of user j:

    d_ij = -cos(theta_i - theta_0, theta_j - theta_0), -1 where the cosine is above .9 or i = j
    w_i = argmin of alpha |w|^2 + (d_i - 2 alpha f)^T w over w >= 0 with sum w = 1
        = the point of the simplex nearest to f - d_i / (2 alpha),    f_j = |D_j| / sum |D|
    theta of i <- sum_j w_ij theta_j,     a of i <- sum_j w_ij theta_j / |theta_j|

alpha is `smoothing`. The users of a round alone are in it. The others keep what they have.

The objective of the paper penalises a distance to the mixture, which is a minus before lambda. The
released code has a plus there, and so pushes tables away from it: `sign = "released"`.

Evaluation: the scores of a user's table and p after its last training, kept as a private tensor. A
user that never trained has those of theta_0. New users have the scores of the mean table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.batch import Batch, Values, dot
from fedrec.algorithms.declarations import (
    About,
    AlgorithmSettings,
    Constant,
    Normal,
    Parameter,
    Positive,
    Rate,
    SearchSpace,
    Weight,
)
from fedrec.algorithms.folding import FOLDING_PULL
from fedrec.algorithms.individual import Floats, Mixture, Personal, UserUpdates, cosines
from fedrec.algorithms.optimisers import Adam, Phase
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings
from fedrec.section import UsedIf

if TYPE_CHECKING:
    import torch


OWN, ANCHOR, _SCORES = "own_item_embedding", "anchor", "personal_scores"
_ALIKE = 0.9
"""Users with a larger cosine count as equal."""


class PFedGraphSettings(TrainedSettings):
    """pFedGraph: each user gets a mixture of similar users' tables."""

    name: Literal["pfedgraph"] = Field(default="pfedgraph", description="Which algorithm trains.")
    dim: int = Field(default=16, ge=1, le=1024, description="Length of an embedding vector.")
    learning_rate: Rate = Field(default=0.01, description="Step size of Adam.")
    local_epochs: int = Field(
        default=10, ge=1, le=100, description="Passes over a user's samples in each round."
    )
    weight: Weight = Field(
        default=0.01, description="Weight (lambda) of the cosine with the received mixture."
    )
    sign: Annotated[Literal["paper", "released"], UsedIf(above_zero=("weight",))] = Field(
        default="paper",
        description="released pushes tables away from the mixture, as the released code does.",
    )
    smoothing: Positive = Field(
        default=0.8, description="How close weights are to users' shares of the data (alpha)."
    )

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        return {
            "algorithm.dim": (8, 16, 32),
            "algorithm.learning_rate": (0.003, 0.01, 0.03),
            "algorithm.smoothing": (0.2, 0.8, 3.2),
            "rounds.total": (60,),
        }


class PFedGraph(TrainedAlgorithm):
    """Tables mixed along an inferred graph. See the module's docstring."""

    settings: PFedGraphSettings

    settings_type: ClassVar[type[AlgorithmSettings]] = PFedGraphSettings
    about: ClassVar[About] = ABOUT["pfedgraph"]
    folding_pull = FOLDING_PULL
    reads_samples: ClassVar[bool] = True

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Tables and p with entries N(0, 1/dim). `item_embedding` is the mean table."""
        dim = self.settings.dim
        begin = Normal(1.0 / math.sqrt(dim))
        own = Parameter(
            OWN,
            "own_rows",
            (dim,),
            Constant(),
            begins_as="item_embedding",
            sends_whole_table=True,
            received=True,
        )
        return (
            Parameter("item_embedding", "rows", (dim,), begin),
            own,
            Parameter(ANCHOR, "own_rows", (dim,), Constant(), received=True),
            Parameter("user_embedding", "own", (dim,), begin),
            Parameter(_SCORES, "own_rows", (), Constant()),
        )

    @property
    def kept_scores(self) -> str:
        """Users' scores with the tables that they trained."""
        return _SCORES

    @cached_property
    def scoring(self) -> tuple[str, ...]:
        """Kept scores, or the mean table with a user's vector. Own tables are not read."""
        return ("item_embedding", "user_embedding", _SCORES)

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return one step of Adam for each minibatch."""
        rate = self.settings.learning_rate
        step = Adam({"user_embedding": rate, OWN: rate})
        epochs = self.settings.local_epochs
        return (Phase(steps=((step,),), epochs=epochs, steps_every_row=True),)

    def score(self, v: Values) -> torch.Tensor:
        """Return <p, theta_i>."""
        return dot(v.get(OWN, v.item_embedding), v.user_embedding)

    def joint(self, v: Values, batch: Batch) -> torch.Tensor | float:
        """Return the term of the received mixture."""
        settings = self.settings
        if not settings.weight:
            return 0.0
        assert batch.there is not None
        table = v[OWN] * batch.there[:, :, None]
        inner = (table * v[ANCHOR]).sum((1, 2))
        cosine = inner / table.square().sum((1, 2)).clamp(min=1e-20).sqrt()
        return settings.weight * (cosine if settings.sign == "released" else -cosine)

    def personalise(self, updates: UserUpdates) -> Personal:
        """Return every user's mixture of tables, and the mixture of their directions."""
        first = self.derived.initial_shared().tensors["item_embedding"][updates.active]
        cosine = cosines(updates.products("item_embedding", origin=first))
        share = updates.samples / updates.samples.sum()
        weights = mixture_weights(cosine, share, self.settings.smoothing)
        lengths = np.concatenate(
            [
                np.sqrt((tables.astype(np.float64) ** 2).sum(1))
                for _, tables in updates.blocks("item_embedding")
            ]
        )
        directions = weights / np.maximum(lengths, 1e-20)
        return Personal(
            own={
                OWN: Mixture(of="item_embedding", weights=weights),
                ANCHOR: Mixture(of="item_embedding", weights=directions),
            }
        )


def mixture_weights(cosine: Floats, share: Floats, smoothing: float) -> Floats:
    """Return w, (n_users, n_users), each row a point of the simplex.

    Args:
        cosine: of the users' changes since theta_0, (n_users, n_users).
        share: f, (n_users,).
        smoothing: alpha.
    """
    distance = np.where(cosine > _ALIKE, -1.0, -cosine)
    np.fill_diagonal(distance, -1.0)
    return on_simplex(share - distance / (2.0 * smoothing))


def on_simplex(points: Floats) -> Floats:
    """Return the nearest point of the simplex for each row (Held, Wolfe and Crowder 1974)."""
    falling = -np.sort(-points, axis=1)
    excess = falling.cumsum(1) - 1.0
    count = np.arange(1, points.shape[1] + 1)
    n_kept = (falling * count > excess).sum(1)
    above = excess[np.arange(len(points)), n_kept - 1] / n_kept
    found: Floats = np.maximum(points - above[:, None], 0.0)
    return found
