"""CoFedRec: "Co-clustering for Federated Recommender System" (He et al., WWW 2024).

Model of a user: score s_i = <w, q_i> + c with the user's own head w (dim), bias c and item table Q
(n_items x dim), which stays with the user over the rounds. Loss of a minibatch:

    L = mean cross-entropy + mu L_sup

    L_sup = mean over i of -(tau / .5) 1 / (|P_i| + 1e-6) sum over p in P_i of
            [z_i z_p / tau - log sum over a != i of exp(z_i z_a / tau)],    z_i = q_i / |q_i|

mu is `weight` and tau `temperature`. i and a are the distinct items of the minibatch, P_i those in
the same cluster as i. The paper takes all items of the catalogue in each minibatch, at a cost that
grows with their square. Before the first clusters, L_sup is 0.

Client, for every minibatch: two steps, (i) the head by eta, (ii) the rows by eta N lr_eta with the
new head. eta is `learning_rate`, lr_eta is `item_rate_scale`, N the number of all items.

Server (`personalise`), after each round:

    G <- mean of all tables

    s_u = sum over i in c of cos(q_i of u*, q_i of u)

    Q of each member <- mean of the members' tables

K-means of G's rows into `clusters` clusters gives every item a label. A user u* and a cluster c are
drawn from the public seed. s_u is in descending order. The members are the users up to its elbow,
the point that is furthest from the line from its first to its last point.

So one group is merged in each round. Other users keep their own tables. With `others = "global"`
they get G, the other reading of a text that does not say.

Evaluation: a user's own table after the server, with its own head. New users have the scores of G.
The official code was not available. Choices: two passes for each minibatch as in PFedRec, one local
epoch, ties of the elbow take the first, and u* is a user of the round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.batch import Batch, Values, dot, supervised_contrast
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
    Weight,
)
from fedrec.algorithms.folding import FOLDING_PULL
from fedrec.algorithms.individual import Floats, Mixture, Personal, UserUpdates, clusters_of
from fedrec.algorithms.optimisers import Phase, Sgd
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings
from fedrec.random_streams import Purpose, stream_key, uniform

if TYPE_CHECKING:
    import torch


OWN, LABELS = "own_item_embedding", "item_cluster"
_NO_CLUSTER = -1.0


class CoFedRecSettings(TrainedSettings):
    """CoFedRec: the server clusters items, and merges one group of similar users in each round."""

    name: Literal["cofedrec"] = Field(default="cofedrec", description="Which algorithm trains.")
    dim: int = Field(default=32, ge=1, le=1024, description="Length of an embedding vector.")
    learning_rate: Rate = Field(
        default=0.1, description="Step size (eta) of a user's head and bias."
    )
    item_rate_scale: Positive = Field(
        default=80.0,
        description="The step size of item rows is eta x items of the catalogue x this (lr_eta).",
    )
    weight: Weight = Field(
        default=0.005, description="Weight (mu) of the contrast between item clusters."
    )
    temperature: float = Field(
        default=0.1, gt=0, le=100, description="Temperature (tau) of the contrast's cosines."
    )
    clusters: int = Field(
        default=30, ge=1, le=100_000, description="Item clusters. At most as many as items."
    )
    others: Literal["own", "global"] = Field(
        default="own",
        description="The tables of users outside the merged group: their own, or the mean of all.",
    )

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        return {
            "algorithm.dim": (16, 32, 64),
            "algorithm.learning_rate": (0.03, 0.1, 0.3),
            "algorithm.item_rate_scale": (20.0, 80.0),
            "algorithm.weight": (0.0, 0.001, 0.005),
            "update.clip": (256.0,),
            "rounds.total": (60,),
        }


class CoFedRec(TrainedAlgorithm):
    """Own tables, of which one group is merged in each round. See the module's docstring."""

    settings: CoFedRecSettings

    settings_type: ClassVar[type[AlgorithmSettings]] = CoFedRecSettings
    about: ClassVar[About] = ABOUT["cofedrec"]
    folding_pull = FOLDING_PULL

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Tables with entries N(0, 1), heads within +-1/sqrt(dim), the same for all users.

        `item_embedding` is G.
        """
        dim = self.settings.dim
        head = Uniform(1.0 / math.sqrt(dim))
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
            Parameter("item_embedding", "rows", (dim,), Normal()),
            Parameter(LABELS, "rows", (), Constant(_NO_CLUSTER), computed=True),
            own,
            Parameter("user_embedding", "own", (dim,), head, same_for_all_users=True),
            Parameter("user_bias", "own", (), head, same_for_all_users=True),
        )

    @cached_property
    def scoring(self) -> tuple[str, ...]:
        """Clusters are not scored with."""
        return ("item_embedding", OWN, "user_embedding", "user_bias")

    @property
    def item_rate(self) -> float:
        """The step size of item rows, eta N lr_eta."""
        settings = self.settings
        return settings.learning_rate * self.shapes.n_items * settings.item_rate_scale

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return two steps for every minibatch: one for the head, then one for the rows."""
        settings = self.settings
        head = Sgd({"user_embedding": settings.learning_rate, "user_bias": settings.learning_rate})
        rows = Sgd({OWN: self.item_rate})
        return (Phase(steps=((head,), (rows,)), epochs=settings.local_epochs),)

    def score(self, v: Values) -> torch.Tensor:
        """Return <w, q_i> + c with a user's own table, or with G without one."""
        items = v.get(OWN, v.item_embedding)
        return dot(items, v.user_embedding) + v.user_bias[:, None]

    def joint(self, v: Values, batch: Batch) -> torch.Tensor | float:
        """Return mu L_sup if a step moves the rows."""
        settings, rows = self.settings, v[OWN]
        if not (settings.weight and rows.requires_grad):
            return 0.0
        there = (batch.weight > 0).to(batch.weight.dtype)
        found = supervised_contrast(rows, v[LABELS], there, settings.temperature)
        return settings.weight * found

    def personalise(self, updates: UserUpdates) -> Personal:
        """Return the merged group's table for its members, and new item clusters for all."""
        n_users = len(updates)
        mean = np.full((1, n_users), 1.0 / n_users)
        mean_table = updates.mixed("item_embedding", mean)[0].astype(np.float64)
        labels = clusters_of(
            mean_table, self.settings.clusters, seed=self.shapes.seed + updates.number
        )
        key = np.asarray(stream_key(self.shapes.seed, Purpose.GROUPS, updates.number))
        user, cluster = uniform(key, np.arange(2)).tolist()
        there = np.unique(labels)
        star = int(user * n_users)
        items = np.nonzero(labels == there[int(cluster * len(there))])[0]
        members = group(likeness(updates, star, items), star)
        merged = np.isin(np.arange(n_users), members)[None] / len(members)
        table_of = np.full(n_users, 1 if self.settings.others == "global" else -1)
        table_of[members] = 0
        return Personal(
            own={
                OWN: Mixture(
                    of="item_embedding",
                    weights=np.concatenate([merged, mean[: table_of.max()]]),
                    table_of=table_of,
                )
            },
            shared={LABELS: labels.astype(np.float64)},
        )


