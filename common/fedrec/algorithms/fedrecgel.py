"""FedRecGEL (Yu et al., WWW 2026): sharpness-aware gradients of NeuMF, as in the released code.

"Sharpness-Aware Minimization for Generalized Embedding Learning in Federated Recommendation".
`fedrec.algorithms.trained` has the four rules that no paper has.
A plain version is in tests/reference/plain_fedrecgel.py.

Model: a user has vectors p (dim) and u (width), an item rows q_i (dim) and e_i (width), with width
= dim 2^(`hidden_layers` - 1). h is the last units of `hidden_layers` layers over [u, e_i], each
with half as many outputs as inputs, and ReLU after each. Score s = <a, [p * q_i, h]> + b.

Private: theta_ur = [p, u], one tensor. Shared: theta_co, the rows [q_i, e_i], the layers, a and b.

Loss L: positives are shuffled, each followed by its negatives, and cut into chunks of `batch_size`
samples. The last chunk may be shorter. L is the *sum* over the chunks of the mean binary
cross-entropy. A round is one step by it, for any number of samples.

Client, with all gradients at the old values. g_ur and g_co are dL/dtheta_ur and dL/dtheta_co there,
each with one norm over its tensors. rho_ur = `radius_private` and rho_co = `radius_shared`:

    eps*_ur  = rho_ur g_ur / (|g_ur| + 1e-12)                            eq. 11, `uphill`
    g_ur^SAM = dL/dtheta_ur at (theta_co, theta_ur + eps*_ur)            eq. 12
    theta_ur <- Adam by g_ur^SAM at `user_learning_rate`                 eq. 13
    eps*_co  = rho_co g_co / (|g_co| + 1e-12)                            eq. 14, `uphill`
    g_co^SAM = dL/dtheta_co at (theta_co + eps*_co, theta_ur)            eq. 15, sent

The moments of the user's Adam continue from its last round. Radius 0 is plain Adam. The paper's
ablations set one of the radii to 0. Both can be 0, too, which the paper does not test.

Server (Algorithm 1, lines 9 and 10). The mean is `mean_changes` by users:

    g <- mean over participants of g_co^SAM
    theta_co <- dense Adam by g at `learning_rate`

Differences from the paper, whose figures come from the released code:

- The paper does not name NeuMF, which is the code's model.
- Eq. 13 and line 10 are plain descent. Section 5.1 names Adam, and the code has it on both sides.
  On the server its rate is 0.001, and the 1.5 of its settings file has no effect.
- Section 4.2 describes a weighted average. Algorithm 1 and the code weigh users alike.
- Algorithm 1 adds g_norm, the gradient of the PAC regulariser of eq. 10. Neither eq. 13 nor the
  code has it.
- Algorithm 1 updates theta_ur before it computes eps*_co. The code computes both at the old values.
- Section 5.1 has minibatches of 256 and embeddings of 32. The code has chunks of 128 and vectors u
  and e_i of 128.
- `item_clip` and `network_clip` replace `update.clip`. The paper and the code do not clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
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
        default=1,
        ge=1,
        le=1,
        description="Always 1: a round is one step over all of a user's samples.",
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

    settings_type: ClassVar[type[AlgorithmSettings]] = FedRecGELSettings
    about: ClassVar[About] = ABOUT["fedrecgel"]

    @cached_property
    def _moving(self) -> tuple[Parameter, ...]:
        """theta_co: rows N(0, .01^2), biases 0, and weights uniform within +-bound.

        The bound is Xavier's sqrt(6 / (inputs + outputs)) for hidden layers. For the last one it is
        He's with gain 1, sqrt(3 / inputs), where the inputs are 2 dim.
        """
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
        layers.append(((1, 2 * dim), Uniform(math.sqrt(3.0 / (2 * dim)))))
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

    @cached_property
    def _server(self) -> SharedAdam:
        return SharedAdam(self.settings.learning_rate, self._moving)

    @cached_property
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
        epochs = settings.local_epochs
        return (Phase(steps=((shared, own),), epochs=epochs, sums_minibatches=True),)

    def score(self, v: Values) -> torch.Tensor:
        """Return <a, [p * q_i, h]> + b."""
        import torch

        dim, n_hidden = self.settings.dim, self.settings.hidden_layers
        p, u = torch.split(v.user_embedding, [dim, self._width], -1)
        q, e = torch.split(v.item_embedding, [dim, self._width], -1)
        a, b = v[f"weight_{n_hidden + 1}"], v[f"bias_{n_hidden + 1}"]
        a_mf, a_mlp = torch.split(a, [dim, dim], -1)
        h = units(v, u, e, n_hidden)
        # <a_mf, p * q> + <a_mlp, h> + b
        return dot(q, p * a_mf[:, 0]) + (h * a_mlp).sum(-1) + b

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Take one step by the mean gradient. Moments move untouched rows, too."""
        return self._server.step(shared, self.sent.mean_changes(change, counts, round_id))


def uphill(radius: float) -> Passes | None:
    """Return sharpness-aware passes: gradients at theta + eps*, eps* = radius g / (|g| + 1e-12).

    |g| is a user's norm over all tensors together (Foret et al. 2021). None for radius 0.
    """

    def passes(theta: Tensors, g: Tensors, gradient_at: Callable[[Tensors], Tensors]) -> Tensors:
        import torch

        size = radius / (length(g) + 1e-12)
        return gradient_at({n: torch.addcmul(theta[n], g[n], wide(size, g[n])) for n in g})

    return passes if radius else None
