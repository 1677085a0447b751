"""Run published rows on request, under the paper's protocol and the honest ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from fedrec.data.catalogue import Catalogue
from fedrec.data.public import find, other_counts
from fedrec.data.readers import read_interactions
from fedrec.data.reading import Reading
from fedrec.data.splits import UserSplit, leave_one_out
from fedrec.durable import write_whole
from fedrec.environment import provenance_of
from fedrec.errors import DataError, SettingsError, StorageError
from fedrec.evaluation.metrics import Protocol
from fedrec.formats import check_run_folder
from fedrec.plan.schema import Plan
from fedrec.settings.explain import settings_to_toml
from fedrec.settings.schema import Settings
from fedrec.settings.validation import load_settings
from fedrec.training.device import choose_device
from fedrec_lab.comparison.measurement import draws_negatives, protocol_groups
from fedrec_lab.papers import ROWS, PublishedRow, rows_named
from fedrec_lab.papers.comparison import Measured, MeasuredRow
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.simulation.checkpoint import CheckpointFolder
from fedrec_lab.simulation.runner import simulate

PROTOCOLS: tuple[Protocol, ...] = ("paper", "sampled", "full")
_RESULT_NAME = "measured.json"
_SETTINGS_NAME = "row.toml"

Told = Callable[[RoundReport], None]
Watch = Callable[[str, int], AbstractContextManager[Told]]
"""Returns the function that receives each round, from a run's name and number of rounds."""


def read_row_data(row: PublishedRow) -> tuple[UserSplit, Catalogue]:
    """Return the users of a row, split, and the items that these users have.

    Raises:
        DataError: the data set is not on this machine. The error explains how to get it.
    """
    interactions, _ = read_interactions(find(row.dataset), Reading(strict=True))
    kept = interactions.deduplicated().with_minimum(row.minimum_interactions)
    catalogue = Catalogue.from_interactions(kept)
    return leave_one_out(kept, catalogue), catalogue


def row_settings(
    row: PublishedRow, folder: Path, changes: Mapping[str, object] | None = None
) -> Settings:
    """Write a row's settings into a folder and read them with changes, checked like all settings.

    Args:
        changes: values by dotted key, as text or in their own types.

    Raises:
        SettingsError: a change is not possible.
        StorageError: the folder cannot be written.
    """
    path = folder / _SETTINGS_NAME
    text = settings_to_toml(row.plan, heading=f"The settings of {row.name}, {row.source}.")
    write_whole(path, text.encode(), private=False)
    # The environment configures federations, but a published row is the same everywhere.
    return load_settings(path, changes, environ={})


def run_row(
    settings: Settings,
    users: UserSplit,
    catalogue: Catalogue,
    *,
    protocols: Sequence[Protocol],
    seeds: Sequence[int],
    folder: Path,
    watch: Watch,
    stop: Callable[[], bool],
    accept_other_arithmetic: bool = False,
) -> tuple[Measured, ...]:
    """Train for each seed, and return the measurements under each protocol.

    A run that ended in this folder before is read, and a stopped one is resumed. Protocols that
    train alike, such as `sampled` and `full`, share a training. Each chooses its round by its own
    validation.

    Args:
        settings: the row's settings. Their protocol and seed are replaced.
        folder: the folder in which each training gets a folder of its own.
        stop: a function that is called after every round. If it returns true, only complete results
            are returned.
        accept_other_arithmetic: resume a run even if training rounds differently than before.

    Raises:
        TrainingError: training diverged.
        StorageError: a file cannot be written or read.
        RefusedError: a run was stopped under other arithmetic, which was not accepted.
    """
    done: list[Measured] = []
    for group in protocol_groups(tuple(protocols), negatives=draws_negatives(settings.plan)):
        for seed in seeds:
            part = folder / f"{'-'.join(group)}-seed-{seed}"
            measured = _earlier(part)
            if measured is None:
                own = _with(settings, group[0], seed)
                measured = _run(
                    own, users, catalogue, group, part, watch, stop, accept_other_arithmetic
                )
            if measured is None:
                return tuple(done)
            done += measured
    return tuple(sorted(done, key=lambda found: protocols.index(found.protocol)))


