"""GPFedRec: "GPFedRec: Graph-Guided Personalization for Federated Recommendation" (Zhang et al.).

Model: x = [p, q_i] of a user vector p (dim) and an item row q_i (dim). Three layers of 32, 16 and 8
units with ReLU follow, and a score s = <w, h> + b of the last units h. Private: p and the network.
A user sends its own item table Q_u. It receives two: Q_g, which all share, and its own r_u.

Client: Q_u <- Q_g, then for every minibatch of b samples one simultaneous step by the gradient of

    mean over samples of cross-entropy + mu mean over all items and dimensions of (Q_u - r_u)^2

    network by eta,    p by eta `user_rate_scale`,    Q_u by eta N `item_rate_scale`,

where eta is `learning_rate`, mu is `pull` and N the number of items of the whole catalogue. The
second term moves rows that the user does not touch, too (`toward`). In the first round r_u is the
initial table. With the published rates and dim 32, a minibatch takes a row mu / 2 of its way to r.

Server (`personalise`), with x_u = Q_u as one vector:

    M_uv = <x_u, x_v> / (|x_u| |x_v|)
    A_uv = 1 / n_u if M_uv > gamma mean(M), else 0,    n_u the number of such v, u among them
    r = A^L x,    Q_g = mean over users of r_u

gamma is `threshold`, L is `layers`. With `neighbours` = k, these are the k largest M_uv instead. A
user without neighbours is its own. Tables of zeros have the cosine 0 to every table. If all tables
are equal, every mixture of them is the same table.

The released code has a sign error: under its default metric, M is the cosine distance, which other
parts use as a similarity. So neighbours are the users that differ most, and a user is never its
own. `similarity = "distance"` does the same, for the published figures. The code needs all users in
every round. Here a user that does not train in a round keeps its r_u, and is no neighbour.

Evaluation, as in the paper: the scores of a user's own Q_u, p and network after its last training.
They are kept as a private tensor, as in PFedRec. New users and items whose row a user could not
train have the scores of Q_g. The paper's Laplace noise on uploads is not offered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.batch import Values, layer_shapes, units
from fedrec.algorithms.declarations import (
    About,
    AlgorithmSettings,
    Constant,
    Normal,
    Parameter,
    Positive,
    Rate,
    SearchSpace,
    Shapes,
    Uniform,
    Weight,
)
from fedrec.algorithms.fedncf import UNITS
from fedrec.algorithms.individual import Floats, Mixture, Personal, UserUpdates, cosines
from fedrec.algorithms.optimisers import Phase, Sgd
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings
from fedrec.errors import SettingsError
from fedrec.section import Rule

if TYPE_CHECKING:
    import torch


OWN, RECEIVED, _SCORES = "own_item_embedding", "smoothed_item_embedding", "personal_scores"


class GPFedRecSettings(TrainedSettings):
    """GPFedRec: the server smooths each user's item table over a graph of users."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("threshold", "neighbours"),
            lambda section: not section.neighbours or section.is_default("threshold"),
            "{path}.threshold is set, but has no effect with {path}.neighbours = {s.neighbours}. "
            "Omit it, or set {path}.neighbours = 0.",
        ),
    )

    name: Literal["gpfedrec"] = Field(default="gpfedrec", description="Which algorithm trains.")
    dim: int = Field(default=32, ge=1, le=512, description="Length of an embedding vector.")
    learning_rate: Rate = Field(default=0.1, description="Step size (eta) of a user's network.")
    user_rate_scale: Positive = Field(
        default=80.0, description="The step size of a user's vector is eta x this."
    )
    item_rate_scale: Positive = Field(
        default=80.0,
        description="The step size of item rows is eta x items of the catalogue x this.",
    )
    pull: Weight = Field(
        default=1.0, description="Weight (mu) of the distance to the table that a user received."
    )
    similarity: Literal["cosine", "distance"] = Field(
        default="cosine",
        description="distance takes the users that differ most, as the released code does.",
    )
    neighbours: int = Field(
        default=0, ge=0, description="Neighbours of each user. 0 for all above the threshold."
    )
    threshold: Weight = Field(
        default=1.0,
        description="Neighbours are more similar than this times the mean similarity (gamma).",
    )
    layers: int = Field(
        default=1, ge=1, le=16, description="How often tables are averaged over the graph (L)."
    )

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        return {
            "algorithm.dim": (16, 32, 64),
            "algorithm.learning_rate": (0.03, 0.1, 0.3),
            "algorithm.item_rate_scale": (20.0, 80.0),
            "algorithm.pull": (0.1, 0.3, 1.0),
            "update.clip": (256.0,),
            "rounds.total": (60,),
        }


