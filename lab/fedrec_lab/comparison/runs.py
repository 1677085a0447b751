"""Runs side by side: the settings that differ, metrics with paired intervals, and curves."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import PROTOCOLS
from fedrec.plan.cautions import marked
from fedrec.showing import Tabular, html_table
from fedrec_lab.comparison.measured_runs import MeasuredRun, measured_runs
from fedrec_lab.reports.comparison_table import (
    ComparisonRow,
    ComparisonTable,
    Interval,
    PairedBootstrap,
    paired_bootstrap,
)
from fedrec_lab.reports.drawing import as_element, why_no_figures
from fedrec_lab.reports.figures import (
    averaged,
    loss_by_round,
    overlaid,
    quality_by_bytes_sent,
    quality_by_round,
)
from fedrec_lab.reports.html import Fact, Figure, ReportContent, protocol_tables
from fedrec_lab.reports.result_row import METRICS, Metric, ResultRow, aligned
from fedrec_lab.reports.run_folder import RunFolder

_COMPARED: tuple[Metric, ...] = ("hr", "ndcg", "mrr")
"""Recall equals HR, with one held-out item for each user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsComparison(Tabular):
    """Runs side by side. The others are compared with the first.

    Attributes:
        runs: the runs' names.
        table: the chosen versions on test.
        settings: the settings that differ, each with its value in every run.
        differences: by run, what the first run's mean of a metric has over that run's.
        without: by run, why it has no differences.
        over_seeds: by run of several seeds, the mean of a metric with its 95 % interval.
        figures: the runs' curves, overlaid.
    """

    runs: tuple[str, ...]
    table: ComparisonTable
    settings: Mapping[str, tuple[str, ...]]
    differences: Mapping[str, Mapping[Metric, PairedBootstrap]]
    without: Mapping[str, str]
    over_seeds: Mapping[str, Mapping[Metric, Interval]]
    figures: tuple[Figure, ...]

    def columns(self) -> Mapping[str, list[Any]]:
        """Return the columns of the table."""
        return self.table.columns()

    def __repr__(self) -> str:
        return f"RunsComparison({len(self.runs)} runs, {len(self.settings)} settings differ)"

    def _repr_html_(self) -> str:
        drawn = () if why_no_figures() else self.figures
        return "".join(
            [
                f"<p>{escape(repr(self))}</p>",
                html_table(("", *self.runs), self._setting_rows(), caption="settings that differ"),
                self.table._repr_html_(),
                *(f"<p>{escape(sentence)}</p>" for sentence in self.findings),
                *(f"<figure>{as_element(figure.plot)}</figure>" for figure in drawn),
            ]
        )

    @property
    def findings(self) -> tuple[str, ...]:
        """Return a sentence for each run of several seeds, and for each run but the first.

        The latter has its differences, or why it has none.
        """
        return tuple(self._findings())

    def _findings(self) -> Iterator[str]:
        at, titles = self.table.at, dict(METRICS)
        for name, means in self.over_seeds.items():
            texts = [
                f"{titles[key]}@{at} {each.estimate:.4f} [{each.low:.4f}, {each.high:.4f}]"
                for key, each in means.items()
            ]
            yield f"{name}: {', '.join(texts)}, the mean over seeds with its 95 % interval."
        for name in self.runs[1:]:
            found = self.differences.get(name)
            if found is None:
                yield f"{name}: no interval, because {self.without[name]}."
                continue
            texts = [f"{titles[key]}@{at} {each.difference.text()}" for key, each in found.items()]
            one = next(iter(found.values()))
            yield (
                f"{self.runs[0]} minus {name}: {', '.join(texts)}. {one.confidence:.0%} paired "
                f"bootstrap intervals over {one.users} users, = where they include 0."
            )

    def _setting_rows(self) -> list[tuple[str, ...]]:
        return [(key, *values) for key, values in self.settings.items()]

    def to_text(self) -> str:
        """Return the settings that differ, the table and the findings."""
        rows = self._setting_rows() or [("no setting differs", *[""] * len(self.runs))]
        settings = aligned([("setting", *self.runs), *rows], left=range(len(self.runs) + 1))
        return "\n".join([*settings, "", self.table.to_text(), *self.findings])

    __str__ = to_text

    def to_record(self) -> dict[str, object]:
        """Return everything but the curves as an object for JSON."""
        return {
            "runs": list(self.runs),
            "settings": {key: list(values) for key, values in self.settings.items()},
            "differences": {
                name: {metric: each.to_record() for metric, each in found.items()}
                for name, found in self.differences.items()
            },
            "without_differences": dict(self.without),
            "over_seeds": {
                name: {metric: asdict(each) for metric, each in means.items()}
                for name, means in self.over_seeds.items()
            },
            **self.table.to_record(),
        }

    def write(self, folder: str | Path) -> Path:
        """Write tables, figures (SVG and PNG) and a page into a folder. Return the page's path.

        Raises:
            StorageError: a file cannot be written.
        """
        run = RunFolder(Path(folder))
        run.write_results(self.table)
        if not why_no_figures():
            run.write_figures(self.figures)
        return run.write_report(self._content())

    def _content(self) -> ReportContent:
        own, *also = protocol_tables(self.table)
        return ReportContent(
            title="Runs compared",
            subtitle=f"{', '.join(self.runs[1:])} with {self.runs[0]}",
            rows=own.rows,
            at=self.table.at,
            protocol=own.protocol,
            caution=own.caution,
            also=tuple(also),
            findings=self.findings,
            figures=self.figures,
            facts=tuple(
                Fact(name=key, value="; ".join(map(": ".join, zip(self.runs, values, strict=True))))
                for key, values in self.settings.items()
            ),
        )


