"""First values of parameters: drawn from the public seed, the same bits on every machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedrec.random_streams import normal, uniform

__all__ = ["Constant", "Initial", "Normal", "Uniform"]


class Initial(Protocol):
    """How a parameter begins."""

    def draw(self, keys: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return float64 values.

        Args:
            keys: a stream for each index of the first axis, or one for the whole tensor (no axes).
            shape: of the result.
        """


@dataclass(frozen=True, slots=True)
class Normal:
    """Entries N(0, deviation^2)."""

    deviation: float = 1.0

    def draw(self, keys: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return values; see `Initial`."""
        return normal(keys, shape) * self.deviation


@dataclass(frozen=True, slots=True)
class Uniform:
    """Entries uniform between -width and width."""

    width: float

    def draw(self, keys: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return values; see `Initial`."""
        lead = keys.ndim
        rest = math.prod(shape[lead:])
        drawn = uniform(keys.reshape(*keys.shape, 1), np.arange(rest))
        return (2.0 * drawn - 1.0).reshape(shape) * self.width


@dataclass(frozen=True, slots=True)
class Constant:
    """One value everywhere."""

    value: float = 0.0

    def draw(self, keys: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return values; see `Initial`."""
        return np.full(shape, self.value)
