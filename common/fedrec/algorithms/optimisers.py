"""Declarations of local training: which parameters move, by which rule and with which memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.declarations import Constant, Parameter
from fedrec.model.state import SharedState

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]
Passes = Callable[[Tensors, Tensors, Callable[[Tensors], Tensors]], Tensors]
"""Returns the gradients that the optimiser uses.

It takes the values that the optimiser moves, their gradients, and a function that returns
the gradients at other values. The first axis of all is the user.
"""

MEAN_KEPT, SQUARE_KEPT, SMALL = 0.9, 0.999, 1e-8
"""torch.optim.Adam's defaults: betas and eps."""


@dataclass(frozen=True, slots=True)
class Sgd:
    """value <- value - rate factor^b (shrunk(gradient, longest) + N(0, noise^2) + decay value).

    b = 0, 1, ... counts a user's minibatches of the phase. This is the gradient of
    decay/2 |value|^2.

    Attributes:
        rates: step sizes by parameter.
        decay: L2 coefficient.
        toward: own rows, such as received ones, by own rows that decay to them and not to 0. For
            these, `decay value` above is `decay (value - toward)`, and nothing else of `rates`
            decays.
        whole: whether decay also moves rows that a user does not touch in the round. Those take no
            single steps. See `fedrec.algorithms.whole_decay`.
        factor: the factor of the rates after every minibatch.
        per_occurrence: whether an item row moves by the mean over its own samples in the minibatch,
            and not by its share of the mean over all samples.
        passes: further passes that compute the gradient of its step, or None.
        longest: a user's longer gradient of a minibatch (L2 norm over all of `rates`) is shrunk to
            this length, before decay. 0 for no limit.
        noise: deviation of the Gaussian noise that is added to every value of a gradient after
            that, from a cryptographic source. 0 for none. With noise, a user steps all active rows,
            touched or not: its change must not show which rows it touched.
    """

    rates: Mapping[str, float]
    decay: float = 0.0
    toward: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False
    factor: float = 1.0
    per_occurrence: bool = False
    longest: float = 0.0
    noise: float = 0.0
    passes: Passes | None = None


@dataclass(frozen=True, slots=True)
class Adam:
    """Kingma and Ba (2015), algorithm 1, with torch's defaults for its moments.

    Attributes:
        rates: step sizes by parameter.
        decay: L2 coefficient, added to the gradient.
        longest, passes: the same as in `Sgd`.
        kept: whether moments continue from a user's last round, in private parameters that
            `fedrec.algorithms.optimisers.own_moments` declares. Otherwise they begin at zero in
            every round.
    """

    rates: Mapping[str, float]
    decay: float = 0.0
    longest: float = 0.0
    kept: bool = False
    passes: Passes | None = None


@dataclass(frozen=True, slots=True)
class Gradient:
    """The values stay the same, and a user sends the sum of its minibatches' gradients.

    The sum starts at zero: as a change of large values it would lose the bits of a small gradient.

    Attributes:
        names: shared parameters that no other optimiser of the round moves.
        passes: as in `Sgd`.
    """

    names: tuple[str, ...]
    passes: Passes | None = None
    decay: ClassVar[float] = 0.0

    @property
    def rates(self) -> Mapping[str, float]:
        """A step size of 1 for each of `names`."""
        return dict.fromkeys(self.names, 1.0)


Optimiser = Sgd | Adam | Gradient


@dataclass(frozen=True, slots=True)
class Phase:
    """Passes over a user's samples.

    Attributes:
        steps: the steps for every minibatch, one after the other. The optimisers within one step
            take their gradients from the same values.
        epochs: number of passes. The shuffles of a later phase continue from those of the phases
            before it.
        tolerance: a user whose mean loss over the phase changed relatively less than this in an
            epoch stops for the rest of the round. 0 for never.
        name: the value of `v.phase` in `loss`.
        sums_minibatches: whether a pass is one step, by the sum of all minibatches' losses. Then
            positives are shuffled, each followed by its negatives, and cut into minibatches.
            `batch.weighted_sum` is the sum of the minibatches' means. The same in all phases.
        steps_every_row: whether a user steps all active rows, touched or not, as its terms are
            about whole tables. Then `batch.there` is set. The same in all phases.
    """

    steps: tuple[tuple[Optimiser, ...], ...]
    epochs: int
    tolerance: float = 0.0
    name: str = ""
    sums_minibatches: bool = False
    steps_every_row: bool = False

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        """The optimisers of all steps."""
        return tuple(optimiser for step in self.steps for optimiser in step)


def own_moments(entry: Parameter) -> tuple[Parameter, ...]:
    """Return the tensors that `Adam(kept=True)` keeps for a user's parameter, in reading order.

    These are m and v, and 1 - b1^t and 1 - b2^t, which are the means of a gradient that is always
    1. Each user thus counts its own rounds, and float32 keeps the digits of a small difference.

    Args:
        entry: a parameter of scope `own`.
    """
    shapes = {"mean": entry.shape, "square": entry.shape, "mean_weight": (), "square_weight": ()}
    return tuple(
        Parameter(f"{entry.name}_{kind}", "own", shape, Constant(), applied=True)
        for kind, shape in shapes.items()
    )


class SharedAdam:
    """Adam on shared parameters, for `apply`: the same bits on every machine.

    It is dense: untouched rows continue to move by their moments. It works in float64, elementwise.
    The state keeps b1^t and b2^t as products, because powers differ between libraries.

    Args:
        rate: eta.
        moved: the parameters.
    """

    def __init__(self, rate: float, moved: Sequence[Parameter]) -> None:
        self._rate, self._moved = rate, tuple(moved)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The tensors that a version keeps for it."""
        moments = [
            Parameter(f"{entry.name}_{kind}", entry.scope, entry.shape, Constant(), applied=True)
            for entry in self._moved
            for kind in ("mean", "square")
        ]
        powers = [
            Parameter(name, "scalar", (), Constant(1.0), applied=True)
            for name in ("mean_power", "square_power")
        ]
        return (*moments, *powers)

    def step(
        self, shared: SharedState, gradients: Mapping[str, NDArray[np.float64]]
    ) -> SharedState:
        """Return the version after one step."""
        before = shared.tensors
        mean_power = float(before["mean_power"]) * MEAN_KEPT
        square_power = float(before["square_power"]) * SQUARE_KEPT
        size, scale = self._rate / (1.0 - mean_power), math.sqrt(1.0 - square_power)
        found: dict[str, NDArray[np.float64]] = {
            "mean_power": np.asarray(mean_power),
            "square_power": np.asarray(square_power),
        }
        for entry in self._moved:
            name, gradient = entry.name, gradients[entry.name]
            mean = before[f"{name}_mean"] * MEAN_KEPT + gradient * (1.0 - MEAN_KEPT)
            square = before[f"{name}_square"] * SQUARE_KEPT
            square = square + gradient * gradient * (1.0 - SQUARE_KEPT)
            found[name] = before[name] - size * (mean / (np.sqrt(square) / scale + SMALL))
            found |= {f"{name}_mean": mean, f"{name}_square": square}
        return shared.with_tensors(**found)
