"""The folder that every run leaves behind, and what it says of its run in few words."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel

from fedrec.clock import Clock, SystemClock
from fedrec.durable import write_whole
from fedrec.environment import Provenance, describe_environment
from fedrec.errors import DataError, FedrecError, StorageError
from fedrec.evaluation.metrics import MetricSums, Rates
from fedrec.formats import (
    CHECKPOINT_FILE,
    ENVIRONMENT_NAME,
    check_run_folder,
    check_runs_folder,
    no_run_folder,
)
from fedrec.settings.explain import settings_to_toml
from fedrec.settings.schema import Settings
from fedrec.settings.validation import PATHS
from fedrec_lab.reports.comparison_table import ComparisonTable, metrics_parquet
from fedrec_lab.reports.drawing import as_png, as_svg_file
from fedrec_lab.reports.html import Figure, ReportContent, render_report
from fedrec_lab.reports.ledger import Ledger
from fedrec_lab.reports.round_report import RoundReport

SETTINGS_NAME = "resolved.toml"
ROUNDS_NAME = "rounds.jsonl"
METRICS_NAME = "metrics.parquet"
LEDGER_NAME = "ledger.json"
REPORT_NAME = "report.html"
CONTENT_NAME = "report.json"
FIGURES_FOLDER = "figures"
RESULTS_STEM = "results"


class RunFolder:
    """Writes a run's files as they come to be known; the model is written by `Recommender`.

    Args:
        path: an existing folder; see `create` and `open`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def create(
        cls,
        base: str | Path,
        name: str,
        clock: Clock | None = None,
        *,
        began: float | None = None,
    ) -> RunFolder:
        """Make ``<base>/<name>-<stamp>``, the stamp being the time in UTC.

        Args:
            began: when the run began, in Unix seconds, or None for the current time.

        Raises:
            StorageError: it cannot be made.
        """
        seconds = (clock or SystemClock()).now() if began is None else began
        start = datetime.fromtimestamp(seconds, tz=UTC)
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"
        stem = f"{readable}-{start:%Y%m%d-%H%M%S}"
        check_runs_folder(Path(base))
        try:
            Path(base).mkdir(parents=True, exist_ok=True)
            for number in range(1, 1000):
                path = Path(base) / (stem if number == 1 else f"{stem}-{number}")
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                return cls(path)
        except OSError as error:
            raise no_run_folder(Path(base), error) from error
        raise StorageError(f"{base} has 999 runs called {stem} already.")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Return the folder of an earlier run, to go on with it.

        Raises:
            DataError: there is none.
            VersionMismatch: it has another format, or no number of one.
        """
        if not (Path(path) / SETTINGS_NAME).is_file():
            raise DataError(
                f"{path} is no run folder: it has no {SETTINGS_NAME}.",
                remedy="Give the folder whose path the run printed.",
            )
        check_run_folder(Path(path))
        return cls(Path(path))

    @contextmanager
    def removed_if_empty(self) -> Iterator[None]:
        """Remove the folder where what begins here fails before it leaves anything in it."""
        try:
            yield
        except BaseException:
            # A folder with content is not removed, which is what is wanted.
            with suppress(OSError):
                self.path.rmdir()
            raise

    def write_settings(self, settings: BaseModel, name: str = SETTINGS_NAME) -> None:
        """Write every setting with its value, as TOML that can be run again from this folder."""
        heading = "The settings of this run, defaults included."
        if isinstance(settings, Settings):
            settings = _seen_from(settings, self.path)
        self._write(name, settings_to_toml(settings, heading=heading))

    def write_environment(self, provenance: Provenance | None = None) -> None:
        """Write format, versions, machine and, where this process trains, what trains how."""
        self._write(ENVIRONMENT_NAME, describe_environment(provenance).to_json())

    def go_on(self, present: Provenance, *, accepted: bool, clock: Clock | None = None) -> None:
        """Check that what trains is what trained here, or write down that another was accepted.

        For folders of several trainings; a single one's checkpoint knows better, by the round.

        Raises:
            RefusedError: it differs, and nobody accepted that.
            StorageError: the folder's record is damaged.
        """
        path = self.path / ENVIRONMENT_NAME
        try:
            found = Provenance.from_json(json.loads(path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{path} cannot be read: {error}.", remedy="Restore the folder from a backup."
            ) from error
        now = (clock or SystemClock()).now()
        kept = found.continued(
            present, what=f"The run folder {self.path}", round_id=None, now=now, accepted=accepted
        )
        if kept != found:
            self.write_environment(kept)

    def append_round(self, report: RoundReport) -> None:
        """Add a round to `rounds.jsonl`; what is there is readable while the run goes on.

        After a crash a resumed run may write a round again; then the last line counts.
        """
        path = self.path / ROUNDS_NAME
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(report.to_json() + "\n")
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error}.", remedy="Make space and resume the run."
            ) from error

    def appending(self, told: Callable[[RoundReport], None]) -> Callable[[RoundReport], None]:
        """Return what adds a round to `rounds.jsonl` and then tells of it."""

        def note(report: RoundReport) -> None:
            self.append_round(report)
            told(report)

        return note

    def rounds(self) -> tuple[RoundReport, ...]:
        """Return the rounds written so far, each once, in ascending order."""
        try:
            lines = (self.path / ROUNDS_NAME).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return ()
        complete = lines if not lines or lines[-1].endswith("}") else lines[:-1]
        found = {report.round: report for report in map(RoundReport.from_json, complete)}
        return tuple(found[number] for number in sorted(found))

    def write_metrics(
        self, rounds: Sequence[RoundReport], references: MetricSums | None = None
    ) -> None:
        """Write all rounds as Parquet, and once more as JSON lines, each round once."""
        write_whole(self.path / METRICS_NAME, metrics_parquet(rounds, references), private=False)
        self._write(ROUNDS_NAME, "".join(f"{report.to_json()}\n" for report in rounds))

    def write_ledger(self, ledger: Ledger) -> None:
        """Write what was released and what that protects."""
        content = json.dumps(asdict(ledger), indent=2, ensure_ascii=False)
        self._write(LEDGER_NAME, f"{content}\n")

    def write_results(self, table: ComparisonTable) -> None:
        """Write the result table as Markdown, CSV, Parquet and JSON."""
        stem = RESULTS_STEM
        self._write(f"{stem}.md", table.to_markdown())
        self._write(f"{stem}.csv", table.to_csv())
        self._write(f"{stem}.json", table.to_json())
        write_whole(self.path / f"{stem}.parquet", table.to_parquet(), private=False)

    def write_report(self, content: ReportContent) -> Path:
        """Write the report for people, and all that it says as data; return the page's path."""
        write_whole(self.path / CONTENT_NAME, content.to_json(), private=False)
        self._write(REPORT_NAME, render_report(content))
        return self.path / REPORT_NAME

    def report_content(self) -> ReportContent:
        """Return what the report of this run says.

        Raises:
            DataError: the run left no report, or not yet.
            StorageError: it is damaged.
        """
        path = self.path / CONTENT_NAME
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            raise DataError(
                f"{self.path} has no report: there is no {CONTENT_NAME} in it.",
                remedy="Reports are written when a run ends or is stopped; one of an older fedrec "
                "has only its page.",
            ) from None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
        return ReportContent.from_json(raw, str(path))

    def write_figures(self, figures: Sequence[Figure]) -> tuple[Path, ...]:
        """Write every figure as SVG and as PNG into `figures/`; return the paths."""
        folder = self.path / FIGURES_FOLDER
        folder.mkdir(exist_ok=True)
        written = []
        for figure in figures:
            for ending, data in (
                ("svg", as_svg_file(figure.plot).encode()),
                ("png", as_png(figure.plot)),
            ):
                written.append(folder / f"{figure.name}.{ending}")
                write_whole(written[-1], data, private=False)
        return tuple(written)

    def _write(self, name: str, text: str) -> None:
        write_whole(self.path / name, text.encode(), private=False)


def _seen_from(settings: Settings, folder: Path) -> Settings:
    """Return settings whose relative paths, which start at the working folder, start at another."""
    changed: dict[str, dict[str, str]] = {}
    for key in PATHS:
        section, _, name = key.partition(".")
        value = getattr(getattr(settings, section), name)
        if value is not None and not Path(value).is_absolute():
            changed.setdefault(section, {})[name] = os.path.relpath(value, folder)
    sections = {
        section: getattr(settings, section).model_copy(update=values)
        for section, values in changed.items()
    }
    return settings.model_copy(update=sections)


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