def likeness(updates: UserUpdates, star: int, items: NDArray[np.int64]) -> Floats:
    """Return s_u for each user u: the sum of the cosines of some items' rows with those of u*."""
    shape = updates.version.kept["item_embedding"].shape
    (of_star,) = _directions(updates.of_users("item_embedding", np.array([star]))[:, items])
    found = np.empty(len(updates))
    for part, tables in updates.blocks("item_embedding"):
        rows = _directions(tables.reshape(-1, *shape)[:, items])
        found[part] = np.einsum("uid,id->u", rows, of_star)
    return found


def _directions(rows: NDArray[np.floating]) -> Floats:
    """Return rows of length 1, or 0 for a row of zeros."""
    rows = rows.astype(np.float64)
    lengths = np.sqrt((rows * rows).sum(-1, keepdims=True))
    found: Floats = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return found


def group(alike: Floats, star: int) -> NDArray[np.int64]:
    """Return the users up to the elbow of their likeness in descending order, u* among them."""
    order = np.argsort(-alike, kind="stable")
    order = np.concatenate([[star], order[order != star]])
    y, x = alike[order], np.arange(len(alike))
    # The distances from the line, times its length.
    apart = np.abs((len(y) - 1) * (y[0] - y) - x * (y[0] - y[-1]))
    return order[: int(np.argmax(apart)) + 1]
