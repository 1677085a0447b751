"""Published, reproduced and honest figures of a row side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from fedrec.evaluation.metrics import Protocol, Rates
from fedrec_lab.papers.measured_run import REFERENCES, Measured
from fedrec_lab.papers.row import PublishedRow
from fedrec_lab.reports.result_row import ResultRow

WITHIN = 0.01
"""A figure counts as reproduced when HR@10 differs by no more than this."""

_HEADINGS: Mapping[Protocol, str] = {
    "paper": "reproduced (paper)",
    "sampled": "honest (sampled)",
    "full": "honest (full)",
}
_NOTHING = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """A row with what was measured of it.

    Attributes:
        changes: how the runs differ from the row's own settings and data; empty where they do not.
    """

    row: PublishedRow
    measured: tuple[Measured, ...]
    changes: tuple[str, ...] = ()

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """The protocols that were measured."""
        return tuple(dict.fromkeys(found.protocol for found in self.measured))

    @property
    def difference(self) -> float | None:
        """HR@10 under the paper's protocol minus the published one; None where it was not run."""
        found = self._model("paper")
        return None if found is None else found.mean("hr") - self.row.hr

    @property
    def reproduced(self) -> bool | None:
        """Whether the published HR@10 was met; None where that was not tried as published."""
        # Half of the last printed digit for rounding.
        if self.difference is None or self.changes:
            return None
        return abs(self.difference) <= WITHIN + 5e-5

    @property
    def verdict(self) -> str:
        """The sentence that says how the published figure fared."""
        if self.difference is None:
            return "no verdict: the paper's protocol was not run"
        points = f"{100 * self.difference:+.2f} points of HR@10"
        if self.changes:
            return f"no verdict, because of {', '.join(self.changes)}: {points}"
        if self.reproduced:
            return f"reproduced within one point: {points}"
        return f"not reproduced: {points}"

    def headings(self) -> list[str]:
        """Return the headings of the table."""
        return ["HR@10 / NDCG@10", "published", *(_HEADINGS[name] for name in self.protocols)]

    def table(self) -> list[list[str]]:
        """Return the lines of the table: the row itself, then what learned nothing."""
        model = [_shown(self._model(protocol)) for protocol in self.protocols]
        lines = [[self.row.name, f"{self.row.hr:.4f} / {self.row.ndcg:.4f}", *model]]
        lines.append(["  chosen round", _NOTHING, *map(self._rounds, self.protocols)])
        for scorer, label in REFERENCES.items():
            cells = [_shown(self._reference(protocol, scorer)) for protocol in self.protocols]
            lines.append([label, _NOTHING, *cells])
        formula = [_shown(self._formula(protocol)) for protocol in self.protocols]
        lines.append(["no-learning formula", _NOTHING, *formula])
        return lines

    def markdown(self) -> str:
        """Return the comparison as a section of a Markdown page."""
        headings = self.headings()
        lines = [headings, ["---"] * len(headings), *self.table()]
        text = [f"## {self.row.name}", ""]
        text += [f"| {' | '.join(cell.strip() for cell in line)} |" for line in lines]
        return "\n".join([*text, "", *(f"- {line}" for line in self.sentences()), ""])

    def sentences(self) -> list[str]:
        """Return what belongs below the table."""
        found = [f"{self.verdict[0].upper()}{self.verdict[1:]}.", f"Source: {self.row.source}."]
        if self.row.note:
            found.append(self.row.note)
        clipped = sum(run.clipped_values for run in self.measured)
        if clipped:
            found.append(f"{clipped} values were clipped, over all runs.")
        return found

    def to_json(self) -> dict[str, object]:
        """Return everything as plain values."""
        return {
            "name": self.row.name,
            "dataset": self.row.dataset,
            "source": self.row.source,
            "note": self.row.note,
            "published": {"hr": self.row.hr, "ndcg": self.row.ndcg},
            "changes": list(self.changes),
            "difference_hr": self.difference,
            "reproduced": self.reproduced,
            "verdict": self.verdict,
            "runs": [asdict(found) for found in self.measured],
        }

    def _of(self, protocol: Protocol) -> list[Measured]:
        return [found for found in self.measured if found.protocol == protocol]

    def _model(self, protocol: Protocol) -> ResultRow | None:
        return _samples([found.test for found in self._of(protocol)])

    def _reference(self, protocol: Protocol, scorer: str) -> ResultRow | None:
        runs = self._of(protocol)
        return _samples([run.references[scorer] for run in runs if scorer in run.references])

    def _formula(self, protocol: Protocol) -> ResultRow | None:
        found = [run.no_learning for run in self._of(protocol)]
        return _samples([rates for rates in found if rates is not None])

    def _rounds(self, protocol: Protocol) -> str:
        return ", ".join(str(found.best_round) for found in self._of(protocol))


def _samples(rates: Sequence[Rates]) -> ResultRow | None:
    return ResultRow(label="", samples=tuple(rates)) if rates else None


def _shown(found: ResultRow | None) -> str:
    """Return HR and NDCG, means of all seeds with the deviation of HR."""
    if found is None:
        return _NOTHING
    deviation = found.deviation("hr")
    spread = "" if deviation is None else f" ± {deviation:.4f}"
    return f"{found.mean('hr'):.4f}{spread} / {found.mean('ndcg'):.4f}"
