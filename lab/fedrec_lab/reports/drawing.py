"""Plots: their data, which a report keeps, and how they are drawn."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field

from fedrec.extras import how_to_install, is_missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line, or the bars of one colour.

    Attributes:
        x: places on the axis, or empty in a `GroupPlot`.
        colour: the index of the figure's colour.
        markers: whether every point is marked.
        steps: whether the line is constant until the next point, as for a cumulative share.
    """

    label: str
    y: tuple[float, ...]
    x: tuple[float, ...] = ()
    colour: int = 0
    markers: bool = False
    steps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A height to compare with, drawn as a dashed line."""

    label: str
    y: float
    colour: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlot:
    """Lines over a numeric axis.

    Attributes:
        mark: a place on the axis to point out, or None.
        x_is_whole: whether places are counts, so that only whole numbers are labelled.
        x_is_log: whether the axis is logarithmic. Places must then be above 0.
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
    y_bottom: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBar:
    """One message size to compare with others.

    Attributes:
        n_bytes: size of one client's message in one round, in bytes.
        chosen: whether the run used it.
    """

    label: str
    n_bytes: int
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPlot:
    """Sizes in bytes, each labelled with its number."""

    kind: Literal["bars"] = "bars"
    bars: tuple[SizeBar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlot:
    """Bars side by side, for each of several groups.

    Attributes:
        labels: the groups' labels from left to right. Each series has a value for each.
    """

    kind: Literal["groups"] = "groups"
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    x_label: str
    y_label: str


Plot: TypeAlias = Annotated[LinePlot | BarPlot | GroupPlot, Field(discriminator="kind")]


_MOST = 7
_MOST_LONG = 5
"""The maximum number of labels on an axis with long, fully written labels."""


def whole_numbers(axis: Axis) -> None:
    """Label whole numbers only, however few there are."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=_MOST, integer=True, min_n_ticks=1))


def plain_logarithmic(axis: Axis) -> None:
    """Label a logarithmic axis with full numbers, at least two of them, such as 0.06 and 1,000."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    least, most = sorted(axis.get_view_interval())
    axis.set_major_locator(FixedLocator(_places(float(least), float(most))))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _written(value)))
    axis.set_minor_formatter(NullFormatter())


def _places(least: float, most: float) -> list[float]:
    """Return powers of ten. If there are fewer than two, add rounder numbers between them."""
    from matplotlib.ticker import MaxNLocator

    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    for digits in ((1,), (1, 2, 5)):
        found = [digit * 10.0**power for power in powers for digit in digits]
        inside = [value for value in found if least <= value <= most]
        if len(inside) > 1:
            return inside[:: math.ceil(len(inside) / _MOST_LONG)]
    return [value for value in MaxNLocator(nbins=3).tick_values(least, most) if value > 0]