class GPFedRec(TrainedAlgorithm):
    """Own tables, smoothed over a graph of users. See the module's docstring."""

    settings: GPFedRecSettings

    settings_type: ClassVar[type[AlgorithmSettings]] = GPFedRecSettings
    about: ClassVar[About] = ABOUT["gpfedrec"]
    mixes_with: ClassVar[str] = RECEIVED

    def __init__(self, settings: AlgorithmSettings, shapes: Shapes) -> None:
        super().__init__(settings, shapes)
        if self.item_rate * self.decay > 2.0:
            raise SettingsError(
                f"algorithm.pull is {self.settings.pull:g}, which at these step sizes takes rows "
                "ever further away from the received ones.",
                remedy="Lower algorithm.pull, algorithm.item_rate_scale or "
                "algorithm.learning_rate.",
            )

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Tables and p with entries N(0, 1), layers uniform in +-1/sqrt(inputs), all users alike.

        `item_embedding` is Q_g.
        """
        dim, network = self.settings.dim, []
        for layer, (outputs, inputs) in enumerate(layer_shapes(2 * dim, UNITS), start=1):
            for name, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
                network.append(
                    Parameter(
                        f"{name}_{layer}",
                        "own",
                        shape,
                        Uniform(1.0 / math.sqrt(inputs)),
                        same_for_all_users=True,
                    )
                )
        return (
            Parameter("item_embedding", "rows", (dim,), Normal(), computed=True),
            Parameter(
                OWN,
                "own_rows",
                (dim,),
                Constant(),
                copies="item_embedding",
                sends_whole_table=True,
            ),
            Parameter(
                RECEIVED,
                "own_rows",
                (dim,),
                Constant(),
                begins_as="item_embedding",
                received=True,
            ),
            Parameter("user_embedding", "own", (dim,), Normal(), same_for_all_users=True),
            *network,
            Parameter(_SCORES, "own_rows", (), Constant()),
        )

    @property
    def kept_scores(self) -> str:
        """Users' scores with their own tables."""
        return _SCORES

    @cached_property
    def scoring(self) -> tuple[str, ...]:
        """Kept scores, or Q_g with a user's vector and network. Own tables are not read."""
        own = (entry.name for entry in self.parameters if entry.scope == "own")
        return (*self.recommending, *own, _SCORES)

    @property
    def item_rate(self) -> float:
        """The step size of item rows, eta N `item_rate_scale`."""
        return self.settings.learning_rate * self.shapes.n_items * self.settings.item_rate_scale

    @property
    def decay(self) -> float:
        """The derivative of mu mean(D^2) with respect to a value of D, divided by the value."""
        return 2.0 * self.settings.pull / (max(1, self.shapes.n_items) * self.settings.dim)

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return one simultaneous step per minibatch."""
        eta = self.settings.learning_rate
        rates = {entry.name: eta for entry in self.parameters if entry.scope == "own"}
        rates["user_embedding"] = eta * self.settings.user_rate_scale
        rows = Sgd({OWN: self.item_rate}, decay=self.decay, whole=True, toward={OWN: RECEIVED})
        return (Phase(steps=((Sgd(rates), rows),), epochs=self.settings.local_epochs),)

    def score(self, v: Values) -> torch.Tensor:
        """Return the network's scores of a user's own table, or of Q_g without one."""
        items = v.get(OWN, v.item_embedding)
        hidden = units(v, v.user_embedding, items, len(UNITS) - 1)
        return (hidden * v.weight_4).sum(-1) + v.bias_4

    def personalise(self, updates: UserUpdates) -> Personal:
        """Return every user's mean over its neighbours, and the mean of these means as Q_g."""
        products = updates.products("item_embedding")
        weights = self.neighbour_weights(cosines(products))
        return Personal(
            own={RECEIVED: Mixture(of="item_embedding", weights=weights)},
            shared={
                "item_embedding": updates.mixed("item_embedding", weights.mean(0)[None])[0].astype(
                    np.float64
                )
            },
        )

    def neighbour_weights(self, similarity: Floats) -> Floats:
        """Return A^L, (n_users, n_users).

        Args:
            similarity: M as cosines.
        """
        settings, n_users = self.settings, len(similarity)
        if settings.similarity == "distance":
            similarity = 1.0 - similarity
        if settings.neighbours:
            nearest = np.argsort(-similarity, axis=1, kind="stable")[:, : settings.neighbours]
            chosen = np.zeros((n_users, n_users), dtype=np.bool_)
            np.put_along_axis(chosen, nearest, True, axis=1)
        else:
            chosen = similarity > settings.threshold * similarity.mean()
        np.fill_diagonal(chosen, chosen.diagonal() | ~chosen.any(1))
        means = chosen / chosen.sum(1, keepdims=True)
        return np.linalg.matrix_power(means, settings.layers)
