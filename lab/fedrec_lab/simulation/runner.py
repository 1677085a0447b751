"""Run experiments: a simulated federation from data and settings to a result.

Every command that trains uses `simulate`: `fedrec simulate`, `evaluate`, `tune`, `reproduce` and
the demo's comparison. It saves checkpoints, resumes from them to the same bits, and stops after a
round on request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from fedrec.clock import Clock, SystemClock
from fedrec.data.catalogue import Catalogue
from fedrec.data.frames import DataFrame
from fedrec.data.interactions import Interactions
from fedrec.data.source import read_users, split_given
from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError, TrainingError
from fedrec.evaluation.metrics import PROTOCOLS, Protocol
from fedrec.plan.travelling_rows import Cells
from fedrec.settings.schema import Settings
from fedrec_lab.reports.round_progress import is_watched, round_progress
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_loggers import RunLoggers, loggers_of
from fedrec_lab.simulation.checkpoint import CheckpointFolder
from fedrec_lab.simulation.federation import SimulatedFederation
from fedrec_lab.simulation.parties import Arrangement
from fedrec_lab.simulation.result import SimulationResult

_SECONDS_BETWEEN_CHECKPOINTS = 30.0


def never() -> bool:
    """Ask for no stop."""
    return False


def given_or_read(
    settings: Settings,
    users: UserSplit | Interactions | DataFrame | None,
    catalogue: Catalogue | None,
    folder: Path | None,
) -> tuple[UserSplit, Catalogue]:
    """Return the data that were given, else those that the settings name.

    Given interactions are split as the settings' section `data` selects them.

    Args:
        folder: the folder for the items of many users, which `UserSplit.in_files` puts there. None
            for the system's temporary one. A split that is given stays where it is.

    Raises:
        SettingsError: an argument has the wrong type, only one of users and catalogue is given, or
            neither is and the settings name no file.
        DataError: the file cannot be used.
    """
    for name, value, kind, source in (
        ("settings", settings, Settings, "load_settings"),
        (
            "users",
            users,
            UserSplit | Interactions | DataFrame | None,
            "users, catalogue = load_data",
        ),
        ("catalogue", catalogue, Catalogue | None, "users, catalogue = load_data"),
    ):
        if not isinstance(value, kind):
            raise SettingsError(
                f"{name} is of type {type(value).__name__}.", remedy=f"Use {source}(...)."
            )
    if not isinstance(users, UserSplit | None):
        found, items = split_given(users, settings.data, catalogue)
        return found.in_files(folder), items
    if (users is None) != (catalogue is None):
        raise SettingsError(
            "Only one of users and catalogue was given.", remedy="Pass both, as load_data has them."
        )
    if users is None and settings.data.path is None:
        raise SettingsError(
            "There is no data: users and catalogue are missing, and so is data.path.",
            remedy="Pass users and catalogue, as load_data has them, or a frame, or set data.path.",
        )
    if users is None or catalogue is None:
        found, items = read_users(settings.data, reader="a simulation", warn=True)
        return found.in_files(folder), items
    return users, catalogue


def simulate(
    settings: Settings,
    *,
    n_clients: int = 1,
    cells: Cells = (),
    protect: bool = False,
    folder: str | Path | None = None,
    resume: bool = False,
    accept_other_arithmetic: bool = False,
    on_round: Callable[[RoundReport], None] | None = None,
    stop: Callable[[], bool] = never,
    users: UserSplit | Interactions | DataFrame | None = None,
    catalogue: Catalogue | None = None,
    clock: Clock | None = None,
    also: Sequence[Protocol] = (),
    log: str | Sequence[str] = (),
    progress: bool | None = None,
) -> SimulationResult:
    """Run a federation in this process until its end, or until `stop` returns true.

    Args:
        n_clients: parties among which the users are divided. 1 is fastest.
        cells: the partition of a deployed federation, as positions of parties, made by
            `fedrec.plan.travelling_rows.deal_cells` or `cells_of_roster`. It changes bits only if
            the key authority opens sums, because it decides which items are trained.
        protect: protect, add and open every round with the protection of the settings.
        folder: the folder for checkpoints. Without one, the run can't be resumed. A checkpoint is
            written when the run stops, and every half minute. `save_run` writes the other files of
            a run folder.
        resume: resume from the folder's checkpoint, to the same bits.
        accept_other_arithmetic: resume even if training rounds differently, to bits as good. The
            checkpoint and the result record it.
        on_round: called after each published round.
        stop: called after every round.
        users: the data: a frame, interactions, or what `load_data` returns with `catalogue`. If
            omitted, the settings' data file is read.
        catalogue: the items of `users`. Frames and interactions need none.
        also: further protocols to measure. They choose no version: the model is the best one under
            the plan's protocol.
        log: one logger or several, such as "mlflow". They get the plan's settings and the rounds'
            numbers. One that fails never ends the run.
        progress: show each round on stderr or in the notebook. By default on a terminal and in a
            notebook, unless `on_round` is given.

    Raises:
        SettingsError: the settings are invalid, or do not match the checkpoint. Or a logger is
            unknown or not installed.
        DataError: the data cannot be used, or is too little.
        TrainingError: training diverged. The folder's checkpoint is the version before.
        FolderInUse: another process trains in the run folder.
        StorageError: there is nothing to resume, or the disk is full.
        VersionMismatch: the checkpoint has a different format.
        RefusedError: the checkpoint was trained with different arithmetic, which was not accepted.
    """
    folder = None if folder is None else Path(folder)
    if resume and folder is None:
        raise SettingsError(
            "resume is true, but folder is missing.", remedy="Pass the stopped run's folder."
        )
    log = (log,) if isinstance(log, str) else log
    loggers_of(log)
    if unknown := [each for each in also if each not in PROTOCOLS]:
        raise SettingsError(
            f"also has {unknown[0]!r}.", remedy=f"Choose among {', '.join(PROTOCOLS)}."
        )
    checkpoints = None if folder is None else CheckpointFolder(folder)
    if resume and checkpoints is not None:
        # Before anything is made in the folder.
        checkpoints.check_format()
    users, catalogue = given_or_read(settings, users, catalogue, folder)
    timer = clock or SystemClock()
    with ExitStack() as stack:
        if checkpoints is not None:
            stack.enter_context(closing(checkpoints)).open()
        federation = stack.enter_context(
            closing(
                SimulatedFederation(
                    settings,
                    catalogue,
                    users,
                    Arrangement(n_clients=n_clients, cells=cells, protect=protect),
                    clock=timer,
                    also=also,
                    scratch=folder,
                )
            )
        )
        if resume and checkpoints is not None:
            federation.restore(checkpoints, accept_other_arithmetic=accept_other_arithmetic)
        loggers = RunLoggers(log, settings, folder)
        # After an error they end here.
        stack.callback(loggers.end)
        # A tracker counts a resumed run as a new one.
        for report in federation.reports:
            loggers.round(report)
        listeners = [loggers.round, *([] if on_round is None else [on_round])]
        if progress or (progress is None and on_round is None and is_watched()):
            shown = round_progress("", settings.rounds.published)
            listeners.insert(0, stack.enter_context(shown))
        result = _run(federation, checkpoints, listeners, stop, timer)
        loggers.end(result.best_report, finished=result.finished)
        return result


def _run(
    federation: SimulatedFederation,
    checkpoints: CheckpointFolder | None,
    listeners: Sequence[Callable[[RoundReport], None]],
    stop: Callable[[], bool],
    timer: Clock,
) -> SimulationResult:
    saved = timer.now()
    while not federation.finished and not federation.budget_spent:
        try:
            report = federation.advance()
        except TrainingError as error:
            if checkpoints is not None:
                federation.save(checkpoints)
                error.remedy += f" The version before is kept in {checkpoints.path}."
            raise
        for listener in listeners:
            listener(report)
        stopping = not federation.finished and stop()
        # Tables in files are on disk already. Once they are a checkpoint, earlier ones are deleted.
        overdue = federation.in_files or timer.now() - saved >= _SECONDS_BETWEEN_CHECKPOINTS
        if checkpoints is not None and not federation.finished and (stopping or overdue):
            federation.save(checkpoints)
            saved = timer.now()
        if stopping:
            break
    return federation.result()
