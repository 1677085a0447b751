"""PFedRec: "Dual Personalization on Federated Recommendation" (Zhang et al., IJCAI 2023).

Model of a user: score s_i = <w, E_i> + c with the user's own head w (dim) and bias c (scalar). E
(n_items x dim) is the item table from which the user starts a round and which it fine-tunes. There
is no user embedding, since w has its role. Loss: mean binary cross-entropy of a minibatch,
negatives sampled. Private: w, c and the fine-tuned rows. Shared: the mean table.

Client, for every minibatch of b samples: two steps on the same samples. The released code
alternates them, and the paper's two phases are the same if an epoch is one minibatch:

    (i)  w <- w - eta mean_j (e_j E_{i_j}),   c <- c - eta mean_j e_j,        e = sigmoid(s) - y

    (ii) s and e again with the new head, then
         E_i <- E_i - eta N lr_eta (1/b) sum over occurrences of i of (e_j w)

eta is `learning_rate`, lr_eta is `item_rate_scale`, and N is the number of items of the whole
catalogue, including items with too few holders to be trained. The step is a public constant of the
federation and does not depend on counts.

Server (`mean_changes` by users): E <- mean over participants of their whole tables, that is
E + (sum of changes) / users. A row that a user did not touch counts as unchanged. Counts per row
are not needed and not sent. They stay zero.

Evaluation. The paper scores with the user's own table after its last training, before the server's
mean replaces it. With `personal_items`, the resulting scores are kept as a private tensor (n_users
x n_items). For every item, touched or not, they are the scores of the head after round r with the
rows after round r, which started from the version before. The version that round r published is not
part of them: round r + 1 starts from it. Users that never trained have the scores of the initial
head and table, as in the paper, and users that sit out keep theirs. An abandoned round keeps the
earlier scores, because private state only changes with a published round. Without `personal_items`,
the head after round r scores the version of round r. The tensor, which takes 4 n_items bytes per
user, and twice that on disk while a round is staged, does not exist then.

Neither paper nor code clip. Here a user's change is clipped to `update.clip` before it is summed,
but its own rows are not. Rows move by up to eta N lr_eta |w| / b for each occurrence, most of all
in a last minibatch of few samples. `update.clip = 256` changes almost none of them.

Under `update.structure = "colr"` a user's rows are E + A B, and step (ii) moves A alone. Both are
plain SGD, so at rank = dim it is the same step in rotated coordinates. The server adds (mean of A)
B. Personal scores are those of E + A B.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.batch import Values, dot
from fedrec.algorithms.declarations import (
    About,
    AlgorithmSettings,
    Constant,
    Normal,
    Parameter,
    Positive,
    Rate,
    SearchSpace,
    Uniform,
)
from fedrec.algorithms.folding import FOLDING_PULL
from fedrec.algorithms.optimisers import Phase, Sgd
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings

if TYPE_CHECKING:
    import torch


class PFedRecSettings(TrainedSettings):
    """PFedRec: a score function per user, with item rows that the user fine-tunes."""

    name: Literal["pfedrec"] = Field(default="pfedrec", description="Which algorithm trains.")
    dim: int = Field(default=32, ge=1, le=1024, description="Length of an embedding vector.")
    learning_rate: Rate = Field(
        default=0.1, description="Step size (eta) of a user's head and bias."
    )
    item_rate_scale: Positive = Field(
        default=80.0,
        description="The step size of item rows is eta x items of the catalogue x this (lr_eta).",
    )
    personal_items: bool = Field(
        default=True,
        description="Score with a user's own fine-tuned item rows, as the paper does. The client "
        "keeps n_items scores for each user. If false, scores with the published table.",
    )

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        return {
            "algorithm.dim": (16, 32, 64),
            "algorithm.learning_rate": (0.03, 0.1, 0.3),
            "algorithm.item_rate_scale": (20.0, 80.0, 320.0),
            "update.clip": (256.0,),
            "rounds.total": (60,),
        }


class PFedRec(TrainedAlgorithm):
    """Personal heads, personal item rows, a mean table. See the module's docstring."""

    settings: PFedRecSettings

    settings_type: ClassVar[type[AlgorithmSettings]] = PFedRecSettings
    about: ClassVar[About] = ABOUT["pfedrec"]
    folding_pull = FOLDING_PULL

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """E with entries N(0, 1), and heads within +-1/sqrt(dim), the same for all users."""
        dim = self.settings.dim
        head = Uniform(1.0 / math.sqrt(dim))
        found = (
            Parameter("item_embedding", "rows", (dim,), Normal(), structured=True),
            Parameter("user_embedding", "own", (dim,), head, same_for_all_users=True),
            Parameter("user_bias", "own", (), head, same_for_all_users=True),
        )
        if not self.settings.personal_items:
            return found
        return (*found, Parameter("personal_scores", "own_rows", (), Constant()))

    @property
    def kept_scores(self) -> str:
        """Name of users' scores with their own rows, or empty if users have no item rows."""
        return "personal_scores" if self.settings.personal_items else ""

    @property
    def item_rate(self) -> float:
        """The step size of item rows, eta N lr_eta."""
        return self.settings.learning_rate * self.shapes.n_items * self.settings.item_rate_scale

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return two steps for every minibatch: one for the head, then one for the rows."""
        settings = self.settings
        head = Sgd({"user_embedding": settings.learning_rate, "user_bias": settings.learning_rate})
        rows = Sgd({"item_embedding": self.item_rate})
        return (Phase(steps=((head,), (rows,)), epochs=settings.local_epochs),)

    def score(self, v: Values) -> torch.Tensor:
        """Return <w, E_i> + c."""
        return dot(v.item_embedding, v.user_embedding) + v.user_bias[:, None]
