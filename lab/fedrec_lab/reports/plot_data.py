"""What a figure shows, as data: a report keeps it, so that its figures can be drawn again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line, or one colour of bars.

    Attributes:
        x: places on the axis; empty in a `GroupPlot`.
        colour: which of the figure's colours.
        markers: whether every point is marked.
        steps: whether the line stays until the next point, as a share of those below does.
    """

    label: str
    y: tuple[float, ...]
    x: tuple[float, ...] = ()
    colour: int = 0
    markers: bool = False
    steps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A height that is compared with, as a dashed line."""

    label: str
    y: float
    colour: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlot:
    """Lines over an axis of numbers.

    Attributes:
        mark: a place on the axis that is pointed out; None for none.
        x_is_whole: whether places are numbers of something, so that none lies between two.
        x_is_log: whether the axis is logarithmic; places are above 0 then.
    """

    kind: Literal["lines"] = "lines"
    series: tuple[Series, ...]
    levels: tuple[Level, ...] = ()
    mark: float | None = None
    mark_label: str = ""
    x_label: str
    y_label: str
    x_is_whole: bool = False
    x_is_log: bool = False
    y_is_log: bool = False
    x_ticks: tuple[float, ...] = ()
    y_top: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBar:
    """One message size to compare.

    Attributes:
        n_bytes: bytes of one client's message in one round.
        chosen: whether it is what the run used.
    """

    label: str
    n_bytes: int
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPlot:
    """Sizes in bytes, each with its number."""

    kind: Literal["bars"] = "bars"
    bars: tuple[SizeBar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlot:
    """Bars side by side, for each of some groups.

    Attributes:
        labels: the groups', from left to right; each series has a value for each.
    """

    kind: Literal["groups"] = "groups"
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    x_label: str
    y_label: str


Plot: TypeAlias = Annotated[LinePlot | BarPlot | GroupPlot, Field(discriminator="kind")]
