"""How a reference's setting is searched: one budget for all, edges widened and told."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

Setting = tuple[float, ...]
"""A value for each axis, in the order of the axes."""
_ROUNDED = 1.0 + 1e-9
"""Steps are products and quotients, which may miss an end by their last digit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A hyperparameter and the values to try.

    Attributes:
        values: ascending.
        start: the value that a search begins with.
        widest: the least and the greatest value to which the ladder is continued in its own
            steps while the best value is its last. None where its ends are natural ones.
        counts_rows: whether a value is a number of items or of directions, at most the rows.
        note: values that were left out because of that. See `within`.
    """

    name: str
    values: tuple[float, ...]
    start: float
    widest: tuple[float, float] | None = None
    counts_rows: bool = False
    note: str = ""

    def within(self, n_rows: int) -> Axis:
        """Return the axis without values above the number of rows."""
        beyond = [value for value in self.values if value > n_rows]
        if not self.counts_rows or not beyond:
            return self
        kept = tuple(value for value in self.values if value <= n_rows) or (float(n_rows),)
        return replace(
            self,
            values=kept,
            start=min(self.start, kept[-1]),
            widest=None,
            note=f"{self.name} above {kept[-1]:g} not tried: there are {n_rows} rows",
        )

    def beside(self, value: float, step: int) -> float | None:
        """Return the next value above or below, widening the ladder, or None beyond its ends."""
        ladder = list(self.values)
        if self.widest is not None and len(ladder) >= 3:
            low, high = self.widest
            while (more := ladder[-2] * ladder[-1] / ladder[-3]) <= high * _ROUNDED:
                ladder.append(more)
            while (less := ladder[1] * ladder[0] / ladder[2]) * _ROUNDED >= low:
                ladder.insert(0, less)
        place = min(range(len(ladder)), key=lambda index: abs(ladder[index] - value)) + step
        return ladder[place] if 0 <= place < len(ladder) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a search.

    Attributes:
        best: the setting with the greatest worth, of equals the earlier one.
        worst: the one with the least.
        tried: how many settings were tried.
        notes: best values that lie at an edge, and values that were left out.
    """

    best: Setting
    worst: Setting
    tried: int
    notes: tuple[str, ...]


def search(axes: Sequence[Axis], budget: int, worth: Callable[[Setting], float]) -> Found:
    """Try a small grid whole, a large one axis by axis from its start, as far as the budget goes.

    A step that improves is repeated, beyond the ladder's ends too where the axis allows it. The
    search ends when no single step from the best setting improves, or with the budget.
    """
    tried: dict[Setting, float] = {}

    def improves(setting: Setting, on: float) -> bool:
        if setting not in tried and len(tried) < budget:
            tried[setting] = worth(setting)
        return tried.get(setting, -math.inf) > on

    if math.prod(len(axis.values) for axis in axes) <= budget:
        whole: list[Setting] = [()]
        for axis in axes:
            whole = [(*known, value) for known in whole for value in axis.values]
        for setting in whole:
            improves(setting, math.inf)
    best = tuple(axis.start for axis in axes)
    improves(best, math.inf)
    best = max(tried, key=lambda setting: tried[setting])
    moved = True
    while moved:
        moved = False
        for index, axis in enumerate(axes):
            for step in (1, -1):
                began = best
                while (value := axis.beside(best[index], step)) is not None:
                    further = (*best[:index], value, *best[index + 1 :])
                    if not improves(further, tried[best]):
                        break
                    best, moved = further, True
                if best != began:
                    break
    notes = [axis.note for axis in axes if axis.note]
    notes += [
        note
        for index, axis in enumerate(axes)
        if (note := _edge(axis, best, index, tried, spent=len(tried) >= budget))
    ]
    worst = min(tried, key=lambda setting: tried[setting])
    return Found(best=best, worst=worst, tried=len(tried), notes=tuple(notes))


def _edge(
    axis: Axis, best: Setting, index: int, tried: dict[Setting, float], *, spent: bool
) -> str:
    """Return a warning where the best value is the last one that was tried in some direction."""
    value = best[index]
    if axis.widest is None:
        return ""
    for step, end in ((1, axis.values[-1]), (-1, axis.values[0])):
        if step * value < step * end:
            continue
        further = axis.beside(value, step)
        if further is None or (*best[:index], further, *best[index + 1 :]) not in tried:
            reason = "the budget is spent" if spent and further is not None else "no wider grid"
            return f"warning: {axis.name} {value:g} is at the edge of what was tried ({reason})"
        if value != end:
            return f"{axis.name} {value:g} is outside the first grid, which was widened"
    return ""
