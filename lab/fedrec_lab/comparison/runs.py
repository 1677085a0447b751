"""Runs side by side: the settings that differ, metrics with paired intervals, and curves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import PROTOCOLS
from fedrec.plan.cautions import marked
from fedrec.settings.validation import PATHS
from fedrec.showing import Tabular, html_table
from fedrec_lab.reports.comparison_table import (
    ComparisonRow,
    ComparisonTable,
    PairedBootstrap,
    Sample,
    paired_bootstrap,
)
from fedrec_lab.reports.drawing import as_element, why_no_figures
from fedrec_lab.reports.figures import (
    loss_by_round,
    overlaid,
    quality_by_bytes_sent,
    quality_by_round,
)
from fedrec_lab.reports.html import Fact, Figure, ReportContent, protocol_tables
from fedrec_lab.reports.result_row import METRICS, Metric, aligned
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import (
    SETTINGS_NAME,
    RunFolder,
    RunSummary,
    settings_table,
    summary_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsComparison(Tabular):
    """Runs side by side. The others are compared with the first.

    Attributes:
        runs: the runs' names.
        table: the chosen versions on test.
        settings: the settings that differ, each with its value in every run.
        differences: by run, what the first run's mean of a metric has over that run's.
        without: by run, why it has no differences.
        figures: the runs' curves, overlaid.
    """

    runs: tuple[str, ...]
    table: ComparisonTable
    settings: Mapping[str, tuple[str, ...]]
    differences: Mapping[str, Mapping[Metric, PairedBootstrap]]
    without: Mapping[str, str]
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
        """Return a sentence for each run but the first: its differences, or why it has none."""
        return tuple(self._findings())

    def _findings(self) -> Iterator[str]:
        at, titles = self.table.at, dict(METRICS)
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

    Figures of a simulation have intervals, because its folder has the rank of every user.

    Args:
        folders: the run folders, two or more.

    Raises:
        SettingsError: there are fewer than two runs, one is there twice, one measured nothing, or
            the K of their metrics differs.
        DataError: a path is not a run folder.
        VersionMismatch: a folder has a different format.
        StorageError: a folder is damaged.
    """
    paths = [Path(folder) for folder in folders]
    if len(paths) < 2 or len(set(map(os.path.realpath, paths))) < len(paths):
        raise SettingsError("A comparison needs two different runs or more.")
    found = [summary_of(path) for path in paths]
    for path, each in zip(paths, found, strict=True):
        if each.test is None:
            raise SettingsError(
                f"{path} has no measured round.",
                remedy="Compare runs of `fedrec simulate`, or recorded ones. An evaluation has its "
                "own table of results.",
            )
    if len({each.at for each in found}) > 1:
        values = ", ".join(f"{each.path}: {each.at}" for each in found)
        raise SettingsError(
            f"The runs have different values of evaluation.at: {values}.",
            remedy="Compare runs that have the same one.",
        )
    short = [path.resolve().name for path in paths]
    names = tuple(short if len(set(short)) == len(short) else map(str, paths))
    rounds = {
        name: RunFolder(each.path).rounds()
        for name, each in zip(names, found, strict=True)
        if each.protocol == found[0].protocol
    }
    differences, without = _differences(names, found)
    return RunsComparison(
        runs=names,
        table=_table(names, found, differences),
        settings=_differing(paths),
        differences=differences,
        without=without,
        figures=_figures(rounds, found[0]),
    )


def _differing(paths: Sequence[Path]) -> dict[str, tuple[str, ...]]:
    """Return the settings that differ between run folders, by dotted key."""
    flat = [dict(_flat(settings_table(path / SETTINGS_NAME), "", path)) for path in paths]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = {key: tuple(each.get(key, "-") for each in flat) for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _flat(table: Mapping[str, Any], before: str, folder: Path) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        key = f"{before}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.", folder)
        elif key in PATHS:
            # Relative paths start at the run's folder, so that the same file has several names.
            yield key, os.path.relpath(folder / value)
        else:
            yield key, str(value)


def _differences(
    names: Sequence[str], found: Sequence[RunSummary]
) -> tuple[dict[str, dict[Metric, PairedBootstrap]], dict[str, str]]:
    """Return every run's differences by metric, and the reason for each run without any."""
    differences: dict[str, dict[Metric, PairedBootstrap]] = {}
    without: dict[str, str] = {}
    ranks = [RunFolder(each.path).ranks() for each in found]
    for name, each, own in zip(names[1:], found[1:], ranks[1:], strict=True):
        if ranks[0] is None or own is None:
            lacking = names[0] if ranks[0] is None else name
            without[name] = f"{lacking} doesn't have the ranks of single users"
        elif each.protocol != found[0].protocol:
            without[name] = f"its protocol is {each.protocol}, not {found[0].protocol}"
        elif own[0] != ranks[0][0]:
            without[name] = "it was measured on other users or items"
        else:
            differences[name] = {
                metric: paired_bootstrap(ranks[0][1], own[1], at=each.at, metric=metric)
                for metric, _ in METRICS
                if metric != "recall"  # It equals HR, with one held-out item for each user.
            }
    return differences, without


def _table(
    names: Sequence[str],
    found: Sequence[RunSummary],
    differences: Mapping[str, Mapping[Metric, PairedBootstrap]],
) -> ComparisonTable:
    rows = []
    for name, each in zip(names, found, strict=True):
        protocol = next(known for known in PROTOCOLS if known == each.protocol)
        samples = {}
        if each.test is not None:
            seed = settings_table(each.path / SETTINGS_NAME)["federation"]["seed"]
            chosen = f"round {each.version}"
            samples[protocol] = (
                Sample(seed=seed, rates=each.test, chosen=chosen, validation=each.validation),
            )
        known = differences.get(name)
        rows.append(
            ComparisonRow(
                method=each.algorithm,
                label=name,
                samples=samples,
                note="" if each.state == "finished" else each.state,
                differences={} if known is None else {protocol: known["ndcg"]},
            )
        )
    measured = {each.protocol for each in found}
    return ComparisonTable(
        rows=tuple(rows),
        protocols=tuple(protocol for protocol in PROTOCOLS if protocol in measured),
        at=found[0].at,
        cautions={
            protocol: caution
            for protocol in PROTOCOLS
            for each in found
            if each.protocol == protocol and (caution := each.caution)
        },
    )


def _figures(rounds: Mapping[str, Sequence[RoundReport]], first: RunSummary) -> tuple[Figure, ...]:
    """Return the curves of runs under the first run's protocol. Plots without any are left out."""
    at, protocol = first.at, marked(first.protocol, first.caution)
    quality, sent, loss = {}, {}, {}
    for name, own in rounds.items():
        quality[name] = quality_by_round(own, at=at, protocol=protocol)
        sent[name] = quality_by_bytes_sent(own, at=at, protocol=protocol)
        loss[name] = loss_by_round(own)
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
