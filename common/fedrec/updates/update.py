"""The update structure: what is trained and sent in place of a full item table.

The effective item table of a user in a round is ``Q + A B``: Q (n_items x dim) is the published
table, B (width x dim) is fixed for the round, A (n_items x width) starts at zero, is trained by
every user on its own and is what travels. For `dense`, B is the identity.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import SettingsError

if TYPE_CHECKING:
    from fedrec.config.schema import UpdateSettings

__all__ = ["UpdateStructure"]


class UpdateStructure(ABC):
    """Width, basis and merging of an update; pure numpy, the same bits on every machine."""

    name: ClassVar[str]

    def __init__(self, settings: UpdateSettings, dim: int) -> None:
        self.dim = dim
        problem = self.problem(settings, dim)
        if problem:
            raise SettingsError(problem)

    @staticmethod
    def problem(settings: UpdateSettings, dim: int) -> str:
        """Return why these settings cannot work with `dim`, or an empty string."""
        return ""

    @property
    @abstractmethod
    def width(self) -> int:
        """Values per item that are trained and sent."""

    @abstractmethod
    def basis(self, seed: int, round_id: int) -> NDArray[np.float64] | None:
        """Return B (width x dim) of a round, or None where it is the identity.

        B B^T = (dim / width) I always holds; trainers rely on it.
        """

    def merge(
        self,
        table: NDArray[np.float64],
        change: NDArray[np.float64],
        basis: NDArray[np.float64] | None,
    ) -> NDArray[np.float64]:
        """Return table + change B, in a fixed order of elementwise operations.

        Args:
            table: Q, n_items x dim.
            change: A, n_items x width.
            basis: B, width x dim, or None for the identity.
        """
        if basis is None:
            return table + change
        merged = table.copy()
        for index in range(basis.shape[0]):
            merged += change[:, index, None] * basis[index]
        return merged
