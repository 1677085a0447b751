"""Compare published, reproduced and honest figures of a row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from fedrec.errors import StorageError
from fedrec.evaluation.metrics import Protocol, Rates, Scorer
from fedrec_lab.papers.row import PublishedRow
from fedrec_lab.reports.result_row import ResultRow
from fedrec_lab.simulation.result import SimulationResult

REFERENCES: Mapping[Scorer, str] = {
    "popularity": "popularity",
    "know_nothing": "know-nothing counter",
    "untrained": "untrained model",
}
"""The names of scorers that learned nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A finished run of a row under one protocol with one seed.

    Attributes:
        best_round: the version with the best NDCG on validation.
        validation, test: rates of that version.
        references: rates on test of the scorers in `REFERENCES`.
        no_learning: the rates of the closed formula for this training. None if nothing leaks.
        clipped_values: number of clipped values over all rounds.
        seconds: time of all rounds together.
    """

    protocol: Protocol
    seed: int
    best_round: int
    validation: Rates
    test: Rates
    references: Mapping[str, Rates]
    clipped_values: int
    seconds: float
    no_learning: Rates | None = None

    @classmethod
    def of(cls, result: SimulationResult, protocol: Protocol) -> Measured:
        """Read it from a finished simulation that measured the protocol at least once."""
        chosen, evaluation = result.chosen(protocol), result.evaluations[protocol]
        assert chosen is not None
        version, test = chosen
        own = result.settings.evaluation.protocol
        validation = result.rounds[version].rates(protocol, "validation", of_plan=own)
        assert validation is not None
        found = {scorer: evaluation.rates(scorer, "test") for scorer in REFERENCES}
        return cls(
            protocol=protocol,
            seed=result.settings.federation.seed,
            best_round=version,
            validation=validation,
            test=test,
            references={name: rates for name, rates in found.items() if rates is not None},
            clipped_values=sum(report.clipped_values for report in result.rounds),
            seconds=sum(report.seconds for report in result.rounds),
            no_learning=result.no_learning() if protocol == "paper" else None,
        )

    @staticmethod
    def to_json(measured: Sequence[Measured]) -> str:
        """Return the measurements of one training, as JSON."""
        return json.dumps([asdict(found) for found in measured], indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> tuple[Measured, ...]:
        """Read the result of `to_json`.

        Raises:
            StorageError: the text is something else.
        """
        try:
            return _MEASURED.validate_json(text)
        except ValidationError as error:
            raise StorageError(
                f"This is not a result of a row: {text[:60]!r}.",
                remedy="Delete the file. Its run is then done again.",
            ) from error


_MEASURED = TypeAdapter(tuple[Measured, ...])


WITHIN = 0.01
"""A figure counts as reproduced if HR@10 differs by at most this."""

_HEADINGS: Mapping[Protocol, str] = {
    "paper": "reproduced (paper)",
    "sampled": "honest (sampled)",
    "full": "honest (full)",
}
_NOTHING = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """A row with its measurements.

    Attributes:
        changes: differences between the runs and the row's own settings and data. Empty if there
            are none.
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
        """HR@10 under the paper's protocol minus the published one. None if it was not run."""
        found = self._reached("paper", "model")
        return None if found is None else found.mean("hr") - self.row.hr

    @property
    def reproduced(self) -> bool | None:
        """Whether the published HR@10 was reproduced.

        None if the run differs from the published one.
        """
        # Half of the last printed digit for rounding.
        if self.difference is None or self.changes:
            return None
        return abs(self.difference) <= WITHIN + 5e-5

    @property
    def verdict(self) -> str:
        """The sentence with the verdict on the published figure."""
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
        """Return the lines of the table: the row itself, then the scorers that learned nothing."""
        model, formula = ("model", self.row.name), ("formula", "no-learning formula")
        lines = [
            [label, _NOTHING, *(_shown(self._reached(name, scorer)) for name in self.protocols)]
            for scorer, label in (model, *REFERENCES.items(), formula)
        ]
        lines[0][1] = f"{self.row.hr:.4f} / {self.row.ndcg:.4f}"
        rounds = (
            ", ".join(str(run.best_round) for run in self._of(name)) for name in self.protocols
        )
        lines.insert(1, ["  chosen round", _NOTHING, *rounds])
        return lines

    def markdown(self) -> str:
        """Return the comparison as a section of a Markdown page."""
        headings = self.headings()
        lines = [headings, ["---"] * len(headings), *self.table()]
        text = [f"## {self.row.name}", ""]
        text += [f"| {' | '.join(cell.strip() for cell in line)} |" for line in lines]
        return "\n".join([*text, "", *(f"- {line}" for line in self.sentences()), ""])

    def sentences(self) -> list[str]:
        """Return the notes below the table."""
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

    def _reached(self, protocol: Protocol, scorer: str) -> ResultRow | None:
        """Return the rates of the model, the formula or a reference. None if it was not run."""
        runs = [
            {"model": run.test, "formula": run.no_learning, **run.references}.get(scorer)
            for run in self._of(protocol)
        ]
        samples = tuple(rates for rates in runs if rates is not None)
        return ResultRow(label="", samples=samples) if samples else None


def _shown(found: ResultRow | None) -> str:
    """Return the means of HR and NDCG over all seeds, and the deviation of HR."""
    if found is None:
        return _NOTHING
    deviation = found.deviation("hr")
    spread = "" if deviation is None else f" ± {deviation:.4f}"
    return f"{found.mean('hr'):.4f}{spread} / {found.mean('ndcg'):.4f}"
