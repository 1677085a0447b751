"""Tables of metrics and comparisons, with bootstrap intervals over users."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.data.writing import no_formula
from fedrec.errors import DataError
from fedrec.evaluation.metrics import (
    RATES,
    SCORERS,
    SPLITS,
    MetricSums,
    Protocol,
    Rates,
    rate_of_users,
)
from fedrec.plan.cautions import marked
from fedrec.showing import Tabular, bars, html_table
from fedrec_lab.reports.result_row import METRICS, Metric, ResultRow, aligned
from fedrec_lab.reports.round_report import RoundReport

RESAMPLES = 2_000
"""Resamples for an interval in a table of many."""
_WEIGHTS_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its percentile interval."""

    estimate: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Return whether a value is outside the interval."""
        return not self.low <= value <= self.high

    def text(self) -> str:
        """Return a difference's estimate and interval. It begins with = if the interval has 0."""
        mark = "" if self.excludes(0.0) else "= "
        return f"{mark}{self.estimate:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedBootstrap:
    """A metric of a model compared with that of a reference, on the same users.

    Attributes:
        difference: mean of the model minus that of the reference.
        ratio: the first divided by the second, infinite if the second is 0.
        users: the number of users with a held-out item.
        confidence: the share of resamples inside each interval.
    """

    difference: Interval
    ratio: Interval
    users: int
    confidence: float

    def to_record(self) -> dict[str, object]:
        """Return the record for JSON. An infinite ratio becomes null."""
        shares = asdict(self.ratio).items()
        finite = {name: value if math.isfinite(value) else None for name, value in shares}
        return asdict(self) | {"ratio": finite}


def paired_bootstrap(
    model_ranks: NDArray[np.float64],
    reference_ranks: NDArray[np.float64],
    *,
    at: int = 10,
    metric: Metric = "ndcg",
    n_resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> PairedBootstrap:
    """Resample users with replacement, and return percentile intervals.

    Args:
        model_ranks: 0-based ranks of the held-out items, float64 (n_users,), negative for users
            without one (`held_out_ranks`). With several seeds, (n_seeds, n_users): a user's value
            is its mean over them.
        reference_ranks: the same users' ranks under the reference, of any number of seeds.
        at: the K of the metric.

    Raises:
        DataError: the users differ, or none has a held-out item.
    """
    ranks = (np.atleast_2d(model_ranks), np.atleast_2d(reference_ranks))
    present = ranks[0][0] >= 0
    if any(each.shape[1] != len(present) or bool(((each >= 0) != present).any()) for each in ranks):
        raise DataError("The two lists of ranks are for different users.")
    n_users = int(present.sum())
    if n_users == 0:
        raise DataError("No user has a held-out item, so there is nothing to compare.")
    values = ([rate_of_users(one[present], at, metric) for one in each] for each in ranks)
    both = np.stack([np.mean(each, axis=0) for each in values], axis=1)
    means = _resampled_means(both, n_resamples, seed)
    whole = both.mean(axis=0)
    tail = 50.0 * (1.0 - confidence)

    def interval(estimate: float, samples: NDArray[np.float64]) -> Interval:
        # A quantile between two infinite ratios would be NaN. An order statistic is a value.
        low, high = np.percentile(samples, [tail, 100.0 - tail], method="nearest")
        return Interval(estimate=estimate, low=float(low), high=float(high))

    return PairedBootstrap(
        difference=interval(float(whole[0] - whole[1]), means[:, 0] - means[:, 1]),
        ratio=interval(float(_ratios(whole[None])[0]), _ratios(means)),
        users=n_users,
        confidence=confidence,
    )


def _resampled_means(
    gains: NDArray[np.float64], n_resamples: int, seed: int
) -> NDArray[np.float64]:
    """Return both means for every resample, (n_resamples, 2)."""
    n_users = len(gains)
    random = np.random.Generator(np.random.Philox(seed))
    means = np.empty((n_resamples, 2))
    at_once = max(1, _WEIGHTS_AT_ONCE // n_users)
    for start in range(0, n_resamples, at_once):
        rows = min(at_once, n_resamples - start)
        chosen = random.integers(n_users, size=(rows, n_users))
        means[start : start + rows] = gains[chosen].mean(axis=1)
    return means


def _ratios(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return first / second for every row. A positive number over zero is infinity."""
    first, second = means[:, 0], means[:, 1]
    ratio = np.where(first > 0, np.inf, 1.0)
    return np.divide(first, second, out=ratio, where=second > 0)


def metrics_parquet(rounds: Sequence[RoundReport], references: MetricSums | None = None) -> bytes:
    """Return a Parquet file with one row for each scorer, split and round.

    `version` is the measured model. References have no version of their own, so they get the last
    measured one.
    """
    return parquet_of(
        {
            "round": "int64",
            "kind": "string",
            "version": "int64",
            "scorer": "string",
            "split": "string",
            "users": "int64",
            **dict.fromkeys(RATES, "double"),
            "loss": "double",
            "participants": "int64",
            "seconds": "double",
            "vector_bytes": "int64",
        },
        metric_rows(rounds, references),
    )


def parquet_of(kinds: Mapping[str, str], rows: Iterable[Mapping[str, object]]) -> bytes:
    """Return a Parquet file.

    Args:
        kinds: Arrow's type name of every column.
        rows: values by column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in kinds.items()])
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), out)
    return out.getvalue()


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return records with the same keys as columns."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return found


