"""The update structure: what is trained and sent in place of a full item table, or all of it.

What the CoLR paper counts as the size of a message, and how long its link takes for it: Table 2 of
the paper multiplies numbers of 4 bytes with rounds and divides by the speeds of one link. Nothing
of it is what this package sends: that is the whole vector of an update, counts and metrics
included, under its protection (`fedrec check` prints both).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import SettingsError

if TYPE_CHECKING:
    import torch

    from fedrec.updates.settings import UpdateSettings

_BYTES_PER_NUMBER = 4
_UPLINK_MIB_PER_SECOND = 0.25
_DOWNLINK_MIB_PER_SECOND = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperNumbers:
    """Numbers in a message of one client and one round, in the clear.

    Attributes:
        upload: numbers that the paper counts upwards; a mean where clients differ.
        download: numbers that it counts downwards.
        payload: numbers of an upload that a receiver could decode; masks and seeds left out.
    """

    upload: int
    download: int
    payload: int

    def link_minutes(self, n_rounds: int) -> float:
        """Return T = R S (1 / 0.75 + 1 / 0.25) / 60 of the paper's Table 2, in minutes.

        S is the size of a message in MiB, R the number of rounds.
        """
        seconds = (
            self.upload / _UPLINK_MIB_PER_SECOND + self.download / _DOWNLINK_MIB_PER_SECOND
        ) * (_BYTES_PER_NUMBER / 2**20)
        return n_rounds * seconds / 60


class UpdateStructure(ABC):
    """Width, basis and merging of an update; pure numpy, the same bits on every machine.

    Attributes:
        counts_entries: whether every value of A is divided by the users who trained just it, in
            place of those who touched its item.
        clear_indices: what the structure's paper sends in the clear beside the values, and says
            what a user touched; empty where there is nothing of the kind. It travels here only
            where `update.indices` says so.
    """

    name: ClassVar[str]
    counts_entries: bool = False
    clear_indices: ClassVar[str] = ""

    def __init__(self, settings: UpdateSettings, dim: int) -> None:
        self.dim = dim
        problem = self.problem(settings, dim)
        if problem:
            raise SettingsError(problem)

    @staticmethod
    def problem(settings: UpdateSettings, dim: int) -> str:
        """Return why these settings cannot work with `dim`, or an empty string."""
        return ""

    @staticmethod
    def warnings(settings: UpdateSettings) -> list[str]:
        """Return what somebody who trusts these settings should know."""
        return []

    @property
    @abstractmethod
    def width(self) -> int:
        """Values per item that are trained and sent."""

    @property
    def gradient_scale(self) -> float:
        """What A's steps are multiplied with: sqrt(width / dim), 1 where B is the identity."""
        return math.sqrt(self.width / self.dim)

    @abstractmethod
    def basis(self, seed: int, round_id: int) -> NDArray[np.float64] | None:
        """Return B (width x dim) of a round, or None where it is the identity.

        B B^T = (dim / width) I always holds; trainers rely on it.
        """

    def members(
        self, seed: int, round_id: int, user_keys: torch.Tensor, party_key: int
    ) -> torch.Tensor | None:
        """Return which rows of B each user trains in a round, 1 or 0, or None for all of them.

        Args:
            user_keys: the users' identities for random streams, int64 (n_users,), on the device
                on which the result is wanted.
            party_key: the same of the party that they belong to.

        Returns:
            float32 (n_users, width).
        """
        return None

    def entries(self, n_items: int) -> int:
        """Return how many values of a change travel with their index in the clear, 0 for none."""
        return 0

    @abstractmethod
    def paper_numbers(self, n_items: int) -> PaperNumbers:
        """Return what the CoLR paper counts as the size of a message."""

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
