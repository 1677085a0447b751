"""Where the axes of figures have numbers, and how these are written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axis import Axis

__all__ = ["plain_logarithmic", "whole_numbers"]

_MOST = 7
_MOST_LONG = 5
"""Numbers of one axis that are written in full and may be long."""


def whole_numbers(axis: Axis) -> None:
    """Put numbers at whole places alone, however few there are."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=_MOST, integer=True, min_n_ticks=1))


def plain_logarithmic(axis: Axis) -> None:
    """Write the numbers of a logarithmic axis in full, at least two of them: 0.06 and 1,000."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    least, most = sorted(axis.get_view_interval())
    axis.set_major_locator(FixedLocator(_places(float(least), float(most))))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _written(value)))
    axis.set_minor_formatter(NullFormatter())


def _places(least: float, most: float) -> list[float]:
    """Return powers of ten; where there are not two of them, rounder numbers between."""
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
