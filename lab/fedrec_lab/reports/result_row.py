"""Rows of result tables as text, and the sentence for a model that is no better than popularity."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from fedrec.evaluation.metrics import MetricSums, Rates, Scorer, Split
from fedrec.plan.algorithm import about_algorithm
from fedrec.plan.schema import Plan
from fedrec_lab.reports.round_report import RoundReport

Metric = Literal["hr", "recall", "ndcg", "mrr"]

METRICS: tuple[tuple[Metric, str], ...] = (
    ("hr", "HR"),
    ("recall", "Recall"),
    ("ndcg", "NDCG"),
    ("mrr", "MRR"),
)

REFERENCE_LABELS: tuple[tuple[Scorer, str], ...] = (
    ("popularity", "popularity (protected counts)"),
    ("local", "local training only"),
    ("untrained", "untrained model"),
    ("know_nothing", "know-nothing counter"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """The results of one method.

    Attributes:
        label: the method, for people to read.
        samples: its rates for each seed, at least one.
        note: a remark for readers.
    """

    label: str
    samples: tuple[Rates, ...]
    note: str = ""

    def mean(self, metric: Metric) -> float:
        """Return the mean over seeds."""
        return math.fsum(self._values(metric)) / len(self.samples)

    def deviation(self, metric: Metric) -> float | None:
        """Return the sample standard deviation over seeds, or None for a single seed."""
        values = self._values(metric)
        if len(values) < 2:
            return None
        mean = self.mean(metric)
        return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))

    def text(self, metric: Metric) -> str:
        """Return the mean with four decimals, and the deviation if there are several seeds."""
        mean, deviation = f"{self.mean(metric):.4f}", self.deviation(metric)
        return mean if deviation is None else f"{mean} ± {deviation:.4f}"

    def first_record(self) -> dict[str, object]:
        """Return the first seed's rates, for JSON."""
        return {"method": self.label, "note": self.note} | asdict(self.samples[0])

    def _values(self, metric: Metric) -> list[float]:
        found: list[float] = [getattr(rates, metric) for rates in self.samples]
        return found


def reference_rows(sums: MetricSums, split: Split = "test") -> tuple[ResultRow, ...]:
    """Return a row for each reference that an evaluation round measured."""
    measured = ((label, sums.rates(scorer, split)) for scorer, label in REFERENCE_LABELS)
    return tuple(
        ResultRow(label=label, samples=(rates,)) for label, rates in measured if rates is not None
    )


def headings(at: int, protocol: str = "") -> list[str]:
    """Return the column headings of a result table.

    Args:
        protocol: the evaluation protocol, as `marked` writes it, or empty if a title names it.
    """
    rates = (f"{protocol} {name}@{at}".lstrip() for _, name in METRICS)
    return ["method", *rates, "users", "seeds"]


def cells(row: ResultRow) -> list[str]:
    """Return a row as text: means with four decimals, and deviations with several seeds."""
    rates = [row.text(metric) for metric, _ in METRICS]
    return [row.label, *rates, str(row.samples[0].users), str(len(row.samples))]


def plain_table(rows: Sequence[ResultRow], *, at: int) -> str:
    """Return the table as aligned text, one line a row."""
    return "\n".join([*aligned([headings(at), *map(cells, rows)], left=(0,)), *_notes(rows)])


def aligned(table: Sequence[Sequence[str]], *, left: Collection[int]) -> list[str]:
    """Return the lines of a table as aligned text. A rule follows the headings.

    Args:
        left: left-aligned columns. All others are right-aligned.
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def _notes(rows: Sequence[ResultRow]) -> list[str]:
    return [f"{row.label}: {row.note}" for row in rows if row.note]


_REFERENCES: tuple[tuple[Scorer, str], ...] = (
    ("popularity", "popularity"),
    ("untrained", "the untrained model"),
)


def shortfall(
    plan: Plan,
    validation: Rates | None,
    references: MetricSums | None,
    rounds: Sequence[RoundReport] = (),
) -> str:
    """Return a warning if popularity equals the model on validation, or an empty string.

    The untrained model counts like popularity: if it is the best version, training did not help.

    Args:
        validation: the rates of the chosen version, or None if nothing was measured.
        references: the closing evaluation, or None if the run did not reach it.
        rounds: the run's rounds, for the clipped values.
    """
    if validation is None or references is None:
        return ""
    equals = [
        f"{name} ({rates.ndcg:.4f})"
        for scorer, name in _REFERENCES
        if (rates := references.rates(scorer, "validation")) and validation.ndcg <= rates.ndcg
    ]
    if not equals:
        return ""
    text = (
        f"with NDCG@{plan.evaluation.at} {validation.ndcg:.4f} on validation no better than "
        f"{' and '.join(equals)}. These settings do not suit the data: change "
        f"{about_algorithm(plan).advice.shortfall}. fedrec tune tries values"
    )
    clipped = max((report.clipped_users for report in rounds), default=0)
    if clipped:
        text += (
            f". In one round values of {clipped} users were clipped to {plan.update.clip:g}: "
            "raise update.clip"
        )
    return f"{text}."
