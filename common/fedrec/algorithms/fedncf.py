"""FedNCF: "Federated Neural Collaborative Filtering" (Perifanis and Efraimidis 2022).

Model: x = [p, q_i] of a private user vector p (dim) and an item row q_i (dim). Three layers of 32,
16 and 8 units with ReLU follow. The score is s = <w, h> + b of the last layer's units h. Loss: mean
binary cross-entropy of a minibatch, negatives sampled. Private: p. Shared: item table Q and
network.

The paper's code was not found. Network, sizes and rates are those of GPFedRec, which measures
FedNCF as a baseline. Client, for every minibatch of b samples: one simultaneous step by the
gradient of the mean loss, by default plain SGD without momentum and decay:

    network by eta,    p by eta `user_rate_scale`,    q_i by eta N `item_rate_scale`,

where eta is `learning_rate` and N the number of items of the whole catalogue, including items with
too few holders to be trained. With `optimiser = "adam"`, Adam updates all parameters with step size
eta and moments that begin at zero in every round. `weight_decay` is L2 on the network, p and the
rows that a user touches in the round, in each of its minibatches, like a dense optimiser's.
Untouched rows are not sent, so their decay would have no effect. Under `plain` it would change
every row of every user, and is refused.

Server, `aggregation = "mf_secavg"` (the paper): row i of Q moves by the mean change of the users
that touched it (`mean_changes` by holders). The network moves by the mean weighted by each user's
number of training items (`mean_changes` by samples).
Here a user counts for at most 4096 of them, which gives its contribution a public bound.
`aggregation = "plain"` (as later papers measure it): the uniform mean of everything over all
participants, untouched rows included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.batch import Values, layer_shapes, units
from fedrec.algorithms.declarations import (
    About,
    AlgorithmSettings,
    Normal,
    Parameter,
    Positive,
    Rate,
    SearchSpace,
    Shapes,
    Uniform,
)
from fedrec.algorithms.optimisers import Adam, Phase, Sgd
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings
from fedrec.errors import SettingsError
from fedrec.section import Rule

if TYPE_CHECKING:
    import torch


UNITS = (32, 16, 8, 1)
"""Outputs of the layers."""


class FedNCFSettings(TrainedSettings):
    """FedNCF: a shared network scores user and item vectors."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("weight_decay", "aggregation"),
            lambda section: not section.weight_decay or section.aggregation == "mf_secavg",
            '{path}.weight_decay is {s.weight_decay:g} with aggregation = "plain", under which it '
            "would move every row of every user. Set weight_decay = 0 or aggregation = "
            '"mf_secavg".',
        ),
    )

    name: Literal["fedncf"] = Field(default="fedncf", description="Which algorithm trains.")
    dim: int = Field(default=32, ge=1, le=512, description="Length of an embedding vector.")
    learning_rate: Rate = Field(default=0.1, description="Step size (eta) of the network.")
    optimiser: Literal["sgd", "adam"] = Field(
        default="sgd", description="adam moves users, rows and network all by eta. 0.001 is usual."
    )
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="L2 coefficient on a user's vector, touched rows and network. Published: 0.",
    )
    user_rate_scale: Positive = Field(
        default=80.0, description="The step size of users is eta x this (sgd)."
    )
    item_rate_scale: Positive = Field(
        default=80.0,
        description="The step size of item rows is eta x items of the catalogue x this (sgd).",
    )
    batch_size: int = Field(default=256, ge=1, le=8192, description="Samples in a minibatch.")
    aggregation: Literal["mf_secavg", "plain"] = Field(
        default="mf_secavg",
        description="mf_secavg divides rows by the users that touched them and weights networks by "
        "training items. plain is the uniform mean of all parameters.",
    )
    network_clip: Positive = Field(default=1.0, description="Like update.clip, for the network.")

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        found: SearchSpace = {"algorithm.dim": (16, 32, 64), "rounds.total": (60,)}
        if self.optimiser == "adam":
            return {**found, "algorithm.learning_rate": (0.0003, 0.001, 0.003, 0.01)}
        return {
            **found,
            "algorithm.learning_rate": (0.03, 0.1, 0.3),
            "algorithm.user_rate_scale": (20.0, 80.0, 320.0),
            "algorithm.item_rate_scale": (20.0, 80.0, 320.0),
        }


class FedNCF(TrainedAlgorithm):
    """A shared network over private users and shared items. See the module's docstring."""

    settings: FedNCFSettings

    settings_type: ClassVar[type[AlgorithmSettings]] = FedNCFSettings
    about: ClassVar[About] = ABOUT["fedncf"]

    def __init__(self, settings: AlgorithmSettings, shapes: Shapes) -> None:
        super().__init__(settings, shapes)
        largest, decay = max(self.rates.values()), self.settings.weight_decay
        if self.settings.optimiser == "sgd" and largest * decay > 1.0:
            raise SettingsError(
                f"algorithm.weight_decay is {decay:g}, which at a step size of {largest:g} flips "
                "the signs of values in each minibatch.",
                remedy="Lower algorithm.weight_decay or algorithm.item_rate_scale.",
            )

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Q and p with entries N(0, 1), layers uniform in +-1/sqrt(inputs)."""
        dim, weighs = self.settings.dim, self.settings.aggregation == "mf_secavg"
        network = []
        for layer, (outputs, inputs) in enumerate(layer_shapes(2 * dim, UNITS), start=1):
            for name, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
                network.append(
                    Parameter(
                        f"{name}_{layer}",
                        "net",
                        shape,
                        Uniform(1.0 / math.sqrt(inputs)),
                        limit=self.settings.network_clip,
                        mean="samples" if weighs else "users",
                    )
                )
        return (
            Parameter("item_embedding", "rows", (dim,), mean="holders" if weighs else "users"),
            *network,
            Parameter("user_embedding", "own", (dim,), Normal()),
        )

    @property
    def rates(self) -> dict[str, float]:
        """Step sizes by parameter."""
        settings, eta = self.settings, self.settings.learning_rate
        rates = {entry.name: eta for entry in self.parameters}
        if settings.optimiser == "sgd":
            rates["user_embedding"] = eta * settings.user_rate_scale
            rates["item_embedding"] = eta * self.shapes.n_items * settings.item_rate_scale
        return rates

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return one simultaneous step per minibatch."""
        rule = Adam if self.settings.optimiser == "adam" else Sgd
        step = rule(self.rates, decay=self.settings.weight_decay)
        return (Phase(steps=((step,),), epochs=self.settings.local_epochs),)

    def score(self, v: Values) -> torch.Tensor:
        """Return the network's scores."""
        hidden = units(v, v.user_embedding, v.item_embedding, len(UNITS) - 1)
        return (hidden * v.weight_4).sum(-1) + v.bias_4
