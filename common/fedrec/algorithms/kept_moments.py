"""Adam whose moments outlive a round: a user's own, and that of the party that runs `apply`.

Letters: m the mean of gradients g, v that of their squares, b1 and b2 what each keeps of itself
(0.9 and 0.999), eps 1e-8, t the steps so far. A step of size eta (Kingma and Ba 2015, algorithm 1):

    m <- b1 m + (1 - b1) g,    v <- b2 v + (1 - b2) g^2,
    x <- x - eta / (1 - b1^t)  m / (sqrt(v) / sqrt(1 - b2^t) + eps).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.declarations import Parameter
from fedrec.algorithms.initial import Constant
from fedrec.algorithms.optimisers import MEAN_KEPT, SMALL, SQUARE_KEPT
from fedrec.model.state import SharedState

__all__ = ["SharedAdam", "own_moments"]


def own_moments(entry: Parameter) -> tuple[Parameter, ...]:
    """Return what `Adam(kept=True)` keeps of a user's parameter, in the order that it reads them.

    That is m and v, and 1 - b1^t and 1 - b2^t: the means of a gradient that is always 1, so that
    each user counts the rounds it was in, and float32 keeps the digits of a small difference.

    Args:
        entry: of scope `own`.
    """
    name = entry.name
    return (
        Parameter(f"{name}_mean", "own", entry.shape, Constant()),
        Parameter(f"{name}_square", "own", entry.shape, Constant()),
        Parameter(f"{name}_mean_weight", "own", (), Constant()),
        Parameter(f"{name}_square_weight", "own", (), Constant()),
    )


class SharedAdam:
    """Adam on shared parameters, for `apply`: the same bits on every machine.

    It is dense: rows that nobody touched go on by their moments. In float64, elementwise; b1^t and
    b2^t are products that the state keeps, because powers differ between libraries.

    Args:
        rate: eta.
        moved: the parameters.
    """

    def __init__(self, rate: float, moved: Sequence[Parameter]) -> None:
        self._rate, self._moved = rate, tuple(moved)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a version keeps for it."""
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
