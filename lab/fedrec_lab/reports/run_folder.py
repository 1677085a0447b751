"""The folder that every run leaves."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from fedrec.clock import Clock, SystemClock
from fedrec.data.splits import UserSplit
from fedrec.durable import write_whole
from fedrec.environment import Provenance, describe_environment
from fedrec.errors import DataError, SettingsError, StorageError
from fedrec.evaluation.metrics import MetricSums, Protocol
from fedrec.formats import (
    ENVIRONMENT_NAME,
    check_run_folder,
    check_runs_folder,
    no_run_folder,
)
from fedrec.ids import digest
from fedrec.own_folder import ITEMS_PREFIX, WORKERS_PREFIX, remove_abandoned
from fedrec.settings.explain import settings_to_toml
from fedrec.settings.schema import Settings
from fedrec.settings.validation import PATHS
from fedrec_lab.reports.comparison_table import ComparisonTable, metrics_parquet, parquet_of
from fedrec_lab.reports.drawing import as_png, as_svg_file
from fedrec_lab.reports.html import Figure, ReportContent, render_report
from fedrec_lab.reports.ledger import Ledger
from fedrec_lab.reports.round_report import RoundReport

SETTINGS_NAME = "resolved.toml"
FLAGS_NAME = "flags.txt"
ROUNDS_NAME = "rounds.jsonl"
METRICS_NAME = "metrics.parquet"
RANKS_NAME = "ranks.parquet"
LEDGER_NAME = "ledger.json"
REPORT_NAME = "report.html"
CONTENT_NAME = "report.json"
FIGURES_FOLDER = "figures"
RESULTS_STEM = "results"


RanksBySeed: TypeAlias = Mapping[tuple[Protocol, int], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRanking:
    """The ranks of a run's users on test.

    Attributes:
        whose: a digest of the users and their test items.
        ranks: 0-based ranks by protocol and seed, -1 without a test item, (n_users,).
    """

    whose: str
    ranks: RanksBySeed


class RunFolder:
    """Writes a run's files as their content becomes known. `Recommender` writes the model.

    Args:
        path: an existing folder. See `create` and `open`.
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
        """Create ``<base>/<name>-<stamp>``, with the time in UTC as the stamp.

        Files that other runs' killed processes left in the base folder are removed.

        Args:
            began: when the run began, in Unix seconds, or None for the current time.

        Raises:
            StorageError: the folder cannot be created.
        """
        seconds = (clock or SystemClock()).now() if began is None else began
        start = datetime.fromtimestamp(seconds, tz=UTC)
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"
        stem = f"{readable}-{start:%Y%m%d-%H%M%S}"
        check_runs_folder(Path(base))
        try:
            Path(base).mkdir(parents=True, exist_ok=True)
            for run in ("*", "*/trainings/*"):
                for prefix in (ITEMS_PREFIX, WORKERS_PREFIX):
                    remove_abandoned(Path(base), f"{run}/{prefix}")
            for number in range(1, 1000):
                path = Path(base) / (stem if number == 1 else f"{stem}-{number}")
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                return cls(path)
        except OSError as error:
            raise no_run_folder(Path(base), error) from error
        raise StorageError(f"{base} already has 999 runs called {stem}.")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Return the folder of an earlier run, to resume it.

        A run that was killed left only its checkpoint, which knows its own format.

        Raises:
            DataError: there is no such folder.
            VersionMismatch: the folder has a different format, or no format number.
        """
        if not (Path(path) / SETTINGS_NAME).is_file():
            if (Path(path) / "checkpoint" / "checkpoint.json").is_file():
                return cls(Path(path))
            raise DataError(
                f"{path} is not a run folder: it has no {SETTINGS_NAME}.",
                remedy="Use the folder that the run printed, or that save_run returned.",
            )
        check_run_folder(Path(path))
        return cls(Path(path))

    @contextmanager
    def removed_if_empty(self) -> Iterator[None]:
        """Remove the folder if the block fails before it leaves a file in it."""
        try:
            yield
        except BaseException:
            # A folder with files is not removed, as intended.
            with suppress(OSError):
                self.path.rmdir()
            raise

    def write_settings(self, settings: BaseModel, name: str = SETTINGS_NAME) -> None:
        """Write every setting with its value, as TOML that can be run again from this folder."""
        heading = "The settings of this run, defaults included."
        if isinstance(settings, Settings):
            settings = _seen_from(settings, self.path)
        self._write(name, settings_to_toml(settings, heading=heading))

    def write_flags(self, words: Sequence[str]) -> None:
        """Write the flags of the command that aren't settings. If there are none, write no file."""
        if words:
            self._write(FLAGS_NAME, f"{shlex.join(words)}\n")

    def flags(self) -> tuple[str, ...]:
        """Return the words of `write_flags`, or none without a file.

        Raises:
            StorageError: the file is damaged.
        """
        path = self.path / FLAGS_NAME
        try:
            return tuple(shlex.split(path.read_text("utf-8")))
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{path} cannot be read: {error}.", remedy="Restore the folder from a backup."
            ) from error

    def write_environment(self, provenance: Provenance | None = None) -> None:
        """Write format, versions, machine and, if this process trains, its training engine."""
        self._write(ENVIRONMENT_NAME, describe_environment(provenance).to_json())

    def go_on(self, present: Provenance, *, accepted: bool, clock: Clock | None = None) -> None:
        """Check that the training engine is unchanged, or record that a change was accepted.

        For folders of several trainings. A single training's checkpoint knows the engine by round.

        Raises:
            RefusedError: the engine changed, and this was not accepted.
            SettingsError: the folder is that of a single training.
            StorageError: the folder's record is damaged.
        """
        if (self.path / ROUNDS_NAME).exists():
            raise SettingsError(
                f"{self.path} is the folder of a simulation, which this command can't resume.",
                remedy="Give the folder that this command printed, or omit --resume.",
            )
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
        """Append a round to `rounds.jsonl`, which is readable during the run.

        After a crash, a resumed run may write a round again. Then the last line counts.
        """
        path = self.path / ROUNDS_NAME
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(report.to_json() + "\n")
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error}.", remedy="Free disk space. Resume the run."
            ) from error

    def appending(
        self,
        on_round: Callable[[RoundReport], None],
        first: Callable[[], None] = lambda: None,
    ) -> Callable[[RoundReport], None]:
        """Return a function that appends a round to `rounds.jsonl` and then reports it.

        Args:
            first: called before the first round of a new run is appended.
        """

        def note(report: RoundReport) -> None:
            if not (self.path / SETTINGS_NAME).exists():
                first()
            self.append_round(report)
            on_round(report)

        return note

    def write_rounds(self, reports: Sequence[RoundReport]) -> None:
        """Write `rounds.jsonl` anew."""
        self._write(ROUNDS_NAME, "".join(f"{report.to_json()}\n" for report in reports))

    def rounds(self) -> tuple[RoundReport, ...]:
        """Return the rounds written so far in ascending order. A repeated round occurs once."""
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
        """Write all rounds as Parquet and as JSON lines, each round once."""
        write_whole(self.path / METRICS_NAME, metrics_parquet(rounds, references), private=False)
        self._write(ROUNDS_NAME, "".join(f"{report.to_json()}\n" for report in rounds))

    def write_ranks(self, ranks: RanksBySeed, users: UserSplit) -> None:
        """Write every user's rank on test, readable by the owner alone.

        A digest tells which users and items they belong to. It names none.

        Args:
            ranks: 0-based ranks by protocol and seed, -1 without a test item, (n_users,).
        """
        held = users.test_items.astype("<i8").tobytes()
        whose = digest("fedrec ranks v1", *users.user_ids, held).hex()
        rows = (
            {"rank": rank, "whose": whose, "protocol": protocol, "seed": seed}
            for (protocol, seed), own in ranks.items()
            for rank in own.tolist()
        )
        kinds = {"rank": "double", "whose": "string", "protocol": "string", "seed": "int64"}
        write_whole(self.path / RANKS_NAME, parquet_of(kinds, rows), private=True)

    def ranks(self) -> UserRanking | None:
        """Return each user's rank on test, or None without a file.

        Raises:
            StorageError: the file is damaged.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.path / RANKS_NAME
        try:
            table = pq.read_table(path)
            whose, ranks = str(table["whose"][0]), table["rank"].to_numpy()
            places: dict[tuple[Protocol, int], list[int]] = {}
            keys = zip(table["protocol"].to_pylist(), table["seed"].to_pylist(), strict=True)
            for place, key in enumerate(keys):
                places.setdefault(key, []).append(place)
            found = {key: ranks[rows] for key, rows in places.items()}
            return UserRanking(whose=whose, ranks=found)
        except FileNotFoundError:
            return None
        except (pa.ArrowException, OSError, KeyError, IndexError) as error:
            raise StorageError(
                f"{path} cannot be read: {error}.", remedy="Restore the folder from a backup."
            ) from error

    def write_ledger(self, ledger: Ledger) -> None:
        """Write the releases, and what they protect."""
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
        """Write the report as a page, and its content as data. Return the page's path."""
        write_whole(self.path / CONTENT_NAME, content.to_json(), private=False)
        self._write(REPORT_NAME, render_report(content))
        return self.path / REPORT_NAME

    def report_content(self) -> ReportContent:
        """Return the content of this run's report.

        Raises:
            DataError: there is no report, or not yet.
            StorageError: the content is damaged.
        """
        path = self.path / CONTENT_NAME
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            raise DataError(
                f"{self.path} has no report: there is no {CONTENT_NAME} in it.",
                remedy="Reports are written when a run ends or is stopped. An older fedrec wrote "
                "only the page.",
            ) from None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
        return ReportContent.from_json(raw, str(path))

    def write_figures(self, figures: Sequence[Figure]) -> tuple[Path, ...]:
        """Write every figure as SVG and PNG into `figures/`. Return the paths."""
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
    """Return settings whose relative paths start at another folder, not at the working folder."""
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


def new_folder(out: Path) -> Path:
    """Make the folder that --out names, unless it is there and empty.

    Raises:
        SettingsError: it has content.
        StorageError: it cannot be made.
    """
    try:
        if out.is_dir() and any(out.iterdir()):
            raise SettingsError(
                f"--out names {out}, which is not empty.", remedy="Name a new folder."
            )
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{out} cannot be created: {error}.") from error
    return out
