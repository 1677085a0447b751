"""FedRecGEL: sharpness-aware federated recommendation, following the authors' released code.

Model, NeuMF: a user has vectors p (f) and u (w), an item rows q_i (f) and e_i (w), with f = `dim`,
L = `hidden_layers` and w = f 2^(L-1). h = the L layers' units of [u, e_i]. The first layer has 2 w
inputs, each has half as many outputs as inputs, and ReLU follows each. Score s = <a, [p * q_i, h]>
+ b. Private: p and u, one tensor [p, u]. Shared: the rows [q_i, e_i], the layers, a and b.

Loss: positives are shuffled, each followed by its negatives, and cut into chunks of `batch_size`
samples. The last chunk may be shorter. L is the *sum* over the chunks of the mean binary
cross-entropy. A round is one step by it, for any number of samples.

Client, with g = dL/dp and G = dL/dQ at the old values. Here p means all private and Q all shared
tensors, each with one norm over its tensors:

    G' = dL/dQ at (p, Q + `radius_shared` G / (|G| + 1e-12)),
    g' = dL/dp at (p + `radius_private` g / (|g| + 1e-12), Q).

p takes a step of Adam by g' at `user_learning_rate`, whose moments continue from the user's last
round. G' is sent. Radius 0 is plain Adam. The paper's ablations set one of the radii to 0. Both can
be 0, too, which the paper does not test.

Server: a dense step of Adam at `learning_rate` by the unweighted mean of G' over the users.

Paper and code differ, and the paper's figures come from the code. On the server, the code has Adam
at 0.001, while the paper writes plain descent (and its settings file 1.5). The code has no gradient
of the paper's PAC regulariser, and both perturbations are at the old values. It has chunks of 128
and MLP rows of 128, while the paper has minibatches of 256 and embeddings of 32. Unlike in the
code, a positive's negatives may repeat here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.batch import Values, dot, layer_shapes, length, units, wide
from fedrec.algorithms.declarations import (
    About,
    AlgorithmSettings,
    Constant,
    Initial,
    Normal,
    Parameter,
    Positive,
    SearchSpace,
    Uniform,
)
from fedrec.algorithms.optimisers import (
    Adam,
    Gradient,
    Passes,
    Phase,
    SharedAdam,
    Tensors,
    own_moments,
)
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings
from fedrec.model.state import SharedState

if TYPE_CHECKING:
    import torch


_Radius = Annotated[float, Field(ge=0, le=10)]
_Bits = Annotated[int, Field(ge=4, le=40)]


class FedRecGELSettings(TrainedSettings):
    """FedRecGEL: sharpness-aware gradients of NeuMF, and Adam on the server."""

    name: Literal["fedrecgel"] = Field(default="fedrecgel", description="Which algorithm trains.")
    dim: int = Field(
        default=32,
        ge=1,
        le=256,
        description="Length of the factorisation's vectors, and units of the last hidden layer.",
    )
    hidden_layers: int = Field(
        default=3,
        ge=1,
        le=6,
        description="Number of layers before the last, each half as wide as the one before. The "
        "network's vectors have dim x 2^(hidden_layers - 1) values.",
    )
    learning_rate: float = Field(
        default=0.001, gt=0, le=10, description="Step size of Adam on the shared model."
    )
    user_learning_rate: float = Field(
        default=0.1, gt=0, le=10, description="Step size of Adam on each user's parameters."
    )
    radius_shared: _Radius = Field(
        default=0.02,
        description="Distance uphill of the shared gradient's point. 0 turns this half off.",
    )
    radius_private: _Radius = Field(
        default=0.02,
        description="Distance uphill of a user's own gradient's point. 0 turns this half off.",
    )
    local_epochs: int = Field(
        default=1, ge=1, le=1, description="A round is one step by all of a user's samples."
    )
    batch_size: int = Field(
        default=128,
        ge=1,
        le=8192,
        description="Samples in a chunk. The loss is the sum over chunks of their mean losses.",
    )
    item_clip: Positive = Field(
        default=0.25,
        description="Every value of a user's gradient of item rows is clipped to [-item_clip, "
        "item_clip], a public range.",
    )
    item_fraction_bits: _Bits = Field(
        default=32,
        description="The gradient of rows is rounded to multiples of item_clip x "
        "2^-item_fraction_bits.",
    )
    network_clip: Positive = Field(default=32.0, description="Like item_clip, for the network.")
    network_fraction_bits: _Bits = Field(
        default=38, description="Like item_fraction_bits, for the network."
    )

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        return {
            "algorithm.dim": (16, 32, 64),
            "algorithm.learning_rate": (0.0003, 0.001, 0.003, 0.01),
            "algorithm.user_learning_rate": (0.01, 0.03, 0.1, 0.3),
            "algorithm.radius_shared": (0.02, 0.06, 0.2),
            "algorithm.radius_private": (0.02, 0.06, 0.2),
            "rounds.total": (60,),
        }


class FedRecGEL(TrainedAlgorithm):
    """NeuMF whose shared part moves by sharpness-aware gradients. See the module's docstring."""

    settings: FedRecGELSettings

    name: ClassVar[str] = "fedrecgel"
    settings_type: ClassVar[type[AlgorithmSettings]] = FedRecGELSettings
    about: ClassVar[About] = ABOUT["fedrecgel"]
    sums_minibatches: ClassVar[bool] = True

    @property
    def _moving(self) -> tuple[Parameter, ...]:
        """The shared parameters: rows N(0, .01^2), layers by Xavier's and He's rules, biases 0."""
        settings, dim = self.settings, self.settings.dim
        width, n_hidden = self._width, settings.hidden_layers
        rows = Parameter("item_embedding", "rows", (dim + width,), Normal(0.01))
        clip, bits = settings.item_clip, settings.item_fraction_bits
        rows = replace(rows, limit=clip, fraction_bits=bits)
        outputs = [width >> layer for layer in range(n_hidden)]
        layers: list[tuple[tuple[int, int], Initial]] = [
            (shape, Uniform(math.sqrt(6.0 / sum(shape))))
            for shape in layer_shapes(2 * width, outputs)
        ]
        layers.append(((1, 2 * dim), Uniform(math.sqrt(1.5 / dim))))
        network = [
            Parameter(
                f"{kind}_{number}",
                "net",
                shape if kind == "weight" else shape[:1],
                initial if kind == "weight" else Constant(),
                limit=settings.network_clip,
                fraction_bits=settings.network_fraction_bits,
            )
            for number, (shape, initial) in enumerate(layers, start=1)
            for kind in ("weight", "bias")
        ]
        return (rows, *network)

    @property
    def _width(self) -> int:
        """The length of the network's half of a vector."""
        return self.settings.dim << (self.settings.hidden_layers - 1)

    @property
    def _server(self) -> SharedAdam:
        return SharedAdam(self.settings.learning_rate, self._moving)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The model, and the moments of both Adams."""
        vector = Parameter(
            "user_embedding", "own", (self.settings.dim + self._width,), Normal(0.01)
        )
        return (*self._moving, *self._server.parameters, vector, *own_moments(vector))

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return both gradients, each computed uphill of the same old values."""
        settings = self.settings
        names = tuple(entry.name for entry in self._moving)
        rates = {"user_embedding": settings.user_learning_rate}
        shared = Gradient(names, passes=uphill(settings.radius_shared))
        own = Adam(rates, kept=True, passes=uphill(settings.radius_private))
        return (Phase(steps=((shared, own),), epochs=settings.local_epochs),)

    def score(self, v: Values) -> torch.Tensor:
        """Return <a, [p * q_i, h]> + b."""
        import torch

        dim, n_hidden = self.settings.dim, self.settings.hidden_layers
        users, of_user = torch.split(v.user_embedding, [dim, self._width], -1)
        items, of_item = torch.split(v.item_embedding, [dim, self._width], -1)
        weight, bias = v[f"weight_{n_hidden + 1}"], v[f"bias_{n_hidden + 1}"]
        of_factors, of_units = torch.split(weight, [dim, dim], -1)
        hidden = units(v, of_user, of_item, n_hidden)
        return dot(items, users * of_factors[:, 0]) + (hidden * of_units).sum(-1) + bias

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Take one step by the mean gradient. Moments move untouched rows, too."""
        return self._server.step(shared, self.mean(change, counts, round_id))


def uphill(radius: float) -> Passes | None:
    """Return sharpness-aware passes: the gradient after a step uphill of this length.

    A user's direction is that of all tensors together (Foret et al. 2021). None for radius 0.
    """

    def passes(values: Tensors, gradients: Tensors, at: Callable[[Tensors], Tensors]) -> Tensors:
        import torch

        size = radius / (length(gradients) + 1e-12)
        return at({n: torch.addcmul(values[n], g, wide(size, g)) for n, g in gradients.items()})

    return passes if radius else None
