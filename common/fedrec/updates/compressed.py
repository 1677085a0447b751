"""Compression after training: full rows are trained, and what is sent is made smaller.

As the CoLR paper's baselines do it, both ways: a user's change is compressed before it is
clipped, rounded and summed; the mean change is compressed again by every party that applies it, so
that everybody goes on from the same Q. Nothing is carried over to the next round.

`update.compress` = "user" is the papers' (where a client is a user); sums do not depend on how
users are grouped. With "client" a silo compresses the sum of its users' changes: what is lost
depends on who is in which silo.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedrec.updates.update import Dense

if TYPE_CHECKING:
    import torch

    from fedrec.updates.settings import UpdateSettings


class Compressed(Dense):
    """A dense update that is compressed.

    Attributes:
        by: whose change is compressed before it is sent, a user's or a client's.
    """

    def __init__(self, settings: UpdateSettings, dim: int) -> None:
        super().__init__(settings, dim)
        self.by = settings.compress

    @staticmethod
    def warnings(settings: UpdateSettings) -> list[str]:
        """Say what compression does not save, and what `compress` = "client" costs."""
        found = [
            f'update.structure = "{settings.structure}" compresses what is learned, not what is '
            'sent: the vector is as long as under "dense". Use "colr" for smaller messages.'
        ]
        if settings.compress == "client":
            found.append(
                'update.compress = "client": each client compresses the sum of its users\' '
                "changes, so that results depend on how users are grouped into clients."
            )
        return found

    @abstractmethod
    def compress(self, change: NDArray[np.float64], n_items: int) -> NDArray[np.float64]:
        """Return what is left of a change, the same bits on every machine.

        Args:
            change: the rows of active items (n_active, dim); those of others are zero.
            n_items: rows of the whole table.
        """

    @abstractmethod
    def compress_each(self, rows: torch.Tensor, n_items: int) -> torch.Tensor:
        """Return what is left of users' changes, each on its own.

        A user's result does not depend on the others.

        Args:
            rows: float32 (n_users, n_rows, dim), the rows that a user touched in ascending order
                of items, zeros behind them.
            n_items: rows of the whole table.
        """
