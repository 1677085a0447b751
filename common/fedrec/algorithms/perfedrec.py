"""PerFedRec: personalised federated recommendation by clusters of users (Luo et al., CIKM 2022).

Model: a user vector p (dim) and three item tables. L is the user's own after training, C that of
its cluster of users, G the mean of all. A user sends L and p, and receives C.

Client: L <- C, then Adam on p and L by BPR, for each minibatch over all pairs of a positive i and a
negative j of it:

    loss = mean over pairs of -log sigmoid(s_i - s_j),    s_i = <p', l_i>

p' is p after a graph convolution over the user's own edges, which are the minibatch's n positives:
the mean over layers k = 0 to 3 of p_k = (p_(k-1) + sum of the positives' l_i) / (1 + n). The
released code multiplies the same first embedding in each layer, p_k = (p_0 + sum) / (1 + n):
`convolution = "from_first"`. It also convolves rows, over the edges of all users, which a client
does not have. In that graph p is 1 / (1 + holders) of a row. With the client's own edges alone it
would be half of a positive's row and of no other, and the loss would learn that. So rows stay as
they are (docs/explanation/reproduction.md has the measurement). The paper draws one negative for
each positive, whose expectation is the mean over pairs.

Server (`personalise`): G <- mean of all L. K-means of the users' p into `clusters` clusters, and
C <- mean of L over the users of a cluster. Clusters are those of the round's users.

Score of a user: <p, (L + C + G) / 3> without convolution, the mean of the three models' scores. C
and G are those from which its last training started. Scores are kept as a private tensor. New users
have the scores of G.

The released code draws the test negatives anew for each of the three models and averages scores by
position, so that one averaged negative is three different items. fedrec ranks the same items under
all three, which is harder. Not here are the code's penalty of 1e-5 / 2048, dropout of edges,
Laplace noise on 100 rows, Adam's moments shared by all clients, and more rounds for users of large
clusters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.batch import Batch, Values, dot
from fedrec.algorithms.declarations import (
    About,
    AlgorithmSettings,
    Constant,
    Parameter,
    Rate,
    SearchSpace,
    Uniform,
)
from fedrec.algorithms.folding import FOLDING_PULL
from fedrec.algorithms.individual import Mixture, Personal, UserUpdates, clusters_of
from fedrec.algorithms.optimisers import Adam, Phase
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings

if TYPE_CHECKING:
    import torch


_OWN, _CLUSTER, _SCORES = "own_item_embedding", "cluster_item_embedding", "personal_scores"
_LAYERS, _AT_ONCE = 3, 64


class PerFedRecSettings(TrainedSettings):
    """PerFedRec: the mean score of a user's own model, its cluster's and the one of all."""

    name: Literal["perfedrec"] = Field(default="perfedrec", description="Which algorithm trains.")
    dim: int = Field(default=32, ge=1, le=1024, description="Length of an embedding vector.")
    learning_rate: Rate = Field(default=0.01, description="Step size of Adam.")
    batch_size: int = Field(default=2048, ge=1, le=1_000_000, description="Samples in a minibatch.")
    clusters: int = Field(
        default=5, ge=1, le=10_000, description="Clusters of users. At most as many as users."
    )
    convolution: Literal["from_previous", "from_first"] = Field(
        default="from_previous",
        description="Each layer convolves the one before, or always the first vector, as released.",
    )

    @field_validator("convolution", mode="before")
    @classmethod
    def _new_word(cls, value: object) -> object:
        if value in ("paper", "released"):
            new = "from_previous" if value == "paper" else "from_first"
            raise ValueError(f"{value!r} is now {new!r}.")
        return value

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        return {
            "algorithm.dim": (16, 32, 64),
            "algorithm.learning_rate": (0.003, 0.01, 0.03),
            "algorithm.clusters": (2, 5, 10),
            "rounds.total": (60,),
        }


class PerFedRec(TrainedAlgorithm):
    """Own, cluster and global tables. See the module's docstring."""

    settings: PerFedRecSettings

    settings_type: ClassVar[type[AlgorithmSettings]] = PerFedRecSettings
    about: ClassVar[About] = ABOUT["perfedrec"]
    folding_pull = FOLDING_PULL
    mixes_with: ClassVar[str] = "item_embedding"
    reads_numbers: ClassVar[bool] = True
    """Whether a processor reads the number of positives. Tests of the device code set it to False.
    """

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Tables and p, uniform in +-sqrt(6 / (n_items + dim)) (Xavier). `item_embedding` is G."""
        dim = self.settings.dim
        begin = Uniform(math.sqrt(6.0 / (self.shapes.n_items + dim)))
        own = Parameter(
            _OWN,
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
            Parameter(
                _CLUSTER,
                "own_rows",
                (dim,),
                Constant(),
                begins_as="item_embedding",
                received=True,
            ),
            Parameter("user_embedding", "own", (dim,), begin, shown=True),
            Parameter(_SCORES, "own_rows", (), Constant()),
        )

    @property
    def kept_scores(self) -> str:
        """Users' scores with the three tables."""
        return _SCORES

    @cached_property
    def scoring(self) -> tuple[str, ...]:
        """Kept scores, or G with a user's vector. Own tables are not read."""
        return ("item_embedding", "user_embedding", _SCORES)

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return one step of Adam for each minibatch."""
        step = Adam(dict.fromkeys(("user_embedding", _OWN), self.settings.learning_rate))
        return (Phase(steps=((step,),), epochs=self.settings.local_epochs),)

    def score(self, v: Values) -> torch.Tensor:
        """Return <p, (L + C + G) / 3>, or <p, G_i> without own tables."""
        shared = v.item_embedding
        items = v.get(_OWN, shared) + v.get(_CLUSTER, shared) + shared
        return dot(items, v.user_embedding) / 3.0

    def loss(self, v: Values, batch: Batch) -> torch.Tensor:
        """Return the mean of -log sigmoid(s_i - s_j) over the minibatch's pairs."""
        import torch

        positive, negative = batch.weight * batch.label, batch.weight * (1.0 - batch.label)
        vector = convolved(
            v.user_embedding, v[_OWN], (positive > 0).to(positive.dtype), self.settings.convolution
        )
        scores = dot(v[_OWN], vector)
        total = torch.zeros_like(scores[:, 0])
        for some in self._positives(positive):
            apart = scores[:, None] - scores.gather(1, some)[:, :, None]
            each = torch.nn.functional.softplus(apart) * negative[:, None]
            total = total + (each.sum(2) * positive.gather(1, some)).sum(1)
        return total / (positive.sum(1) * negative.sum(1)).clamp(min=1e-12)

    def _positives(self, weight: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the rows of users' positives, `_AT_ONCE` at a time, (n_users, at most `_AT_ONCE`).

        A user with fewer positives than others has rows without weight at the end, which change no
        bit of a sum. A device gets all rows at once.

        Args:
            weight: above 0 for positives, else 0, (n_users, n_rows).
        """
        is_none = weight <= 0
        order = is_none.to(weight.dtype).argsort(stable=True)
        most = at_once = weight.shape[1]
        if self.reads_numbers and weight.device.type == "cpu":
            most, at_once = max(1, int((~is_none).sum(1).max())), _AT_ONCE
        for begin in range(0, most, at_once):
            yield order[:, begin : begin + at_once]

    def personalise(self, updates: UserUpdates) -> Personal:
        """Return the mean table of every user's cluster."""
        vectors = updates.shown("user_embedding").astype(np.float64)
        labels = clusters_of(
            vectors, self.settings.clusters, seed=self.shapes.seed + updates.number
        )
        names, labels = np.unique(labels, return_inverse=True)
        members = labels == np.arange(len(names))[:, None]
        mixture = Mixture(
            of="item_embedding",
            weights=members / members.sum(1, keepdims=True),
            table_of=labels,
        )
        return Personal(own={_OWN: mixture, _CLUSTER: mixture})


def convolved(
    vector: torch.Tensor, rows: torch.Tensor, positive: torch.Tensor, convolution: str
) -> torch.Tensor:
    """Return users' vectors after the convolution over their own edges, (n_users, dim).

    Args:
        vector: (n_users, dim).
        rows: (n_users, n_rows, dim).
        positive: 1 for positives, else 0, (n_users, n_rows).
    """
    around = (rows * positive[:, :, None]).sum(1)
    degree = 1.0 + positive.sum(1, keepdim=True)
    layers = [vector]
    for _ in range(_LAYERS):
        layers.append((layers[0 if convolution == "from_first" else -1] + around) / degree)
    return sum(layers[1:], layers[0]) / len(layers)
