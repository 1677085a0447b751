"""Full item rows: A has the table's own shape and B is the identity."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.updates.paper_numbers import PaperNumbers
from fedrec.updates.update import UpdateStructure

__all__ = ["Dense"]


class Dense(UpdateStructure):
    """Train and send the whole change of every item row (n_items x dim values)."""

    name: ClassVar[str] = "dense"

    @property
    def width(self) -> int:
        """Values per item: dim."""
        return self.dim

    def basis(self, seed: int, round_id: int) -> NDArray[np.float64] | None:
        """Return None: the basis is the identity."""
        return None

    def paper_numbers(self, n_items: int) -> PaperNumbers:
        """Return n_items x dim both ways."""
        size = n_items * self.dim
        return PaperNumbers(upload=size, download=size, payload=size)
