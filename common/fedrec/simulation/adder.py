"""What a simulated round does with the vectors of its clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Adder"]


class Adder(ABC):
    """Adds the vectors of a round."""

    @abstractmethod
    def add_up(self, vectors: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return the exact sum, int64 (length,)."""