def _with(settings: Settings, protocol: Protocol, seed: int) -> Settings:
    return settings.model_copy(
        update={
            "evaluation": settings.evaluation.model_copy(update={"protocol": protocol}),
            "federation": settings.federation.model_copy(update={"seed": seed}),
        }
    )


def _earlier(part: Path) -> tuple[Measured, ...] | None:
    try:
        return Measured.from_json((part / _RESULT_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _run(
    settings: Settings,
    users: UserSplit,
    catalogue: Catalogue,
    protocols: tuple[Protocol, ...],
    part: Path,
    watch: Watch,
    stop: Callable[[], bool],
    accept_other_arithmetic: bool,
) -> tuple[Measured, ...] | None:
    """Return None if it was stopped. Then its checkpoint is in the folder."""
    try:
        part.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{part} cannot be created: {error}.", remedy="Name a writable folder with --out."
        ) from error
    run = RunFolder(part)
    resume = CheckpointFolder(part).exists
    if not resume:
        # If resuming is refused, the record must not have been replaced.
        run.write_environment(provenance_of(settings.plan, settings.client.device))
        run.write_settings(settings)
    with watch(part.name, settings.rounds.published) as on_round:
        result = simulate(
            settings,
            users=users,
            catalogue=catalogue,
            also=protocols,
            folder=part,
            resume=resume,
            accept_other_arithmetic=accept_other_arithmetic,
            on_round=run.appending(on_round),
            stop=stop,
        )
    run.write_environment(result.provenance)
    if not result.finished:
        return None
    run.write_metrics(result.rounds, result.evaluation)
    measured = tuple(Measured.of(result, protocol) for protocol in protocols)
    write_whole(part / _RESULT_NAME, Measured.to_json(measured).encode(), private=False)
    # A published row is run for its figures, so the models are not stored.
    CheckpointFolder(part).remove()
    return measured


_REQUEST_NAME = "request.json"
_PAGE_NAME = "reproduction.md"
_RECORD_NAME = "reproduction.json"
_OWN_FLAGS = {
    "evaluation.protocol": "--protocols",
    "federation.seed": "--seeds",
    "rounds.total": "--rounds",
    "client.device": "--device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to run rows.

    Attributes:
        name: a row, or the beginning of rows.
        protocols: the protocols, in order.
        seeds: number of runs of each, with the seeds 1, 2, ...
        rounds: a smaller number of rounds, or 0 for the row's number.
        device: the device for training.
        values: changed settings by dotted key.
    """

    name: str
    protocols: tuple[Protocol, ...] = PROTOCOLS
    seeds: int = 1
    rounds: int = 0
    device: str = "auto"
    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        *,
        protocols: str,
        seeds: int,
        rounds: int,
        device: str,
        values: Mapping[str, str],
    ) -> Request:
        """Check a request.

        Args:
            protocols: names, separated by commas.

        Raises:
            SettingsError: a row or a protocol that does not exist, or a value with a flag of its
                own.
        """
        rows_named(name, ROWS)
        asked = [part.strip() for part in protocols.split(",") if part.strip()]
        chosen = tuple(known for known in PROTOCOLS if known in asked)
        unknown = [part for part in asked if part not in PROTOCOLS]
        if unknown or not chosen:
            raise SettingsError(
                f"There is no protocol {unknown[0] if unknown else protocols!r}.",
                remedy=f"Choose from {', '.join(PROTOCOLS)}.",
            )
        for key in values:
            section = key.partition(".")[0]
            if key in _OWN_FLAGS:
                raise SettingsError(
                    f"{key} has its own flag here.", remedy=f"Use {_OWN_FLAGS[key]}."
                )
            if section in Settings.model_fields and section not in (*Plan.model_fields, "client"):
                raise SettingsError(
                    f"{key} has no effect on a published row.",
                    remedy="Omit it. --out sets the folder of results.",
                )
        return cls(
            name=name, protocols=chosen, seeds=seeds, rounds=rounds, device=device, values=values
        )

    @property
    def rows(self) -> tuple[PublishedRow, ...]:
        """The requested rows."""
        return rows_named(self.name, ROWS)

    def require_data(self) -> None:
        """Check that all data is on this machine.

        Raises:
            DataError: a data set is missing. The error explains how to get it.
        """
        for dataset in dict.fromkeys(row.dataset for row in self.rows):
            find(dataset)

    def check_settings(self) -> None:
        """Check that every row can be run with the changed settings, before creating anything.

        Raises:
            SettingsError: a change is not possible. The error names the setting.
        """
        with TemporaryDirectory() as folder:
            for row in self.rows:
                settings = row_settings(row, Path(folder), self.overrides())
                choose_device(settings.client.device)

    def changes(self, row: PublishedRow) -> tuple[str, ...]:
        """Return the differences between the runs and the row's own settings and data, in words."""
        # Settings that a machine chooses change no figure by design.
        plan = {key: value for key, value in self.values.items() if not key.startswith("client.")}
        found = [f"{key} = {value}" for key, value in plan.items()]
        if self.rounds and self.rounds != row.plan.rounds.total:
            found.insert(0, f"{self.rounds} rounds in place of {row.plan.rounds.total}")
        if other := other_counts(row.dataset):
            found.insert(0, f"other data ({other})")
        return tuple(found)

    def overrides(self) -> dict[str, object]:
        """Return the settings that differ from the settings of the row, by dotted key."""
        changed: dict[str, object] = dict(self.values)
        changed["client.device"] = self.device
        if self.rounds:
            changed["rounds.total"] = self.rounds
        return changed

    def make_folder(self, base: Path) -> Path:
        """Create the run folder and store the request in it.

        Raises:
            StorageError: the folder cannot be created.
        """
        folder = RunFolder.create(base, "reproduce").path
        text = json.dumps(asdict(self), indent=2) + "\n"
        write_whole(folder / _REQUEST_NAME, text.encode(), private=False)
        return folder

    @classmethod
    def load(cls, folder: Path) -> Request:
        """Read the request of an earlier run.

        Raises:
            DataError: the folder has no request.
            StorageError: the request is damaged.
            VersionMismatch: a training in the folder has a different format.
        """
        path = folder / _REQUEST_NAME
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            found["protocols"] = tuple(found["protocols"])
            request = cls(**found)
        except FileNotFoundError:
            raise DataError(
                f"{folder} is not a folder of `fedrec reproduce`: it has no {_REQUEST_NAME}.",
                remedy="Pass the folder whose path the command printed.",
            ) from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StorageError(f"{path} cannot be read: {error}.") from error
        for settings in sorted(folder.glob("*/*/resolved.toml")):
            check_run_folder(settings.parent)
        return request


def reproduce_rows(
    request: Request,
    folder: Path,
    *,
    watch: Watch,
    stop: Callable[[], bool],
    accept_other_arithmetic: bool = False,
) -> tuple[MeasuredRow, ...]:
    """Run the requested rows, and store the comparison of every row as soon as it is known.

    Args:
        folder: complete results in it are read, and stopped runs are resumed.
        watch: see `Watch`.
        stop: called after every round.
        accept_other_arithmetic: resume a training even if it rounds differently than before.

    Raises:
        DataError: data is missing.
        SettingsError: a change of settings is not possible.
        TrainingError: training diverged.
        StorageError: a file cannot be written.
    """
    comparisons: list[MeasuredRow] = []
    for row in request.rows:
        own = folder / row.name.replace("/", "-")
        own.mkdir(exist_ok=True)
        settings = row_settings(row, own, request.overrides())
        users, catalogue = read_row_data(row)
        measured = run_row(
            settings,
            users,
            catalogue,
            protocols=request.protocols,
            seeds=range(1, request.seeds + 1),
            folder=own,
            watch=watch,
            stop=stop,
            accept_other_arithmetic=accept_other_arithmetic,
        )
        if measured:
            changes = request.changes(row)
            comparisons.append(MeasuredRow(row=row, measured=measured, changes=changes))
            _write(comparisons, folder)
        if len(measured) < len(request.protocols) * request.seeds:
            break
    return tuple(comparisons)


def _write(comparisons: list[MeasuredRow], folder: Path) -> None:
    page = "\n".join(
        ["# Published, reproduced and honest", ""] + [c.markdown() for c in comparisons]
    )
    write_whole(folder / _PAGE_NAME, page.encode(), private=False)
    record = json.dumps({"rows": [found.to_json() for found in comparisons]}, indent=2) + "\n"
    write_whole(folder / _RECORD_NAME, record.encode(), private=False)
