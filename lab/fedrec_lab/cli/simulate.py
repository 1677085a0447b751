"""`fedrec simulate`: a whole federation in this process, with one seed or several."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import (
    AcceptExposure,
    AcceptOtherArithmetic,
    CellsOf,
    SettingsFile,
    SetValues,
    check_is_resumed,
    read_cells,
    tell_rows,
    values_of,
    words_of,
)
from fedrec.cli.terminal import INTERRUPTED, Result
from fedrec.errors import FedrecError, NoInformation, PrivacyBudgetSpent, SettingsError
from fedrec_lab.reports.round_progress import StopRequest, round_progress

if TYPE_CHECKING:
    from pathlib import Path

    from fedrec.plan.schema import EvaluationSettings
    from fedrec.plan.travelling_rows import Cells
    from fedrec.settings.schema import Settings
    from fedrec_lab.reports.round_report import RoundReport
    from fedrec_lab.simulation.result import SimulationResult
    from fedrec_lab.simulation.seeds import SeedResult


def seeds_of(text: str, first: int) -> tuple[int, ...]:
    """Return a list of seeds as given, or this number of seeds from `first` on."""
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if "," not in text and len(found) == 1 and 1 <= found[0] <= 1000:
        found = list(range(first, first + found[0]))
    elif "," not in text or not found or min(found) < 0 or len(set(found)) < len(found):
        raise SettingsError(
            f"--seeds is {text!r}.",
            remedy="Pass a number from 1 to 1000, or different seeds separated by commas. A "
            "trailing comma makes a list of one.",
        )
    from fedrec_lab.simulation.seeds import check_seeds

    check_seeds(found)
    return tuple(found)


def resume_command(folder: Path, flags: Sequence[str], *, command: str = "simulate") -> list[str]:
    """Return the words of the command that resumes in a run's folder.

    It names the run's own settings: flags and the environment may have changed those of the
    original command.

    Args:
        flags: the flags that aren't settings, as given.
    """
    return ["fedrec", command, str(folder / "resolved.toml"), "--resume", str(folder), *flags]


def run_seeds(
    settings: Settings,
    seeds: tuple[int, ...],
    *,
    jobs: int,
    n_clients: int,
    cells: Cells,
    protect: bool,
    flags: Sequence[str],
    log: tuple[str, ...] = (),
) -> Result:
    """Run all seeds, each in its own run folder, and return their results.

    Args:
        flags: those with which a stopped seed is resumed.
        log: the loggers of each seed.
    """
    from fedrec.cli.data_options import echo_note
    from fedrec.data.source import read_users
    from fedrec_lab.reports.round_progress import round_text
    from fedrec_lab.simulation.seeds import simulate_seeds
    from fedrec_lab.simulation.silos_tail import check_tail

    n_rounds = settings.rounds.published
    users, catalogue = read_users(
        settings.data, reader="a simulation", tell=echo_note, folder=Path(settings.output.runs)
    )
    check_tail(settings, len(users), n_clients)
    rows = tell_rows(settings, users, len(catalogue), n_clients=n_clients, cells=cells)
    folders = _folders_of_seeds(settings, seeds, flags)

    def report_round(seed: int, report: RoundReport) -> None:
        typer.echo(f"seed {seed}  round {report.round}/{n_rounds}  {round_text(report)}", err=True)

    stop = StopRequest("Stopping every seed after its round. Ctrl-C again stops at once.")
    with stop.on_interrupt():
        results = simulate_seeds(
            settings,
            folders,
            jobs=jobs,
            n_clients=n_clients,
            cells=cells,
            users=users,
            catalogue=catalogue,
            protect=protect,
            log=log,
            on_round=report_round,
            stop=stop.requested,
        )
    unfinished = [result for result in results if not result.finished]
    for result in unfinished:
        again = resume_command(result.folder, flags)
        typer.echo(f"Seed {result.seed} stopped. To resume: {shlex.join(again)}", err=True)
    is_stopped = bool(unfinished) or len(results) < len(seeds)
    return _result_of_seeds(results, settings.evaluation, rows, is_stopped=is_stopped)


def _folders_of_seeds(
    settings: Settings, seeds: tuple[int, ...], flags: Sequence[str]
) -> dict[int, Path]:
    """Make a run folder for each seed. A killed seed has left no record of its own."""
    from fedrec.environment import provenance_of
    from fedrec_lab.reports.run_folder import RunFolder
    from fedrec_lab.simulation.seeds import settings_of_seeds

    folders = {}
    for seed, own in settings_of_seeds(settings, seeds).items():
        run = RunFolder.create(settings.output.runs, f"{settings.federation.name}-seed-{seed}")
        run.write_environment(provenance_of(own.plan, own.client.device))
        run.write_flags(flags)
        run.write_settings(own)
        folders[seed] = run.path
    return folders


def _result_of_seeds(
    results: list[SeedResult],
    measured: EvaluationSettings,
    rows: dict[str, int] | None,
    *,
    is_stopped: bool,
) -> Result:
    """Return what the command prints about its seeds."""
    return Result(
        content={
            "at": measured.at,
            "protocol": measured.protocol,
            "cells": rows,
            "seeds": [
                {
                    "seed": result.seed,
                    "run": str(result.folder),
                    "finished": result.finished,
                    "rounds": result.n_rounds,
                    "best_round": result.best_round,
                    "results": [row.first_record() for row in result.rows],
                }
                for result in results
            ],
        },
        text=_text_of_seeds(results, measured),
        failure=failure_of_seeds(
            [f"Seed {each.seed}: {each.uninformed}" for each in results if each.uninformed]
        ),
        exit_code=INTERRUPTED if is_stopped else 0,
    )


def failure_of_seeds(uninformed: Sequence[str]) -> NoInformation | None:
    """Return the error of seeds whose version under noise must not be used, if there are any."""
    if not uninformed:
        return None
    remedy = "`fedrec check` proposes settings for an epsilon."
    return NoInformation(" ".join(uninformed), remedy=remedy)


def _text_of_seeds(results: list[SeedResult], measured: EvaluationSettings) -> Iterator[str]:
    from fedrec_lab.reports.result_row import plain_table

    for result in results:
        if result.rows:
            yield f"seed {result.seed}, {measured.protocol}"
            yield plain_table(result.rows, at=measured.at)
    yield from (str(result.folder) for result in results)


EPILOG = (
    "Examples:\n"
    "  fedrec simulate run.toml\n"
    "  fedrec simulate run.toml --clients 3 --protect --set rounds.total=5\n"
    "  fedrec simulate run.toml --cells 4\n"
    "  fedrec simulate run.toml --seeds 1,2,3 --jobs 2\n"
    "  fedrec simulate run.toml --resume runs/movies-20260101-120000"
)


def simulate(
    settings_file: SettingsFile,
    clients: Annotated[
        int, typer.Option(min=0, help="Number of clients. If 0, uses the fastest number.")
    ] = 0,
    cells: CellsOf = "",
    protect: Annotated[
        bool, typer.Option("--protect", help="Really encrypt, add and reveal every round.")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Resume the stopped run in this folder.")
    ] = None,
    accept_other_arithmetic: AcceptOtherArithmetic = False,
    accept_exposure: AcceptExposure = False,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N|LIST",
            help="Run several seeds in parallel, each in its own folder: a number of seeds, "
            "starting at federation.seed, or a list such as 1,7.",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=0, help="Processes at a time with --seeds. If 0, uses one per core.")
    ] = 0,
    workers: Annotated[
        str | None,
        typer.Option(help="client.workers: training processes, or auto."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOGGER",
            help="Also log to a tracker: mlflow, tensorboard or wandb. Repeatable.",
        ),
    ] = None,
    values: SetValues = None,
) -> Result:
    """Run the federation of a settings file in one process, on the data that it names.

    It publishes the same bits as the coordinator and clients would on the same kind of processor,
    whatever the number of clients and the protection, so research needs neither. --protect measures
    their cost. If the key authority opens sums over several cells, give --cells, or a roster, for
    the same rows. Three settings depend on how users are divided: update.compress = "client",
    update.subset = "client", and client.minimum_own_item_users, which every client compares with
    its own users. Give --clients with them. client.tail depends on it, too: it adds a row for the
    model with the clients' own scores, by default of rounds.minimum_clients clients. Ctrl-C stops
    after the round and saves. A second one stops at once. --resume continues a stopped run to the
    same bits. It is refused if training rounds differently, unless --accept-other-arithmetic is
    given. The last line on stdout is the run's folder.

    --log sends the plan's settings and the numbers of rounds.jsonl, and nothing else. A logger that
    fails is dropped with a warning, and the run continues.

    With --seeds, every seed has its share of the cores, its own run folder and the same bits as
    alone. Resume a stopped seed alone, with --resume.

    The table has the plan's protocol and, if one training allows both, full and sampled, each with
    the round that its own validation chose. `fedrec evaluate` adds seeds, references and the
    protocol paper.
    """
    from fedrec.extras import require
    from fedrec.plan.exposure import check_exposure
    from fedrec.plan.layout import protection_modules, training_modules
    from fedrec.settings.validation import load_settings
    from fedrec_lab.reports.run_loggers import loggers_of

    check_is_resumed(accept_other_arithmetic, resume)
    settings = load_settings(settings_file, {"client.workers": workers} | values_of(values))
    check_exposure(settings.plan, accepted=accept_exposure)
    encrypting = protection_modules(settings.plan) if protect else ()
    require(*training_modules(settings.plan), "pyarrow", *encrypting)
    loggers_of(log or ())
    asked, by_cells = _warned(settings, cells, clients)
    silos = protect or settings.client.tail
    n_clients = asked or (settings.rounds.minimum_clients if silos else 1)
    flags = words_of(
        {
            "clients": clients,
            "cells": cells,
            "protect": protect,
            "accept_exposure": accept_exposure,
            "log": list(log or ()),
        }
    )
    if seeds is not None:
        if resume is not None:
            raise SettingsError(
                "--seeds begins new runs, but --resume continues one.", remedy="Leave one out."
            )
        return run_seeds(
            settings,
            seeds_of(seeds, settings.federation.seed),
            jobs=jobs,
            n_clients=n_clients,
            cells=by_cells,
            protect=protect,
            flags=flags,
            log=tuple(log or ()),
        )
    if jobs:
        raise SettingsError("--jobs needs several seeds.", remedy="Set --seeds, too.")
    return _run_one(
        settings,
        n_clients=n_clients,
        cells=by_cells,
        protect=protect,
        flags=flags,
        log=tuple(log or ()),
        resume=resume,
        accept_other_arithmetic=accept_other_arithmetic,
    )


def _warned(settings: Settings, cells: str, clients: int) -> tuple[int, Cells]:
    """Print what to know before a run, and return the number of clients and their cells."""
    from fedrec.plan.algorithm import algorithm_warnings
    from fedrec.plan.privacy import few_clients_warnings
    from fedrec.updates import UPDATES
    from fedrec_lab.reports.drawing import why_no_figures

    plan = settings.plan
    warnings = (
        *algorithm_warnings(plan),
        *UPDATES[plan.update.structure].warnings(plan.update),
        *few_clients_warnings(plan, clients),
        why_no_figures(),
    )
    for warning in filter(None, warnings):
        typer.echo(f"warning: {warning}", err=True)
    asked, by_cells, unused = read_cells(settings, cells, clients)
    if unused:
        typer.echo(f"warning: {unused}", err=True)
    return asked, by_cells


def _run_one(
    settings: Settings,
    *,
    n_clients: int,
    cells: Cells,
    protect: bool,
    flags: Sequence[str],
    log: Sequence[str],
    resume: Path | None,
    accept_other_arithmetic: bool,
) -> Result:
    """Run or resume a federation with the seed of its settings."""
    from fedrec.cli.data_options import echo_note
    from fedrec.cli.pricing import tables_price, tables_rows
    from fedrec.data.source import read_users
    from fedrec.environment import provenance_of
    from fedrec_lab.comparison.measurement import further_protocols
    from fedrec_lab.reports.run_folder import RunFolder
    from fedrec_lab.simulation.recording import record_simulation
    from fedrec_lab.simulation.result import with_tail
    from fedrec_lab.simulation.runner import simulate as run_federation
    from fedrec_lab.simulation.silos_tail import check_tail

    users, catalogue = read_users(
        settings.data, reader="a simulation", tell=echo_note, folder=Path(settings.output.runs)
    )
    rows = tell_rows(settings, users, len(catalogue), n_clients=n_clients, cells=cells)
    check_tail(settings, len(users), n_clients)
    private = tables_price(settings, len(users), len(catalogue))
    if private.facts["disk_bytes"]:
        for what, how in tables_rows(private):
            typer.echo(f"{what}: {how}", err=True)
    if resume is not None:
        run = RunFolder.open(resume)
    else:
        run = RunFolder.create(settings.output.runs, settings.federation.name)

    def begin() -> None:
        # A killed run needs them to resume.
        run.write_environment(provenance_of(settings.plan, settings.client.device))
        run.write_flags(flags)
        run.write_settings(settings)

    stop = StopRequest("Stopping after this round. Ctrl-C again stops at once.")
    with (
        run.removed_if_empty(),
        stop.on_interrupt(),
        round_progress("", settings.rounds.published) as on_round,
    ):
        result = run_federation(
            settings,
            n_clients=n_clients,
            cells=cells,
            protect=protect,
            folder=run.path,
            resume=resume is not None,
            accept_other_arithmetic=accept_other_arithmetic,
            on_round=run.appending(on_round, begin),
            stop=stop.requested,
            users=users,
            catalogue=catalogue,
            also=further_protocols(settings.plan, n_users=len(users), n_items=len(catalogue)),
            log=log,
        )
        result = with_tail(result)
        record_simulation(result, run)
    return _result(result, run.path, rows, flags)


def _result(
    result: SimulationResult, folder: Path, rows: dict[str, int] | None, flags: Sequence[str]
) -> Result:
    """Return what the command prints about a run in this folder."""
    failure: FedrecError | None = result.uninformed
    if result.budget_spent:
        failure = PrivacyBudgetSpent(
            f"The run ended after {len(result.rounds)} rounds: another training round would exceed "
            f"privacy.epsilon = {result.settings.privacy.epsilon:g}. Its results are in {folder}.",
            remedy="Raise privacy.epsilon or privacy.noise_multiplier, or lower rounds.total or "
            "privacy.rounds_per_user.",
        )
    table = result.comparison()
    return Result(
        content={
            "run": str(folder),
            "finished": result.finished,
            "rounds": len(result.rounds),
            "best_round": int(result.best.round),
            "at": table.at,
            "cells": rows,
            **({} if result.tail is None else {"tail": list(map(asdict, result.tail.silos))}),
            "results": [row.first_record() for row in result.rows()],
            "table": table.to_record(),
        },
        text=(*((table.to_text(),) if table.rows else ()), str(folder)),
        failure=failure,
        again=() if result.finished else resume_command(folder, flags),
    )
