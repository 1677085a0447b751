"""Short summaries of runs, read from the folders that they left."""

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
from fedrec.state_folder import FolderLock
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import (
    CONTENT_NAME,
    REPORT_NAME,
    RESULTS_STEM,
    ROUNDS_NAME,
    SETTINGS_NAME,
    RunFolder,
)

RunState: TypeAlias = Literal[
    "finished", "ended early", "stopped", "interrupted", "under way", "unreadable"
]

_STAMP = re.compile(r"-(\d{8}-\d{6})(?:-\d+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in one line.

    Attributes:
        started: the time in the folder's name, or None.
        state: "stopped" can be resumed. "ended early" has fewer rounds than planned and can't be
            resumed. Examples are a deployed run that was stopped or not watched to its end, and a
            spent privacy budget. "interrupted" is a simulation that failed or was killed. "under
            way" has neither a report nor a checkpoint, or its process still trains. "unreadable"
            has a different format, or is damaged: `problem` has the reason.
        resumable: it has a checkpoint.
        flags: those of its command that aren't settings.
        protocol: the evaluation protocol of the rates.
        caution: a warning about the rates, empty if there is none, or None if it is unknown.
        rounds: the number of published rounds, or 0 if the run keeps none.
        planned: the number of rounds of the whole run, with the count and the last evaluation.
        test: the chosen version's metrics on test, or None if nothing was measured.
        version: the version chosen on validation, under the plan's protocol.
        upload_bytes: the bytes that one client had sent by the end.
        seconds: the duration of all rounds together.
    """

    path: Path
    state: RunState
    resumable: bool = False
    flags: tuple[str, ...] = ()
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
    """Yield the runs in a folder from new to old. Those without a time in their name come last.

    Raises:
        DataError: there is no such folder.
    """
    if not base.is_dir():
        raise DataError(
            f"{base} is not a folder.", remedy="Pass the folder of output.runs, by default `runs`."
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
    """Return the summary of a run folder.

    Raises:
        DataError: the path is not a run folder.
        VersionMismatch: the folder has a different format.
        StorageError: the folder is damaged.
    """
    folder = RunFolder.open(path)
    settings, rounds = settings_table(path / SETTINGS_NAME), folder.rounds()
    best = _chosen(rounds, noisy=settings["privacy"]["mechanism"] != "none")
    reported = (path / REPORT_NAME).exists() or (path / f"{RESULTS_STEM}.json").exists()
    planned = settings["rounds"]["total"] + 2 if (path / ROUNDS_NAME).exists() else 0
    resumable = (path / CHECKPOINT_FILE).exists()
    # A simulation that ends or is stopped removes its empty checkpoint's folder, a kill doesn't.
    trains = (path / CHECKPOINT_FILE).parent
    state: RunState = "under way"
    if reported:
        state = "ended early" if len(rounds) < planned else "finished"
        state = "stopped" if resumable else state
    elif trains.is_dir():
        state = "interrupted"
    if FolderLock.is_held(trains / "lock"):
        state = "under way"
    return RunSummary(
        path=path,
        state=state,
        resumable=resumable,
        flags=folder.flags(),
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


def settings_table(path: Path) -> dict[str, Any]:
    """Return the settings of a run folder's file by section, as they were written.

    Raises:
        DataError: the file is damaged.
    """
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
            f"{path} is not a valid file of a run: {error}.", remedy="Restore it from a backup."
        ) from error
    return found


def _caution(path: Path, protocol: str) -> str | None:
    """Return the warning of the run's own tables about their protocol, or None if there is none.

    A simulation has it in its results, a deployed run in its report.
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
    """Return the round that measured the result's version: the earliest of the best.

    Under noise it is the last measured one, because a choice would be a release without noise.
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
