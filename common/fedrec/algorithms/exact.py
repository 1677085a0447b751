"""Algorithms without training steps: users' contributions follow from their data and a version.

Only the count round counts users then, and all rounds cover its participants. Otherwise, the
difference of two rounds would be that of their users.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from fedrec.algorithms.algorithm import Algorithm, ChunkResult, RoundStart
from fedrec.model.state import SharedState

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums


class ExactAlgorithm(Algorithm):
    """An algorithm that sums statistics of its users. See the module's docstring.

    Attributes:
        one_release: whether under noise all rounds' sums are parts of one release. A user's
            contributions to all rounds together are clipped once, and each value travels once.
        sums_version: incremented whenever contributions or what follows from sums change. Parties
            and runs with another one are refused. With 1, the training path is the trainer's.
    """

    one_release: ClassVar[bool] = False
    sums_version: ClassVar[int] = 1

    @abstractmethod
    def fit(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Add the contributions of a chunk of users to `sums`.

        Args:
            private: the users' private tensors (refreshed), first axis n_users.
        """

    def candidates(self, shared: SharedState) -> Iterable[SharedState]:
        """Return the candidates for the next version, from which its round chooses on validation.

        If there are any, the round's update has the tensor `GRADES`: for each candidate the sum of
        all users' gains, in the order of the candidates. `apply` chooses.
        """
        return ()
