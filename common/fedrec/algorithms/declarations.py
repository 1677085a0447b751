"""What an algorithm declares: its settings, its model's tensors and the tensors of its update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedrec.config.section import Section

__all__ = ["AlgorithmSettings", "Parameter", "UpdateTensor"]


class AlgorithmSettings(Section):
    """The recommender and its local training."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A tensor of the model.

    Attributes:
        shape: its axes: products of settings, "n_items", "n_pairs" (of different items, as far
            as they are known), "n_users" and numbers, e.g. ("n_items", "dim") or ("32", "2 dim").
        scope: "shared" travels (protected); "private" never leaves its client.
    """

    name: str
    shape: tuple[str, ...]
    scope: Literal["shared", "private"]

    def row(self, settings: AlgorithmSettings) -> tuple[int, ...]:
        """Return the axes behind the first one as numbers; none of them may be n_items."""
        values = settings.model_dump()
        return tuple(
            math.prod(int(values.get(factor, factor)) for factor in axis.split())
            for axis in self.shape[1:]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTensor:
    """A tensor that users contribute to in every round and that is summed over them.

    Attributes:
        shape: the first axis is the catalogue's where `per_item`; one or two axes.
        limit: every value of a user is clipped to [-limit, limit]; public.
        fraction_bits: values are rounded to multiples of limit x 2^-fraction_bits.
        per_item: whether its rows belong to items, so that rare items' rows stay zero.
        signed: whether users contribute negative values, too; a sum outside is refused.
    """

    name: str
    shape: tuple[int, ...]
    limit: float
    fraction_bits: int
    per_item: bool = False
    signed: bool = True

    @property
    def size(self) -> int:
        """Values in it."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def step(self) -> float:
        """Size of one grid step."""
        return self.limit * 2.0**-self.fraction_bits
