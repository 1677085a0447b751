"""The figures of which-algorithm.md: quality against bytes and against epsilon, over data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedrec_lab.reports.drawing import COLOURS, INK, element_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "vso^DP*X<>pdHh"
_STYLES = ("--", ":")


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPoint:
    """A method on a data set: its cost, as the figure's axis names it, and its NDCG."""

    label: str
    data: str
    cost: float
    ndcg: float


def quality_against(
    cost: str,
    points: Sequence[QualityPoint],
    lines: Mapping[str, Mapping[str, float]],
    *,
    joined: bool = False,
) -> str:
    """Draw each data set's methods, NDCG over that of the best one against their cost, as SVG.

    Args:
        cost: the label of the axis, which is logarithmic.
        lines: NDCG of references by label and data set, as lines of one style for each label.
        joined: join the points of a method on a data set.
    """
    colours = dict(zip(dict.fromkeys(p.data for p in points), COLOURS, strict=False))
    markers = dict(zip(dict.fromkeys(p.label for p in points), _MARKERS, strict=False))

    def draw(axes: Axes) -> None:
        for data, colour in colours.items():
            best = max(point.ndcg for point in points if point.data == data)
            for label, marker in markers.items():
                own = [point for point in points if (point.data, point.label) == (data, label)]
                places = [point.cost for point in own], [point.ndcg / best for point in own]
                line = "-" if joined else "none"
                axes.plot(*places, color=colour, marker=marker, linestyle=line, linewidth=1)
            for style, found in zip(_STYLES, lines.values(), strict=False):
                if data in found:
                    axes.axhline(found[data] / best, color=colour, linestyle=style, linewidth=1)
            axes.plot([], [], color=colour, label=data)
        for style, label in zip(_STYLES, lines, strict=False):
            axes.plot([], [], color=INK, linestyle=style, label=label)
        for label, marker in markers.items():
            axes.plot([], [], color=INK, marker=marker, linestyle="none", label=label)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"{cost} (logarithmic)")
        axes.set_ylabel("NDCG@10 on test, of the data set's best")
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))

    return element_of(draw, 4.0)
