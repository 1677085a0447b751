"""The settings of `sketch`, and what it grades on validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from fedrec.algorithms.declarations import AlgorithmSettings

LAMBDAS = (30.0, 100.0, 300.0, 1000.0, 3000.0)
"""What is graded besides the setting."""


class SketchSettings(AlgorithmSettings):
    """sketch: an item-item model from two sums, each of dim values for an item."""

    name: Literal["sketch"] = Field(default="sketch", description="Which algorithm trains.")
    dim: int = Field(
        default=128,
        ge=1,
        le=4096,
        description="Directions (k) that co-occurrences are summed along; more are a better model, "
        "more bytes, and more that the sums tell.",
    )
    sums: int = Field(
        default=2,
        ge=1,
        le=8,
        description="Training rounds that sum; a third changes little, one alone is worth less. "
        "The round after them grades candidates on validation, where rounds.total has one.",
    )
    regularisation: float = Field(
        default=300.0,
        gt=0,
        le=1e9,
        description="L2 coefficient (lambda) of the item-item weights; larger data wants more. "
        "Where candidates are graded it is one of them.",
    )
    form: Literal["plain", "diag"] = Field(
        default="diag",
        description='Whether the counts complete the diagonal of what is summed ("diag"), or '
        'lambda stands there alone ("plain"). Where candidates are graded it is one of them.',
    )
    longest_history: int = Field(
        default=4096,
        ge=1,
        le=1 << 20,
        description="Items of a history that surely fit the public range; of longer ones values "
        "may be clipped, which is counted.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A way to make a model of the sums.

    Attributes:
        dim: directions that count, the first ones.
    """

    dim: int
    regularisation: float
    form: Literal["plain", "diag"]


def ways_of(own: SketchSettings) -> tuple[Candidate, ...]:
    """Return what is graded: first the settings themselves, which win where nothing is better."""
    first = Candidate(dim=own.dim, regularisation=own.regularisation, form=own.form)
    forms: tuple[Literal["plain", "diag"], ...] = ("plain", "diag")
    found = {
        Candidate(dim=dim, regularisation=value, form=form): None
        for dim in (own.dim, own.dim // 2, own.dim // 4)
        if dim
        for value in LAMBDAS
        for form in forms
    }
    found.pop(first, None)
    return (first, *found)
