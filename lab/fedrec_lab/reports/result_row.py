"""A row of a result table: one method, measured once or with several seeds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

from fedrec.evaluation.metrics import MetricSums, Rates, Scorer, Split

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
    """What one method reached.

    Attributes:
        label: the method, for people to read.
        samples: its rates, one for each seed; at least one.
        note: what a reader has to know about it.
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
        """Return the mean with four places, and the deviation where there are seeds."""
        mean, deviation = f"{self.mean(metric):.4f}", self.deviation(metric)
        return mean if deviation is None else f"{mean} ± {deviation:.4f}"

    def first_record(self) -> dict[str, object]:
        """Return its first seed's rates for JSON."""
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
