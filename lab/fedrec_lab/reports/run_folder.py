"""The folder that every run leaves behind."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from fedrec.clock import Clock, SystemClock
from fedrec.durable import write_whole
from fedrec.environment import Provenance, describe_environment
from fedrec.errors import DataError, StorageError
from fedrec.evaluation.metrics import MetricSums
from fedrec.formats import ENVIRONMENT_NAME, check_run_folder, check_runs_folder, no_run_folder
from fedrec.settings.explain import settings_to_toml
from fedrec.settings.loading import PATHS
from fedrec.settings.schema import Settings
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
            began: when the run began, in unix seconds; None for now.

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

    def write_settings(self, settings: BaseModel) -> None:
        """Write every setting with its value, as TOML that can be run again from this folder."""
        heading = "The settings of this run, defaults included."
        if isinstance(settings, Settings):
            settings = _seen_from(settings, self.path)
        self._write(SETTINGS_NAME, settings_to_toml(settings, heading=heading))

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
        self._write(LEDGER_NAME, _pretty(asdict(ledger)))

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


def _pretty(record: dict[str, object]) -> str:
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"
