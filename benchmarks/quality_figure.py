"""The figure of which-algorithm.md: quality against bytes, over data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedrec_lab.reports.drawing import COLOURS, INK, element_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "vso^DP*X"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPoint:
    """A method on a data set: what it is worth and what a client sends and receives for it."""

    label: str
    data: str
    n_bytes: int
    ndcg: float


def quality_against_bytes(points: Sequence[QualityPoint], floors: Mapping[str, float]) -> str:
    """Draw each data set's methods, NDCG over that of the best one against bytes, as SVG.

    Args:
        floors: NDCG of popularity by data set, as dashed lines.
    """
    colours = dict(zip(dict.fromkeys(p.data for p in points), COLOURS, strict=False))
    markers = dict(zip(dict.fromkeys(p.label for p in points), _MARKERS, strict=False))

    def draw(axes: Axes) -> None:
        for data, colour in colours.items():
            best = max(point.ndcg for point in points if point.data == data)
            for point in (point for point in points if point.data == data):
                place = point.n_bytes / 1e6, point.ndcg / best
                axes.plot(*place, color=colour, marker=markers[point.label], linestyle="none")
            axes.axhline(floors[data] / best, color=colour, linestyle="--", linewidth=1)
            axes.plot([], [], color=colour, label=f"{data}, dashed: popularity")
        for label, marker in markers.items():
            axes.plot([], [], color=INK, marker=marker, linestyle="none", label=label)
        axes.set_xscale("log")
        axes.set_ylim(0, 1.05)
        axes.set_xlabel("MB a client sends and receives in the whole run (logarithmic)")
        axes.set_ylabel("NDCG@10 on test, of the data set's best")
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))

    return element_of(draw, 4.0)
