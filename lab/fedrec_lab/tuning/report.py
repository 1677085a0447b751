"""The results of a study: trials as Parquet, the best settings, figures and a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fedrec.cli.terminal import TextTable
from fedrec.durable import write_whole
from fedrec.evaluation.metrics import RATES
from fedrec.section import as_toml
from fedrec_lab.reports.comparison_table import parquet_of
from fedrec_lab.reports.drawing import GroupPlot, Level, LinePlot, Plot, Series, why_no_figures
from fedrec_lab.reports.html import Figure
from fedrec_lab.reports.run_folder import RESULTS_STEM, RunFolder
from fedrec_lab.tuning.space import TriedSetting, Value
from fedrec_lab.tuning.study import Study, Trial

TRIALS_NAME = "trials.parquet"
BEST_NAME = "best.toml"


def write_study(study: Study, folder: RunFolder) -> None:
    """Write trials, the best settings, the result and, if matplotlib is installed, figures."""
    write_whole(folder.path / TRIALS_NAME, trials_parquet(study), private=False)
    if study.best is not None:
        folder.write_settings(study.best.settings, BEST_NAME)
    content = json.dumps(record_of(study), indent=2, ensure_ascii=False) + "\n"
    write_whole(folder.path / f"{RESULTS_STEM}.json", content.encode(), private=False)
    if study.trials and not why_no_figures():
        folder.write_figures(figures_of(study))


def trials_parquet(study: Study) -> bytes:
    """Return a line for each trial and seed. Each setting that was tried has a column."""
    keys = sorted({each.key for tried in study.tried.values() for each in tried})
    kinds = {"algorithm": "string", "trial": "int64", "seed": "int64"}
    kinds |= dict.fromkeys(keys, "string") | {"users": "int64"} | dict.fromkeys(RATES, "double")
    return parquet_of(kinds | {"note": "string"}, _lines(study))


def _lines(study: Study) -> Iterator[dict[str, Any]]:
    for trial in study.trials:
        for seed, run in trial.runs.items():
            yield {
                "algorithm": trial.algorithm,
                "trial": trial.number,
                "seed": seed,
                **{key: _bare(value) for key, value in trial.tried.items()},
                **({} if run.rates is None else asdict(run.rates)),
                "note": run.note,
            }


def record_of(study: Study) -> dict[str, Any]:
    """Return the study as one object for JSON."""
    best, rival, popularity = study.best, study.rival(), study.popularity
    difference = None if rival is None else study.above(rival)
    return {
        "at": study.at,
        "finished": study.finished,
        "trials": [_trial_record(trial) for trial in study.ranked()],
        "best": None if best is None else _trial_record(best),
        "compared_with": None if rival is None else _trial_record(rival),
        "difference": None if difference is None else difference.to_record(),
        "popularity": None if popularity is None else asdict(popularity),
        "above_popularity": study.beats_popularity,
        "notes": [*study.notes, *filter(None, [study.undecided()])],
    }


def _trial_record(trial: Trial) -> dict[str, Any]:
    return {
        "algorithm": trial.algorithm,
        "trial": trial.number,
        "values": dict(trial.values),
        "rates": None if trial.rates is None else asdict(trial.rates),
        "ndcg_by_seed": {
            str(seed): None if run.rates is None else run.rates.ndcg
            for seed, run in trial.runs.items()
        },
        "note": trial.note,
    }


def text_of(study: Study) -> Iterator[str | TextTable]:
    """Yield the report for a terminal: table, notes and the best settings as lines of a file."""
    if not study.trials:
        return
    best, at, popularity = study.best, study.at, study.popularity
    several = len(study.tried) > 1
    shown = study.best_of_algorithms() if several else study.ranked()
    rows = [[study.name(trial), *_cells(study, trial)] for trial in shown]
    if popularity:
        rows.append(["popularity", f"{popularity.hr:.4f}", f"{popularity.ndcg:.4f}", "-", ""])
    headers = ["on validation", f"HR@{at}", f"NDCG@{at}", "best minus this", ""]
    yield TextTable(rows=rows, headers=headers)
    yield from study.notes
    if best is None:
        yield "Every training diverged."
        return
    if study.undecided():
        yield study.undecided()
    if not study.beats_popularity:
        yield "No trial is better than popularity on validation. Name other values with --try."
    if best.number == 0 and not several:
        yield "The starting settings are the best of these."
        return
    yield (
        f"Best is {best.algorithm}. For the settings file:"
        if several
        else "Best for the settings file:"
    )
    sections: dict[str, list[str]] = {}
    named = {"algorithm.name": best.algorithm, **best.tried} if several else best.values
    for key, value in named.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {as_toml(value)}")
    for section, lines in sections.items():
        yield "\n".join([f"[{section}]", *lines])


def _cells(study: Study, trial: Trial) -> list[str]:
    if trial.rates is None:
        return ["-", "-", "-", trial.note]
    found = None if trial is study.best else study.above(trial)
    difference = "-" if found is None else found.difference.text()
    return [f"{trial.rates.hr:.4f}", f"{trial.rates.ndcg:.4f}", difference, trial.note]


def figures_of(study: Study) -> list[Figure]:
    """Return history, importance and slices."""
    y_label = f"NDCG@{study.at} on validation"
    found = [
        Figure(
            name="history",
            plot=_history(study, y_label),
            caption="Each trial in its order, and the best so far.",
        )
    ]
    for algorithm, tried in study.tried.items():
        trials = [each for each in study.trials if each.algorithm == algorithm]
        done = [each for each in trials if each.ndcg is not None]
        importance = importance_of(done, tried)
        if importance:
            plot = GroupPlot(
                labels=tuple(_short(key) for key in importance),
                series=(Series(label="share", y=tuple(importance.values())),),
                x_label="setting",
                y_label="share of the variance of NDCG",
            )
            caption = f"The share of the variance of {algorithm} that each setting explains."
            found.append(Figure(name=f"importance-{algorithm}", plot=plot, caption=caption))
        for each in tried:
            if done:
                found.append(
                    Figure(
                        name=f"slice-{algorithm}-{each.key.replace('.', '-')}",
                        plot=_slice(done, each, y_label),
                        caption=f"{algorithm}: the best and the mean trial of each value.",
                    )
                )
    return found


def _history(study: Study, y_label: str) -> LinePlot:
    series = []
    for colour, algorithm in enumerate(study.tried):
        own = [each for each in study.trials if each.algorithm == algorithm]
        reached, best = [each.ndcg or 0.0 for each in own], 0.0
        so_far = tuple(best := max(best, ndcg) for ndcg in reached)
        numbers = tuple(float(each.number + 1) for each in own)
        best_line = Series(
            label=f"{algorithm}, best so far", x=numbers, y=so_far, colour=colour % 6, steps=True
        )
        each_line = replace(
            best_line, label=algorithm, y=tuple(reached), colour=1, markers=True, steps=False
        )
        series += [best_line] if len(study.tried) > 1 else [best_line, each_line]
    popularity = study.popularity
    return LinePlot(
        series=tuple(series),
        levels=() if popularity is None else (Level(label="popularity", y=popularity.ndcg),),
        x_label="trial",
        y_label=y_label,
        x_is_whole=True,
        y_bottom=_below([y for each in series for y in each.y]),
    )


def _slice(done: list[Trial], tried: TriedSetting, y_label: str) -> Plot:
    by_value: dict[Value, list[float]] = {}
    for trial in done:
        by_value.setdefault(trial.tried[tried.key], []).append(trial.ndcg or 0.0)
    numbers = [value for value in by_value if not isinstance(value, (str, bool))]
    places = sorted(numbers) if len(numbers) == len(by_value) else list(by_value)
    best = tuple(max(by_value[place]) for place in places)
    mean = tuple(math.fsum(by_value[place]) / len(by_value[place]) for place in places)
    if len(numbers) < len(by_value):
        series = (Series(label="best", y=best), Series(label="mean", y=mean, colour=1))
        labels = tuple(map(str, places))
        return GroupPlot(labels=labels, series=series, x_label=tried.key, y_label=y_label)
    x = tuple(map(float, sorted(numbers)))
    return LinePlot(
        series=(
            Series(label="best", x=x, y=best, markers=True),
            Series(label="mean", x=x, y=mean, markers=True, colour=1),
        ),
        x_label=tried.key,
        y_label=y_label,
        x_is_log=x[0] > 0,
        x_ticks=x,
        y_bottom=_below(mean),
    )


def _below(values: Sequence[float]) -> float:
    """Return where an axis begins on which differences between these can be seen."""
    return max(0.0, min(values) - 0.5 * (max(values) - min(values)) - 1e-3)


def importance_of(done: list[Trial], tried: tuple[TriedSetting, ...]) -> Mapping[str, float]:
    """Return each setting's share of the variance of NDCG, the largest first.

    The share is the variance between the means of a setting's values, divided by the variance of
    all trials (eta squared). Settings that depend on each other can add up to less or more than 1.
    Return nothing if there are too few trials.
    """
    ndcg = np.array([trial.ndcg for trial in done])
    if len(done) < _FEWEST_TRIALS or not ndcg.var():
        return {}
    found = {}
    for each in tried:
        values = [trial.tried[each.key] for trial in done]
        means = {
            value: np.mean([one for one, own in zip(ndcg, values, strict=True) if own == value])
            for value in values
        }
        found[each.key] = float(np.var([means[value] for value in values]) / ndcg.var())
    return dict(sorted(found.items(), key=lambda share: -share[1]))


_FEWEST_TRIALS = 8


def _short(key: str) -> str:
    return key.removeprefix("algorithm.")


def _bare(value: Value) -> str:
    return as_toml(value).replace('"', "")