def metric_rows(
    rounds: Sequence[RoundReport], references: MetricSums | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `metrics_parquet`."""
    for report in rounds:
        for split, rates in (("validation", report.validation), ("test", report.test)):
            if rates is not None:
                yield _row(report, "model", split, rates)
    if references is None or not rounds:
        return
    for scorer in SCORERS[1:]:
        for split in SPLITS:
            rates = references.rates(scorer, split)
            if rates is not None:
                yield _row(rounds[-1], scorer, split, rates)


def _row(report: RoundReport, scorer: str, split: str, rates: Rates) -> dict[str, Any]:
    return {
        "round": report.round,
        "kind": report.kind,
        "version": report.round - 1,
        "scorer": scorer,
        "split": split,
        **asdict(rates),
        "loss": report.loss if scorer == "model" else None,
        "participants": report.participants,
        "seconds": report.seconds,
        "vector_bytes": report.vector_bytes,
    }


_SHOWN: tuple[tuple[Metric, str], ...] = (("hr", "HR"), ("ndcg", "NDCG"))
_MISSING = "-"
_COLUMNS = (
    "method",
    "label",
    "protocol",
    "seed",
    "chosen",
    "users",
    *RATES,
    "validation_ndcg",
    "caution",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The test metrics of a method from one run.

    Attributes:
        seed: the seed of training and of the sampled candidates.
        rates: the rates on the test items.
        chosen: the choice by validation, such as "round 9" or "lambda 300", or empty.
        validation: the rates on the validation items, or None if they are not shown.
    """

    seed: int
    rates: Rates
    chosen: str = ""
    validation: Rates | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """A method's results under every protocol that it was measured under.

    Attributes:
        method: a stable name, for programs.
        label: the method, for people.
        samples: the samples for each protocol, one for each seed.
        note: a remark for readers.
        differences: the NDCG of the first row minus the NDCG of this row, for each protocol.
            Absent if the ranks of single users are unknown.
    """

    method: str
    label: str
    samples: Mapping[Protocol, Sequence[Sample]]
    note: str = ""
    differences: Mapping[Protocol, PairedBootstrap] = field(default_factory=dict)

    def result(self, protocol: Protocol) -> ResultRow | None:
        """Return means and deviations under a protocol, or None if it was not measured."""
        found = self.samples.get(protocol, ())
        if not found:
            return None
        return ResultRow(label=self.label, samples=tuple(sample.rates for sample in found))

    def on_validation(self, protocol: Protocol) -> ResultRow | None:
        """Return means and deviations on validation, or None if a run has no such rates."""
        found = [sample.validation for sample in self.samples.get(protocol, ())]
        known = tuple(rates for rates in found if rates is not None)
        if not known or len(known) < len(found):
            return None
        return ResultRow(label=self.label, samples=known)

    def chosen(self, protocol: Protocol) -> str:
        """Return the choices by validation under a protocol, in the order of seeds."""
        values = [sample.chosen for sample in self.samples.get(protocol, ())]
        if len(set(values)) < 2:
            return values[0] if values else ""
        shared = _common_start(values)
        return shared + "/".join(value.removeprefix(shared) for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonTable(Tabular):
    """The result of a run, ready to print and save.

    Attributes:
        rows: the results, the run's own algorithm first.
        protocols: the columns.
        at: the K of the metrics.
        cautions: a sentence for each column whose protocol flatters results.
    """

    rows: tuple[ComparisonRow, ...]
    protocols: tuple[Protocol, ...]
    at: int
    cautions: Mapping[Protocol, str] = field(default_factory=dict)

    def columns(self) -> Mapping[str, list[Any]]:
        """Return the columns of `to_csv`."""
        return columns_of(self._records())

    def __repr__(self) -> str:
        return f"ComparisonTable({len(self.rows)} methods, {', '.join(self.protocols)})"

    def _repr_html_(self) -> str:
        parts = [html_table(self.headings, map(self.cells, self.rows), caption=repr(self))]
        for protocol in self.protocols:
            known = ((row.label, row.result(protocol)) for row in self.rows)
            means = {label: result.mean("ndcg") for label, result in known if result is not None}
            parts.append(bars(means, caption=f"{self._marked(protocol)} NDCG@{self.at} on test"))
        return "".join([*parts, *(f"<p>{escape(note)}</p>" for note in self.notes)])

    @property
    def headings(self) -> list[str]:
        """Return the column headings. A column with a caution is marked."""
        metrics = []
        for protocol in self.protocols:
            metrics += [f"{self._marked(protocol)} {name}@{self.at}" for _, name in _SHOWN]
            if protocol in self._compared:
                metrics.append(f"{protocol} difference")
            if protocol in self._validated:
                metrics.append(f"{protocol} NDCG@{self.at} on validation")
        return ["method", *metrics, "seeds", "chosen on validation"]

    @property
    def _compared(self) -> set[Protocol]:
        """Return the protocols with differences."""
        return {protocol for row in self.rows for protocol in row.differences}

    @property
    def _validated(self) -> set[Protocol]:
        """Return the protocols whose rates on validation are shown."""
        known = ((row, protocol) for row in self.rows for protocol in self.protocols)
        return {protocol for row, protocol in known if row.on_validation(protocol) is not None}

    def cells(self, row: ComparisonRow) -> list[str]:
        """Return a row as text. Dashes stand in for missing measurements."""
        texts = []
        for protocol in self.protocols:
            result = row.result(protocol)
            texts += [_MISSING if result is None else result.text(key) for key, _ in _SHOWN]
            if protocol in self._compared:
                known = row.differences.get(protocol)
                texts.append(_MISSING if known is None else known.difference.text())
            if protocol in self._validated:
                validation = row.on_validation(protocol)
                texts.append(_MISSING if validation is None else validation.text("ndcg"))
        seeds = max((len(samples) for samples in row.samples.values()), default=0)
        return [row.label, *texts, str(seeds or _MISSING), self._choices(row)]

    def _choices(self, row: ComparisonRow) -> str:
        found = {protocol: row.chosen(protocol) for protocol in self.protocols}
        measured = {name: text for name, text in found.items() if text}
        if len(set(measured.values())) == 1:
            return next(iter(measured.values()))
        return "; ".join(f"{name}: {text}" for name, text in measured.items())

    @property
    def notes(self) -> list[str]:
        """Return a line for each column with a caution and each row with a note."""
        cautions = [
            f"{self._marked(protocol)}: {self.cautions[protocol]}"
            for protocol in self.protocols
            if self.cautions.get(protocol)
        ]
        if self._compared:
            cautions.append(
                f"difference: NDCG@{self.at} of {self.rows[0].label} minus that of the row, with "
                "the 95 % interval of a paired bootstrap over users. An = marks intervals that "
                "include 0: this split shows no difference."
            )
        return [*cautions, *(f"{row.label}: {row.note}" for row in self.rows if row.note)]

    def to_text(self) -> str:
        """Return aligned text, one line for each row."""
        table = [self.headings, *map(self.cells, self.rows)]
        return "\n".join([*aligned(table, left=(0, len(table[0]) - 1)), *self.notes])

    __str__ = to_text

    def to_markdown(self) -> str:
        """Return a Markdown table, followed by the notes."""
        titles = self.headings
        rule = ["---", *["---:"] * (len(titles) - 2), "---"]
        body = ([cell.replace("|", "\\|") for cell in self.cells(row)] for row in self.rows)
        lines = [f"| {' | '.join(line)} |" for line in (titles, rule, *body)]
        notes = [f"- {note}" for note in self.notes]
        return "\n".join([*lines, *(["", *notes] if notes else []), ""])

    def to_csv(self) -> str:
        """Return a CSV with a line for each method, protocol and seed, with all digits."""
        out = io.StringIO()
        writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        for record in self._records():
            writer.writerow(
                {
                    key: no_formula(value) if isinstance(value, str) else value
                    for key, value in record.items()
                }
            )
        return out.getvalue()

    def to_parquet(self) -> bytes:
        """Return the rows of `to_csv` as Parquet."""
        return parquet_of(
            dict.fromkeys(_COLUMNS, "string")
            | {"seed": "int64", "users": "int64"}
            | dict.fromkeys((*RATES, "validation_ndcg"), "double"),
            self._records(),
        )

    def to_record(self) -> dict[str, object]:
        """Return the means and deviations of the table as an object for JSON."""
        return {
            "at": self.at,
            "protocols": list(self.protocols),
            "cautions": dict(self.cautions),
            "rows": [
                {
                    "method": row.method,
                    "label": row.label,
                    "note": row.note,
                    "results": {
                        protocol: _record(row, protocol)
                        for protocol in self.protocols
                        if row.samples.get(protocol)
                    },
                }
                for row in self.rows
            ],
        }

    def to_json(self) -> str:
        """Return `to_record` as text."""
        return json.dumps(self.to_record(), indent=2, ensure_ascii=False) + "\n"

    def _marked(self, protocol: Protocol) -> str:
        return marked(protocol, self.cautions.get(protocol, ""))

    def _records(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            for protocol in self.protocols:
                for sample in row.samples.get(protocol, ()):
                    yield {
                        "method": row.method,
                        "label": row.label,
                        "protocol": protocol,
                        "seed": sample.seed,
                        "chosen": sample.chosen,
                        **asdict(sample.rates),
                        "validation_ndcg": sample.validation and sample.validation.ndcg,
                        "caution": self.cautions.get(protocol, ""),
                    }


def _record(row: ComparisonRow, protocol: Protocol) -> dict[str, object]:
    result = row.result(protocol)
    assert result is not None
    summary: dict[str, object] = {
        metric: {"mean": result.mean(metric), "deviation": result.deviation(metric)}
        for metric, _ in METRICS
    }
    known = row.differences.get(protocol)
    summary["difference"] = None if known is None else known.to_record()
    return summary | {"samples": [asdict(sample) for sample in row.samples[protocol]]}


def _common_start(values: Sequence[str]) -> str:
    """Return the words that all values begin with, so that a cut never splits a number."""
    words = [value.split(" ") for value in values]
    shared = 0
    while all(len(own) > shared + 1 for own in words) and len({own[shared] for own in words}) == 1:
        shared += 1
    return "".join(f"{word} " for word in words[0][:shared])