def _written(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return np.format_float_positional(float(f"{value:.6g}"), trim="-")


INK = "#010203"
"""Placeholder for the page's text colour until the SVG is written."""
COLOURS = ("#3b82f6", "#f97316", "#10b981", "#8b5cf6", "#e11d48", "#64748b")
_CHOSEN = 1
_WIDTH_INCHES = 7.2
_PIXELS_PER_INCH = 150
_LEGEND_COLUMNS = 3


def why_no_figures() -> str:
    """Return why reports have no figures here and what to do, or an empty string if they have."""
    if not is_missing("matplotlib"):
        return ""
    return (
        "matplotlib is not installed, so the report has no figures. Install it with: "
        f"{how_to_install('matplotlib')}. Then `fedrec report RUN` draws them."
    )


def as_element(plot: Plot) -> str:
    """Return a plot as an SVG element for HTML, the same bits every time."""
    return element_of(*_laid_out(plot))


def as_svg_file(plot: Plot) -> str:
    """Return a plot as an SVG document with black text on white."""
    element = as_element(plot).replace("currentColor", "#111")
    opened = element.index(">") + 1
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    head = '<?xml version="1.0" encoding="utf-8"?>\n'
    return f"{head}{element[:opened]}{ground}{element[opened:]}\n"


def as_png(plot: Plot) -> bytes:
    """Return a plot as a PNG image with black text on white."""
    draw, height_inches = _laid_out(plot)
    out = io.BytesIO()
    with _style("#111111"):
        figure = drawn(draw, height_inches)
        figure.patch.set_facecolor("white")
        figure.savefig(out, format="png", dpi=_PIXELS_PER_INCH, metadata={"Software": None})
    return out.getvalue()


def element_of(draw: Callable[[Axes], None], height_inches: float) -> str:
    """Return a drawing as an SVG element for HTML."""
    out = io.StringIO()
    with _style(INK):
        figure = drawn(draw, height_inches)
        figure.patch.set_alpha(0.0)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _inlined(out.getvalue())


def drawn(draw: Callable[[Axes], None], height_inches: float) -> Canvas:
    """Return a figure with one pair of axes and a plot drawn on it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    draw(axes)
    return figure


def _laid_out(plot: Plot) -> tuple[Callable[[Axes], None], float]:
    """Return the function that draws a plot, and the plot's height in inches."""
    if isinstance(plot, BarPlot):
        return lambda axes: _bars(axes, plot), 1.0 + 0.36 * max(1, len(plot.bars))
    if isinstance(plot, GroupPlot):
        return lambda axes: _groups(axes, plot), 3.4
    return lambda axes: _lines(axes, plot), 3.4


def _lines(axes: Axes, plot: LinePlot) -> None:
    for series in plot.series:
        axes.plot(
            series.x,
            series.y,
            color=COLOURS[series.colour],
            marker="o" if series.markers or len(series.x) == 1 else None,
            drawstyle="steps-post" if series.steps else "default",
            label=series.label,
        )
    for level in plot.levels:
        style: Any = {"color": COLOURS[level.colour], "linestyle": "--", "linewidth": 1}
        axes.axhline(level.y, label=level.label, **style)
    if plot.mark is not None:
        axes.axvline(plot.mark, color=COLOURS[2], linestyle=":", label=plot.mark_label)
    if plot.x_is_log:
        axes.set_xscale("log")
        plain_logarithmic(axes.xaxis)
    if plot.y_is_log:
        axes.set_yscale("log")
        plain_logarithmic(axes.yaxis)
    else:
        axes.set_ylim(plot.y_bottom, plot.y_top)
    if plot.x_ticks:
        axes.set_xticks(plot.x_ticks)
    elif plot.x_is_whole:
        whole_numbers(axes.xaxis)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    _legend(axes)


def _groups(axes: Axes, plot: GroupPlot) -> None:
    width = 0.8 / max(1, len(plot.series))
    for place, series in enumerate(plot.series):
        left = [group - 0.4 + (place + 0.5) * width for group in range(len(plot.labels))]
        axes.bar(left, series.y, width, color=COLOURS[series.colour], label=series.label)
    axes.set_xticks(range(len(plot.labels)), plot.labels)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    _legend(axes)


def _bars(axes: Axes, plot: BarPlot) -> None:
    bars = plot.bars
    places = range(len(bars))
    colours = [COLOURS[_CHOSEN if bar.chosen else 0] for bar in bars]
    # Zero has no place on a logarithmic scale, so it is drawn at one byte.
    sizes = [max(1, bar.n_bytes) for bar in bars]
    axes.barh(places, sizes, color=colours, height=0.6)
    axes.set_yticks(places, [bar.label for bar in bars])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(min(sizes, default=1) / 4, max(sizes, default=1) * 6)
    plain_logarithmic(axes.xaxis)
    for place, size, bar in zip(places, sizes, bars, strict=True):
        axes.text(size * 1.08, place, f"{bar.n_bytes:,} bytes", va="center", fontsize=8)
    axes.set_xlabel("bytes per client and round (logarithmic)")


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(
            frameon=False,
            fontsize=8,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=_LEGEND_COLUMNS,
            borderaxespad=0.2,
        )


def _style(ink: str) -> Any:
    import matplotlib

    return matplotlib.rc_context(
        {
            "svg.hashsalt": "fedrec",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 9,
            "text.color": ink,
            "legend.labelcolor": ink,
            "axes.labelcolor": ink,
            "axes.edgecolor": ink,
            "xtick.color": ink,
            "ytick.color": ink,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )


def _inlined(svg: str) -> str:
    """Remove the document's head, its metadata and colliding group names."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    return svg.replace(INK, "currentColor").strip()
