"""What a run folder says of its run, in few words: for lists of runs."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedrec.errors import DataError, FedrecError
from fedrec.evaluation.metrics import Rates
from fedrec.formats import CHECKPOINT_FILE
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import (
    CONTENT_NAME,
    RESULTS_STEM,
    ROUNDS_NAME,
    SETTINGS_NAME,
    RunFolder,
)

RunState: TypeAlias = Literal["finished", "ended early", "stopped", "under way", "unreadable"]

_STAMP = re.compile(r"-(\d{8}-\d{6})(?:-\d+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in one line.

    Attributes:
        started: from the folder's name; None where it has no time in it.
        state: "stopped" can be gone on with; "ended early" has fewer rounds than planned and
            nothing to go on with, as a deployed run has that was stopped or not watched to its
            end, and one whose privacy budget was spent; "under way" has neither a report nor a
            checkpoint;
            "unreadable" is of another format, or damaged: `problem` says why.
        protocol: what the rates were measured under.
        caution: what has to stand beside them; empty for nothing, None where nobody knows.
        rounds: published ones; 0 where the run keeps none.
        planned: rounds of the whole run, with the count and the last evaluation.
        test: what the chosen version reached on test; None where nothing was measured.
        version: the version that validation chose, under the plan's protocol.
        upload_bytes: what one client had sent by the end.
        seconds: all rounds together.
    """

    path: Path
    state: RunState
    started: datetime | None = None
    algorithm: str = ""
    structure: str = ""
    protection: str = ""
    at: int = 0
    protocol: str = ""
    caution: str | None = ""
    rounds: int = 0
    planned: int = 0
    version: int | None = None
    validation: Rates | None = None
    test: Rates | None = None
    upload_bytes: int = 0
    seconds: float = 0.0
    problem: str = ""


def all_runs(base: Path) -> Iterator[RunSummary]:
    """Yield the runs in a folder, the newest first; those without a time in their name last.

    Raises:
        DataError: there is no such folder.
    """
    if not base.is_dir():
        raise DataError(
            f"{base} is no folder.", remedy="Give the folder of output.runs, by default `runs`."
        )
    found = [path for path in base.iterdir() if (path / SETTINGS_NAME).is_file()]
    for path in sorted(found, key=_by_time, reverse=True):
        try:
            yield summary_of(path)
        except FedrecError as error:
            yield RunSummary(
                path=path, state="unreadable", started=_started(path), problem=error.message
            )


def summary_of(path: Path) -> RunSummary:
    """Return what a run folder says of its run.

    Raises:
        DataError: it is no run folder.
        VersionMismatch: it is of another format.
        StorageError: it is damaged.
    """
    folder = RunFolder.open(path)
    settings, rounds = _settings(path / SETTINGS_NAME), folder.rounds()
    best = _chosen(rounds, noisy=settings["privacy"]["mechanism"] != "none")
    reported = (path / "report.html").exists() or (path / "results.json").exists()
    planned = settings["rounds"]["total"] + 2 if (path / ROUNDS_NAME).exists() else 0
    state: RunState = "under way"
    if (path / CHECKPOINT_FILE).exists():
        state = "stopped"
    elif reported:
        state = "ended early" if len(rounds) < planned else "finished"
    return RunSummary(
        path=path,
        state=state,
        started=_started(path),
        algorithm=settings["algorithm"]["name"],
        structure=settings["update"]["structure"],
        protection=settings["protection"]["name"],
        at=settings["evaluation"]["at"],
        protocol=settings["evaluation"]["protocol"],
        caution=_caution(path, settings["evaluation"]["protocol"]),
        rounds=len(rounds),
        planned=planned,
        version=None if best is None else int(best.round) - 1,
        validation=None if best is None else best.validation,
        test=None if best is None else best.test,
        upload_bytes=sum(report.vector_bytes for report in rounds),
        seconds=sum(report.seconds for report in rounds),
    )


def _settings(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
        for section, key in (
            ("algorithm", "name"),
            ("update", "structure"),
            ("protection", "name"),
            ("evaluation", "at"),
            ("evaluation", "protocol"),
            ("rounds", "total"),
            ("privacy", "mechanism"),
        ):
            found[section][key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not what a run leaves: {error}.", remedy="Restore it from a backup."
        ) from error
    return found


def _caution(path: Path, protocol: str) -> str | None:
    """Return what the run's own tables say of its protocol, None where they say nothing.

    A simulation's are in its results, a deployed run's in its report.
    """
    if protocol == "full":
        return ""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((path / f"{RESULTS_STEM}.json").read_bytes())
        if protocol in found["protocols"]:
            return str(found["cautions"].get(protocol, ""))
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((path / CONTENT_NAME).read_bytes())
        if found["protocol"] == protocol and found["caution"] is not None:
            return str(found["caution"])
    return None


def _chosen(rounds: tuple[RoundReport, ...], *, noisy: bool) -> RoundReport | None:
    """Return the round that measured the version of the result: the earliest of the best.

    Under noise it is the last one measured: a choice would be a release without noise.
    """
    measured = [report for report in rounds if report.validation and report.test]
    if noisy or not measured:
        return measured[-1] if measured else None
    return max(measured, key=lambda report: report.validation.ndcg if report.validation else 0.0)


def _started(path: Path) -> datetime | None:
    found = _STAMP.search(path.name)
    if found is None:
        return None
    try:
        return datetime.strptime(found[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def _by_time(path: Path) -> tuple[str, str]:
    found = _STAMP.search(path.name)
    return (found[1] if found else "", path.name)
