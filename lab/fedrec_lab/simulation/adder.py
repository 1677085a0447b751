"""What a simulated round does with the vectors of its clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedrec.protection import VectorSpec

__all__ = ["Adder"]


class Adder(ABC):
    """Adds the vectors of a round."""

    @abstractmethod
    def add_up(self, vectors: Sequence[NDArray[np.int64]], spec: VectorSpec) -> NDArray[np.int64]:
        """Return the exact sum, int64 (length,).

        Args:
            spec: what the round's vectors are.
        """
