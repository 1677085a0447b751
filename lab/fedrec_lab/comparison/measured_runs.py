"""The quality that folders of finished runs report. Runs that differ in their seed are one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fedrec.errors import SettingsError, StorageError
from fedrec.evaluation.metrics import PROTOCOLS, Protocol
from fedrec.settings.validation import PATHS
from fedrec_lab.reports.comparison_table import Sample
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import RESULTS_STEM, SETTINGS_NAME, RunFolder, UserRanking
from fedrec_lab.reports.run_summary import RunSummary, settings_table, summary_of

SEED = "federation.seed"
_SAMPLES = TypeAdapter(tuple[Sample, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """The results of a run's own algorithm on test, or those of runs with different seeds.

    Attributes:
        name: the folder's name, and the number of further runs.
        samples: a sample for each seed, by protocol, that of the settings first.
        settings: by dotted key, as text.
        note: the state of a run that isn't finished, or empty.
        cautions: a warning by protocol, absent if it is unknown.
        ranking: the users' ranks, or None if the folder has none.
        rounds: the rounds of each run, in the order of seeds. None for an evaluation.
    """

    name: str
    algorithm: str
    at: int
    samples: Mapping[Protocol, tuple[Sample, ...]]
    settings: Mapping[str, str]
    note: str = ""
    cautions: Mapping[Protocol, str]
    ranking: UserRanking | None
    rounds: tuple[tuple[RoundReport, ...], ...] = ()

    @property
    def protocol(self) -> Protocol:
        """The protocol of the settings, or if that was not measured, the first one."""
        return next(iter(self.samples))

    def ranks(self, protocol: Protocol) -> NDArray[np.float64] | None:
        """Return the users' ranks for each seed, (n_seeds, n_users), or None if unknown."""
        if self.ranking is None:
            return None
        seeds = [sample.seed for sample in self.samples[protocol]]
        known = [self.ranking.ranks.get((protocol, seed)) for seed in seeds]
        found = [each for each in known if each is not None]
        return np.stack(found) if found and len(found) == len(known) else None

    def may_join(self, other: MeasuredRun) -> bool:
        """Return whether two runs differ in their seed alone."""
        mine, theirs = (dict(each.settings) | {SEED: ""} for each in (self, other))
        users = [None if each.ranking is None else each.ranking.whose for each in (self, other)]
        seeds = [
            {sample.seed for own in each.samples.values() for sample in own}
            for each in (self, other)
        ]
        return (
            mine == theirs
            and users[0] == users[1]
            and self.note == other.note
            and bool(self.rounds) == bool(other.rounds)
            and list(self.samples) == list(other.samples)
            and seeds[0].isdisjoint(seeds[1])
        )

    def joined(self, other: MeasuredRun) -> MeasuredRun:
        """Return this run with the samples of another one."""
        number = 1 + self.settings[SEED].count(",")
        name = self.name if number == 1 else self.name.rpartition(" + ")[0]
        mine, theirs = self.ranking, other.ranking
        ranks = {} if mine is None or theirs is None else {**mine.ranks, **theirs.ranks}
        return replace(
            self,
            name=f"{name} + {number} {'seed' if number == 1 else 'seeds'}",
            samples={key: own + other.samples[key] for key, own in self.samples.items()},
            settings=dict(self.settings) | {SEED: f"{self.settings[SEED]}, {other.settings[SEED]}"},
            ranking=mine and replace(mine, ranks=ranks),
            rounds=self.rounds + other.rounds,
        )


def measured_runs(paths: Sequence[Path]) -> tuple[MeasuredRun, ...]:
    """Return what run folders measured. Those that differ in their seed alone are one.

    Raises:
        SettingsError: a folder has no measured round and no results.
        DataError: a path is not a run folder.
        VersionMismatch: a folder has a different format.
        StorageError: a folder is damaged.
    """
    short = [path.resolve().name for path in paths]
    names = short if len(set(short)) == len(short) else list(map(str, paths))
    found: list[MeasuredRun] = []
    for name, path in zip(names, paths, strict=True):
        run = _measured(name, path)
        place = next((at for at, each in enumerate(found) if each.may_join(run)), None)
        if place is None:
            found.append(run)
        else:
            found[place] = found[place].joined(run)
    return tuple(found)


def _measured(name: str, path: Path) -> MeasuredRun:
    summary, table = summary_of(path), settings_table(path / SETTINGS_NAME)
    folder, own = RunFolder(path), next(p for p in PROTOCOLS if p == summary.protocol)
    # An evaluation keeps no rounds, and then none are planned.
    samples, cautions = ({}, {}) if summary.planned else _evaluated(summary, own)
    if summary.test is not None:
        chosen = f"round {summary.version}"
        sample = Sample(
            seed=table["federation"]["seed"],
            rates=summary.test,
            chosen=chosen,
            validation=summary.validation,
        )
        samples = {own: (sample,)}
        cautions = {own: summary.caution} if summary.caution else {}
    if not samples:
        raise SettingsError(
            f"{path} has no measured round and no results.",
            remedy="Compare runs of `fedrec simulate` and `fedrec evaluate`, or recorded ones. "
            "Resume an evaluation that was stopped.",
        )
    return MeasuredRun(
        name=name,
        algorithm=summary.algorithm,
        at=summary.at,
        samples=samples,
        settings=dict(_flat(table, "", path)),
        note="" if summary.state == "finished" or summary.test is None else summary.state,
        cautions=cautions,
        ranking=folder.ranks(),
        rounds=() if summary.test is None else (folder.rounds(),),
    )


def _evaluated(
    summary: RunSummary, first: Protocol
) -> tuple[dict[Protocol, tuple[Sample, ...]], dict[Protocol, str]]:
    """Return the own algorithm's samples in an evaluation's table, and the table's cautions."""
    path = summary.path / f"{RESULTS_STEM}.json"
    try:
        found = json.loads(path.read_bytes())
        rows = [row["results"] for row in found["rows"] if row["method"] == summary.algorithm]
        samples = {
            protocol: _SAMPLES.validate_python(rows[0][protocol]["samples"])
            for protocol in sorted(PROTOCOLS, key=lambda each: each != first)
            if rows and protocol in rows[0]
        }
        return samples, dict(found["cautions"])
    except FileNotFoundError:
        return {}, {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{path} cannot be read: {error}.", remedy="Restore the folder from a backup."
        ) from error


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
