"""The algorithm seam: which tensors are private, which are shared, and how shared ones combine.

An algorithm's client half (`initial_private`, `fit`, `scores`) and server half (`initial_shared`,
`apply`) stand side by side, because the algorithm is the contract between them. `apply` is pure
numpy in a fixed order, so that whoever holds the plaintext runs it and gets the same bits;
torch is imported by the client half only, when it trains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedrec.config.schema import Plan
from fedrec.training.state import PrivateState, SharedState
from fedrec.updates import UpdateStructure

if TYPE_CHECKING:
    import torch

    from fedrec.training.cohort import Chunk
    from fedrec.training.grid import GridSum

__all__ = ["Algorithm", "ChunkResult", "Parameter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A tensor of the model.

    Attributes:
        shape: names of its axes, e.g. ("n_items", "dim").
        scope: "shared" travels (protected); "private" never leaves its client.
    """

    name: str
    shape: tuple[str, ...]
    scope: Literal["shared", "private"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """What local training of a chunk leaves behind besides the summed change.

    Attributes:
        private: new private tensors of the chunk's users, by name, first axis n_users.
        loss: mean training loss of each user, float32 (n_users,).
        clipped: how many of each user's values had to be clipped, int64 (n_users,).
    """

    private: dict[str, torch.Tensor]
    loss: torch.Tensor
    clipped: torch.Tensor


class Algorithm(ABC):
    """A federated recommender; see the module's docstring for who runs which method."""

    name: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]]

    def __init__(self, plan: Plan, structure: UpdateStructure, n_items: int) -> None:
        self.plan = plan
        self.structure = structure
        self.n_items = n_items

    @abstractmethod
    def initial_shared(self) -> SharedState:
        """Return the first version of the shared model, drawn from the run's public seed."""

    @abstractmethod
    def initial_private(self, user_keys: NDArray[np.int64]) -> PrivateState:
        """Return the private parameters of users who have never trained."""

    @abstractmethod
    def bytes_per_user(self, n_active: int) -> int:
        """Return the memory that training takes for each user of a chunk."""

    @abstractmethod
    def fit(
        self,
        chunk: Chunk,
        items: torch.Tensor,
        basis: torch.Tensor | None,
        private: dict[str, torch.Tensor],
        total: GridSum,
        round_id: int,
    ) -> ChunkResult:
        """Train a chunk of users and add their rounded changes to `total`.

        Args:
            items: the shared table's active rows, float32 (n_active, dim).
            basis: B of the update structure, float32 (width, dim), or None for the identity.
            private: the users' private tensors, first axis n_users.
            total: takes the change of every touched row and counts it; active positions.
        """

    @abstractmethod
    def scores(self, items: torch.Tensor, private: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the preference of users for items, float32 (n_users, n_active)."""

    @abstractmethod
    def apply(
        self,
        shared: SharedState,
        change: NDArray[np.float64],
        counts: NDArray[np.int64],
        basis: NDArray[np.float64] | None,
    ) -> SharedState:
        """Return the next version of the shared model.

        Args:
            change: summed A over all users, n_items x width.
            counts: users who touched each item, n_items.
        """
