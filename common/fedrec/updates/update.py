"""The update structure: what is trained and sent in place of a full item table.

It also has the CoLR paper's size of a message and the time of its link. Table 2 of the paper
multiplies numbers of 4 bytes by rounds and divides by the speeds of one link. fedrec sends more
than that: the whole vector of an update, with counts and metrics, under its protection (`fedrec
check` prints both).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.errors import SettingsError
from fedrec.section import InWords, Section, UsedIf

if TYPE_CHECKING:
    import torch


class UpdateSettings(Section):
    """The structure, range and grid of updates."""

    structure: Annotated[
        Literal["dense", "colr", "scolr", "svd", "topk"],
        InWords(default="the algorithm's own, mostly dense"),
    ] = Field(
        default="colr",
        description="dense trains n_items x dim values, colr and scolr n_items x rank. svd and "
        "topk train dense and compress, without shrinking the vector that is sent.",
    )
    rank: int = Field(
        default=4,
        ge=1,
        le=1024,
        description="Rank of the update (colr), of the largest one (scolr), or of the compressed "
        "change (svd), at most dim.",
    )
    ratio: Annotated[float, UsedIf({"structure": ("topk",)})] = Field(
        default=0.0625,
        gt=0,
        le=1,
        description="Share of all n_items x dim values that is kept.",
    )
    compress: Annotated[Literal["user", "client"], UsedIf({"structure": ("svd", "topk")})] = Field(
        default="user",
        description="Whether each user's change is compressed before it is sent, as in the "
        "papers, or the sum of a client's users.",
    )
    indices: Annotated[Literal["hidden", "clear"], UsedIf({"structure": ("topk",)})] = Field(
        default="hidden",
        description="hidden sends zeros along, so no index travels. clear sends only the kept "
        "values, each with its index. The coordinator reads the indices, which name a user's items "
        "(under paillier's single sets, one user per client, as in the papers).",
    )
    subset: Annotated[Literal["user", "client"], UsedIf({"structure": ("scolr",)})] = Field(
        default="user",
        description="Whether each user draws rows of B, as in the paper, or each client for all "
        "its users.",
    )
    normaliser: Annotated[Literal["item", "entry"], UsedIf({"structure": ("scolr",)})] = Field(
        default="item",
        description="Changes are divided by the users that touched the item (item), or by the "
        "users that trained that value (entry). entry sends a count for every value.",
    )
    clip: float = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="Every value of a user's update is clipped to [-clip, clip], a public range.",
    )
    fraction_bits: int = Field(
        default=20,
        ge=4,
        le=40,
        description="Values are rounded to multiples of clip x 2^-fraction_bits.",
    )


_BYTES_PER_NUMBER = 4
_UPLINK_MIB_PER_SECOND = 0.25
_DOWNLINK_MIB_PER_SECOND = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperNumbers:
    """Numbers in a message of one client and one round, in the clear.

    Attributes:
        upload: numbers that the paper counts upwards. A mean if clients differ.
        download: numbers that it counts downwards.
        payload: numbers of an upload that a receiver could decode, without masks and seeds.
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
    """Width, basis and merging of an update, in pure numpy: the same bits on every machine.

    Attributes:
        counts_entries: whether every value of A is divided by the users that trained this value,
            and not by those that touched its item.
        clear_indices: data that the structure's paper sends in the clear with the values and that
            reveal the rows that a user touched. Empty if there are none. Here they travel only if
            `update.indices` is "clear".
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
        """Return the warnings about these settings."""
        return []

    @property
    @abstractmethod
    def width(self) -> int:
        """Values per item that are trained and sent."""

    @property
    def gradient_scale(self) -> float:
        """The factor of A's steps: sqrt(width / dim), or 1 if B is the identity."""
        return math.sqrt(self.width / self.dim)

    @abstractmethod
    def basis(self, seed: int, round_id: int) -> NDArray[np.float64] | None:
        """Return B (width x dim) of a round, or None if it is the identity.

        B B^T = (dim / width) I always holds, and trainers rely on it.
        """

    def members(
        self, seed: int, round_id: int, user_keys: torch.Tensor, party_key: int
    ) -> torch.Tensor | None:
        """Return the rows of B that each user trains in a round, as 1 or 0, or None for all.

        Args:
            user_keys: the users' identities for random streams, int64 (n_users,), on the device of
                the result.
            party_key: the identity of their party.

        Returns:
            float32 (n_users, width).
        """
        return None

    def entries(self, n_items: int) -> int:
        """Return the number of values that travel with their index in the clear, 0 if none do."""
        return 0

    @abstractmethod
    def paper_numbers(self, n_items: int) -> PaperNumbers:
        """Return the size of a message by the CoLR paper's count."""

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
