"""What differs between a federation of processes and the same one in a single process.

Under every exact protection nothing should: sums are integers, and the model follows from them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrec.model.state import SharedState
from fedrec_lab.reports.round_report import RoundReport

__all__ = ["differing_rounds", "differing_tensors"]

_SEGMENT = ("participants", "loss", "clipped_values", "clipped_users", "validation", "test")
"""Of a round's report: what its sums decided."""
_MOST_NAMED = 5


def differing_rounds(own: Sequence[RoundReport], others: Sequence[RoundReport]) -> list[str]:
    """Return a line for each round whose metric sums differ, the first ones by their fields.

    Args:
        own: the rounds of the single process.
        others: those of the processes; a round that was given up leaves out a number, and no more.
    """
    if [report.kind for report in own] != [report.kind for report in others]:
        return [f"{len(others)} rounds were published, {len(own)} in one process"]
    found = []
    for one, other in zip(own, others, strict=True):
        fields = [
            f"{name} {_told(getattr(other, name))}, not {_told(getattr(one, name))}"
            for name in _SEGMENT
            if getattr(one, name) != getattr(other, name)
        ]
        if fields:
            found.append(f"round {one.round}, metrics: {'; '.join(fields)}")
    more = len(found) - _MOST_NAMED
    if more > 0:
        last = found[-1].partition(",")[0]
        found[_MOST_NAMED:] = [f"and {more} more rounds, the last one {last}"]
    return found


def _told(value: object) -> str:
    # Rates tell HR and NDCG; a reader finds the rest in rounds.jsonl.
    ndcg = getattr(value, "ndcg", None)
    return repr(value) if ndcg is None else f"NDCG {ndcg!r}"


def differing_tensors(when: str, own: SharedState, other: SharedState) -> list[str]:
    """Return a line for each tensor of a model that differs, with how many values and how far.

    Args:
        when: which version it is, for the lines.
        own: the single process's model.
        other: the processes' model; what was not exported is not looked at.
    """
    found = []
    for name, values in sorted(other.tensors.items()):
        wanted = own.tensors.get(name)
        if wanted is None or wanted.shape != values.shape:
            found.append(f"{when}, {name}: its shape is another")
            continue
        wrong = np.count_nonzero(values != wanted)
        if wrong:
            apart = float(np.abs(values - wanted).max())
            found.append(f"{when}, {name}: {wrong:,} of {values.size:,} values, by up to {apart:g}")
    return found
