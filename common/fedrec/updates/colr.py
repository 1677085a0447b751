"""CoLR: low-rank updates within a subspace that is drawn anew in every round.

"Towards Efficient Communication and Secure Federated Recommendation System via Low-rank
Training" (CoLR), sections 4.1-4.2; the scaled orthonormal B and the sqrt(r/d) gradient factor
follow the released code, which the paper's N(0, 1/r) entries only approximate (same E[B^T B]).
At rank = dim the basis is orthonormal and CoLR equals FedMF exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.random_streams import Purpose, orthonormal_rows, stream_key
from fedrec.updates.paper_numbers import PaperNumbers
from fedrec.updates.update import UpdateStructure

if TYPE_CHECKING:
    from fedrec.updates.settings import UpdateSettings


class CoLR(UpdateStructure):
    """Freeze Q, draw B (rank x dim) from the public seed, train and send A (n_items x rank)."""

    name: ClassVar[str] = "colr"

    def __init__(self, settings: UpdateSettings, dim: int) -> None:
        super().__init__(settings, dim)
        self.rank = settings.rank

    @staticmethod
    def problem(settings: UpdateSettings, dim: int) -> str:
        """Return why the rank cannot work with `dim`, or an empty string."""
        if settings.rank <= dim:
            return ""
        return (
            f"update.rank is {settings.rank}, but algorithm.dim is {dim}; a rank is at most dim. "
            f'Lower update.rank to {dim} or less, or set update.structure = "dense".'
        )

    @property
    def width(self) -> int:
        """Values per item: the rank."""
        return self.rank

    def basis(self, seed: int, round_id: int) -> NDArray[np.float64]:
        """Return B = sqrt(dim / rank) x orthonormal rows, drawn from (seed, round)."""
        rows = orthonormal_rows(stream_key(seed, Purpose.BASIS, round_id), self.rank, self.dim)
        return rows * float(np.sqrt(self.dim / self.rank))

    def paper_numbers(self, n_items: int) -> PaperNumbers:
        """Return n_items x rank both ways; B comes from a seed."""
        size = n_items * self.rank
        return PaperNumbers(upload=size, download=size, payload=size)