def compare_runs(*folders: str | Path) -> RunsComparison:
    """Compare finished runs, the others with the first.

    Runs that differ only in `federation.seed` are one row: a mean over seeds. Simulations and
    evaluations have intervals, because their folders have the rank of every user.

    Args:
        folders: the run folders, two or more.

    Raises:
        SettingsError: there are fewer than two runs, one is there twice, one measured nothing, or
            the K of their metrics differs.
        DataError: a path is not a run folder.
        VersionMismatch: a folder has a different format.
        StorageError: a folder is damaged.
    """
    for folder in folders:
        if not isinstance(folder, str | os.PathLike):
            raise SettingsError(
                f"A run is of type {type(folder).__name__}, expected the path of its folder.",
                remedy="For a simulation's result, pass the path that save_run returns.",
            )
    paths = [Path(folder) for folder in folders]
    if len(paths) < 2 or len(set(map(os.path.realpath, paths))) < len(paths):
        raise SettingsError("A comparison needs two different runs or more.")
    found = measured_runs(paths)
    if len({each.at for each in found}) > 1:
        values = ", ".join(f"{each.name}: {each.at}" for each in found)
        raise SettingsError(
            f"The runs have different values of evaluation.at: {values}.",
            remedy="Compare runs that have the same one.",
        )
    differences, without = _differences(found)
    keys = dict.fromkeys(key for each in found for key in each.settings)
    settings = {key: tuple(each.settings.get(key, "-") for each in found) for key in keys}
    return RunsComparison(
        runs=tuple(each.name for each in found),
        table=_table(found, differences),
        settings={key: values for key, values in settings.items() if len(set(values)) > 1},
        differences=differences,
        without=without,
        over_seeds=_over_seeds(found),
        figures=_figures(found),
    )


def _over_seeds(found: Sequence[MeasuredRun]) -> dict[str, dict[Metric, Interval]]:
    """Return the mean of each metric over a run's seeds, with Student's 95 % interval."""
    from scipy.special import stdtrit

    intervals: dict[str, dict[Metric, Interval]] = {}
    for each in found:
        samples = each.samples.get(found[0].protocol, ())
        if len(samples) < 2:
            continue
        row = ResultRow(label=each.name, samples=tuple(sample.rates for sample in samples))
        wide = float(stdtrit(len(samples) - 1, 0.975)) / math.sqrt(len(samples))
        for metric in _COMPARED:
            mean, half = row.mean(metric), wide * (row.deviation(metric) or 0.0)
            interval = Interval(estimate=mean, low=mean - half, high=mean + half)
            intervals.setdefault(each.name, {})[metric] = interval
    return intervals


def _differences(
    found: Sequence[MeasuredRun],
) -> tuple[dict[str, dict[Metric, PairedBootstrap]], dict[str, str]]:
    """Return every run's differences by metric, and the reason for each run without any."""
    differences: dict[str, dict[Metric, PairedBootstrap]] = {}
    without: dict[str, str] = {}
    first, protocol = found[0], found[0].protocol
    ranks = first.ranks(protocol)
    for each in found[1:]:
        own = each.ranks(protocol) if protocol in each.samples else None
        if protocol not in each.samples:
            without[each.name] = f"its protocol is {each.protocol}, not {protocol}"
        elif ranks is None or own is None:
            lacking = first.name if ranks is None else each.name
            without[each.name] = f"{lacking} doesn't have the ranks of single users"
        elif each.ranking and first.ranking and each.ranking.whose != first.ranking.whose:
            without[each.name] = "it was measured on other users or items"
        else:
            differences[each.name] = {
                metric: paired_bootstrap(ranks, own, at=first.at, metric=metric)
                for metric in _COMPARED
            }
    return differences, without


def _table(
    found: Sequence[MeasuredRun], differences: Mapping[str, Mapping[Metric, PairedBootstrap]]
) -> ComparisonTable:
    rows = []
    for each in found:
        known = differences.get(each.name)
        rows.append(
            ComparisonRow(
                method=each.algorithm,
                label=each.name,
                samples=each.samples,
                note=each.note,
                differences={} if known is None else {found[0].protocol: known["ndcg"]},
            )
        )
    return ComparisonTable(
        rows=tuple(rows),
        protocols=tuple(
            protocol for protocol in PROTOCOLS if any(protocol in each.samples for each in found)
        ),
        at=found[0].at,
        cautions={key: value for each in found for key, value in each.cautions.items() if value},
    )


def _figures(found: Sequence[MeasuredRun]) -> tuple[Figure, ...]:
    """Return the curves of runs under the first run's protocol. Plots without any are left out."""
    first = found[0]
    at, protocol = first.at, marked(first.protocol, first.cautions.get(first.protocol, ""))
    quality, sent, loss = {}, {}, {}
    for each in found:
        if each.rounds and each.protocol == first.protocol:
            own = each.rounds
            quality[each.name] = averaged(
                [quality_by_round(one, at=at, protocol=protocol) for one in own]
            )
            sent[each.name] = averaged(
                [quality_by_bytes_sent(one, at=at, protocol=protocol) for one in own]
            )
            loss[each.name] = averaged([loss_by_round(one) for one in own])
    if not quality:
        return ()
    ndcg, hr = f"NDCG@{at}", f"HR@{at}"
    plots = (
        (
            "ndcg-by-round",
            overlaid(quality, ndcg),
            f"{ndcg} on validation by the model's version.",
        ),
        ("hr-by-round", overlaid(quality, hr), f"{hr} on validation by the model's version."),
        ("ndcg-by-bytes", overlaid(sent, ndcg), f"{ndcg} by the bytes that a client has sent."),
        ("loss", overlaid(loss, "loss"), "Training loss by round."),
    )
    return tuple(
        Figure(name=name, plot=plot, caption=caption)
        for name, plot, caption in plots
        if plot.series
    )
