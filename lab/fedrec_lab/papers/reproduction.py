"""Running a published row under the paper's protocol and the honest ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from fedrec.data.catalogue import Catalogue
from fedrec.data.public import find
from fedrec.data.readers import read_interactions
from fedrec.data.reading import Reading
from fedrec.data.splits import UserSplit, leave_one_out
from fedrec.durable import write_whole
from fedrec.environment import provenance_of
from fedrec.errors import StorageError
from fedrec.evaluation.metrics import Protocol
from fedrec.settings.explain import settings_to_toml
from fedrec.settings.loading import load_settings
from fedrec.settings.schema import Settings
from fedrec_lab.comparison.training import draws_negatives, protocol_groups
from fedrec_lab.papers.measured_run import Measured
from fedrec_lab.papers.row import PublishedRow
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.simulation.checkpoint import CheckpointFolder
from fedrec_lab.simulation.runner import simulate

PROTOCOLS: tuple[Protocol, ...] = ("paper", "sampled", "full")
_RESULT_NAME = "measured.json"
_SETTINGS_NAME = "row.toml"

Told = Callable[[RoundReport], None]
Watch = Callable[[str, int], AbstractContextManager[Told]]
"""Given what is run and its number of rounds, returns who is told of each round."""


def read_row_data(row: PublishedRow) -> tuple[UserSplit, Catalogue]:
    """Return the users of a row, split, and the items that these users have.

    Raises:
        DataError: the data set is not on this machine; the error says how to get it.
    """
    interactions, _ = read_interactions(find(row.dataset), Reading(strict=True))
    kept = interactions.deduplicated().with_minimum(row.minimum_interactions)
    catalogue = Catalogue.from_interactions(kept)
    return leave_one_out(kept, catalogue), catalogue


def row_settings(
    row: PublishedRow, folder: Path, changes: Mapping[str, object] | None = None
) -> Settings:
    """Write a row's settings into a folder and read them with changes, checked like any others.

    Args:
        changes: values by dotted key, as text or as they are.

    Raises:
        SettingsError: a change that cannot be.
        StorageError: the folder cannot be written.
    """
    path = folder / _SETTINGS_NAME
    text = settings_to_toml(row.plan, heading=f"The settings of {row.name}, {row.source}.")
    write_whole(path, text.encode(), private=False)
    # The environment is about federations; a published row is the same everywhere.
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
    """Train for each seed, and return what was measured under each protocol.

    A run that ended in this folder before is read, and one that was stopped goes on. Protocols that
    train alike, such as `sampled` and `full`, share a training; each chooses its round by its own
    validation.

    Args:
        settings: of the row; their protocol and seed are replaced.
        folder: one folder for each training is made in it.
        stop: asked after every round; then what is complete is returned.
        accept_other_arithmetic: go on with a run even where training rounds otherwise than before.

    Raises:
        TrainingError: training diverged.
        StorageError: a file cannot be written or read.
        RefusedError: a run was stopped under other arithmetic, which nobody accepted.
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
    """Return None where it was stopped; its checkpoint is in the folder then."""
    try:
        part.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{part} cannot be made: {error}.", remedy="Name a writable folder with --out."
        ) from error
    run = RunFolder(part)
    resume = CheckpointFolder(part).exists
    if not resume:
        # What is refused on resuming must not have replaced the record.
        run.write_environment(provenance_of(settings.plan, settings.client.device))
        run.write_settings(settings)
    with watch(part.name, settings.rounds.total + 2) as told:

        def note(report: RoundReport) -> None:
            run.append_round(report)
            told(report)

        result = simulate(
            settings,
            users=users,
            catalogue=catalogue,
            also=protocols,
            folder=part,
            resume=resume,
            accept_other_arithmetic=accept_other_arithmetic,
            on_round=note,
            stop=stop,
        )
    run.write_environment(result.provenance)
    if not result.finished:
        return None
    run.write_metrics(result.rounds, result.evaluation)
    measured = tuple(Measured.of(result, protocol) for protocol in protocols)
    write_whole(part / _RESULT_NAME, Measured.to_json(measured).encode(), private=False)
    # A published row is run for its figures: the models stay behind.
    CheckpointFolder(part).remove()
    return measured
