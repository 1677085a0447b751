"""Figures of a run as SVG text that takes its text colour from the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedrec.evaluation.metrics import Rates, Split
from fedrec.reports.round_report import RoundReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedrec.audit.indices import RoundLeak

__all__ = [
    "QualityPoint",
    "SizeBar",
    "leak_by_round",
    "quality_against_bytes",
    "quality_by_round",
    "size_bars",
]

_INK = "#010203"
"""Stands for the page's own text colour until the SVG is written."""
_BLUE, _ORANGE, _GREEN = "#3b82f6", "#f97316", "#10b981"
_COLOURS = (_BLUE, _ORANGE, _GREEN)
_MARKERS = "vso^DP*X"


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
class QualityPoint:
    """A method on a data set: what it is worth and what a client sends and receives for it."""

    label: str
    data: str
    n_bytes: int
    ndcg: float


def quality_by_round(
    rounds: Sequence[RoundReport],
    *,
    at: int,
    split: Split = "validation",
    popularity: Rates | None = None,
    best_version: int | None = None,
) -> str:
    """Draw HR and NDCG of every version of the model, with popularity's as dashed lines.

    Args:
        rounds: a round measured the version before it.
        popularity: the reference's rates on the same split.
        best_version: the version that validation chose.
    """
    measured = [
        (report.round - 1, rates)
        for report in rounds
        if (rates := report.validation if split == "validation" else report.test) is not None
    ]

    def draw(axes: Axes) -> None:
        versions = [version for version, _ in measured]
        marker = "o" if len(measured) == 1 else None
        for name, colour in (("hr", _BLUE), ("ndcg", _ORANGE)):
            values = [getattr(rates, name) for _, rates in measured]
            axes.plot(versions, values, color=colour, marker=marker, label=f"{name.upper()}@{at}")
            if popularity is not None:
                level = getattr(popularity, name)
                label = f"{name.upper()}@{at} of popularity"
                axes.axhline(level, color=colour, linestyle="--", linewidth=1, label=label)
        if best_version is not None:
            axes.axvline(best_version, color=_GREEN, linestyle=":", label="chosen on validation")
        axes.set_xlabel("version of the model (round)")
        axes.set_ylabel(f"{split}, mean over users")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, labelcolor=_INK, fontsize=8)

    return _svg(draw, height_inches=3.4)


def size_bars(bars: Sequence[SizeBar]) -> str:
    """Draw bytes per client and round as horizontal bars on a logarithmic scale."""

    def draw(axes: Axes) -> None:
        places = range(len(bars))
        colours = [_ORANGE if bar.chosen else _BLUE for bar in bars]
        # Nothing has no place on a logarithmic scale: it stands where one byte would.
        sizes = [max(1, bar.n_bytes) for bar in bars]
        axes.barh(places, sizes, color=colours, height=0.6)
        axes.set_yticks(places, [bar.label for bar in bars])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlim(min(sizes, default=1) / 4, max(sizes, default=1) * 6)
        for place, size, bar in zip(places, sizes, bars, strict=True):
            text = f"{bar.n_bytes:,} bytes"
            axes.text(size * 1.08, place, text, va="center", fontsize=8, color=_INK)
        axes.set_xlabel("bytes per client and round (logarithmic)")

    return _svg(draw, height_inches=1.0 + 0.36 * max(1, len(bars)))


def leak_by_round(rounds: Sequence[RoundLeak], *, chance: float) -> str:
    """Draw how well histories are guessed from indices, by how many rounds were watched.

    Args:
        chance: precision of a guess at random, as a dashed line.
    """

    def draw(axes: Axes) -> None:
        watched = [row.rounds for row in rounds]
        for name, colour in (("precision", _BLUE), ("recall", _ORANGE)):
            values = [getattr(row, name) for row in rounds]
            axes.plot(watched, values, color=colour, marker="o", label=name)
        axes.axhline(chance, color=_GREEN, linestyle="--", linewidth=1, label="guess at random")
        axes.set_xticks(watched)
        axes.set_ylim(0, 1)
        axes.set_xlabel("rounds in which a user's indices were seen")
        axes.set_ylabel("of a user's history, mean")
        axes.legend(frameon=False, labelcolor=_INK, fontsize=8)

    return _svg(draw, height_inches=3.0)


def quality_against_bytes(points: Sequence[QualityPoint], floors: Mapping[str, float]) -> str:
    """Draw each data set's methods, NDCG over that of the best one against bytes.

    Args:
        floors: NDCG of popularity by data set, as dashed lines.
    """
    colours = dict(zip(dict.fromkeys(p.data for p in points), _COLOURS, strict=False))
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
            axes.plot([], [], color=_INK, marker=marker, linestyle="none", label=label)
        axes.set_xscale("log")
        axes.set_ylim(0, 1.05)
        axes.set_xlabel("MB a client sends and receives in the whole run (logarithmic)")
        axes.set_ylabel("NDCG@10 on test, of the data set's best")
        axes.legend(
            frameon=False, labelcolor=_INK, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5)
        )

    return _svg(draw, height_inches=4.0)


def _svg(draw: Callable[[Axes], None], *, height_inches: float) -> str:
    """Return a figure as an SVG element that can stand inside HTML; the same bits every time."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {
        "svg.hashsalt": "fedrec",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.edgecolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7.2, height_inches), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0.0)
        draw(figure.add_subplot())
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _inlined(out.getvalue())


def _inlined(svg: str) -> str:
    """Drop the document's head, its metadata and the group names that two figures would share."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    return svg.replace(_INK, "currentColor").strip()
