"""`fedrec simulate`: a whole federation in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.failures import INTERRUPTED
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
)
from fedrec.cli.terminal import AsJson, print_json
from fedrec.errors import PrivacyBudgetSpent, SettingsError
from fedrec_lab.cli.round_progress import StopRequest, round_progress
from fedrec_lab.cli.seed_runs import resume_command, run_seeds, seeds_of

if TYPE_CHECKING:
    from fedrec_lab.reports.round_report import RoundReport
    from fedrec_lab.reports.run_folder import RunFolder
    from fedrec_lab.simulation.result import SimulationResult


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
        int, typer.Option(min=0, help="Clients that share the users; 0 takes what is fastest.")
    ] = 0,
    cells: CellsOf = "",
    protect: Annotated[
        bool, typer.Option("--protect", help="Really encrypt, add and reveal every round.")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the stopped run in this folder.")
    ] = None,
    accept_other_arithmetic: AcceptOtherArithmetic = False,
    accept_exposure: AcceptExposure = False,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N|LIST",
            help="Several seeds side by side, a folder for each: how many, from federation.seed "
            "on, or a list as in 1,7.",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=0, help="Processes at a time with --seeds; 0 is one a core.")
    ] = 0,
    workers: Annotated[
        str | None,
        typer.Option(help="client.workers: processes that train, or auto."),
    ] = None,
    values: SetValues = None,
    as_json: AsJson = False,
) -> None:
    """Run the federation of a settings file in one process, on the data that it names.

    It publishes the same bits as the coordinator and clients would on the same kind of
    processor, whatever the number of clients and the protection, so neither is needed for
    research; --protect measures their cost. Where the key authority opens sums over several cells
    give --cells, or a roster, for the same rows. Only update.compress = "client",
    update.subset = "client" and client.minimum_own_item_users, which every client compares with
    its own users, depend on how users are dealt: give --clients with them. Ctrl-C
    stops after the round and saves; a second one stops at once. What was stopped goes on with
    --resume to the same bits, and is refused where training rounds otherwise, unless
    --accept-other-arithmetic is given. The last line on stdout is the run's folder.

    With --seeds every seed has its processes' share of the cores, its own run folder and the same
    bits as alone; a seed that was stopped goes on by itself, with --resume.

    The table has the plan's protocol and, where one training allows both, full and sampled side
    by side, each with the round that its own validation chose. `fedrec evaluate` adds seeds,
    references and the protocol paper.
    """
    from fedrec.cli.data_options import echo_note
    from fedrec.cli.pricing import tables_price, tables_rows
    from fedrec.data.source import read_users
    from fedrec.extras import require
    from fedrec.plan.algorithm import algorithm_warnings
    from fedrec.plan.exposure import check_exposure
    from fedrec.plan.layout import protection_modules, training_modules
    from fedrec.settings.loading import load_settings
    from fedrec.updates import UPDATES
    from fedrec_lab.comparison.training import further_protocols
    from fedrec_lab.reports.drawing import why_no_figures
    from fedrec_lab.reports.run_folder import RunFolder
    from fedrec_lab.simulation.recording import record_simulation
    from fedrec_lab.simulation.runner import simulate as run_federation

    check_is_resumed(accept_other_arithmetic, resume)
    settings = load_settings(settings_file, {"client.workers": workers} | values_of(values))
    chosen = settings.plan
    check_exposure(chosen, accepted=accept_exposure)
    encrypting = protection_modules(chosen) if protect else ()
    require(*training_modules(chosen), "pyarrow", *encrypting)
    for warning in (
        *algorithm_warnings(chosen),
        *UPDATES[chosen.update.structure].warnings(chosen.update),
        *filter(None, (why_no_figures(),)),
    ):
        typer.echo(f"warning: {warning}", err=True)
    asked, by_cells, unused = read_cells(settings, cells, clients)
    if unused:
        typer.echo(f"warning: {unused}", err=True)
    n_clients = asked or (settings.rounds.minimum_clients if protect else 1)
    if seeds is not None:
        if resume is not None:
            raise SettingsError(
                "--seeds begins new runs; --resume goes on with one.", remedy="Leave one out."
            )
        run_seeds(
            settings,
            seeds_of(seeds, settings.federation.seed),
            jobs=jobs,
            n_clients=n_clients,
            cells=by_cells,
            given=cells,
            protect=protect,
            accept_exposure=accept_exposure,
            as_json=as_json,
        )
        return
    if jobs:
        raise SettingsError("--jobs is about several seeds.", remedy="Give --seeds, too.")
    users, catalogue = read_users(settings.data, reader="a simulation", tell=echo_note)
    rows = tell_rows(settings, users, len(catalogue), n_clients=n_clients, cells=by_cells)
    private = tables_price(settings, len(users), len(catalogue))
    if private.facts["disk_bytes"]:
        for what, how in tables_rows(private):
            typer.echo(f"{what}: {how}", err=True)
    if resume is not None:
        run = RunFolder.open(resume)
    else:
        run = RunFolder.create(settings.output.runs, settings.federation.name)
    stop = StopRequest("Stopping after this round; Ctrl-C again stops at once.")
    with (
        run.removed_if_empty(),
        stop.on_interrupt(),
        round_progress("", settings.rounds.total + 2) as told,
    ):

        def note(report: RoundReport) -> None:
            run.append_round(report)
            told(report)

        result = run_federation(
            settings,
            n_clients=n_clients,
            cells=by_cells,
            protect=protect,
            folder=run.path,
            resume=resume is not None,
            accept_other_arithmetic=accept_other_arithmetic,
            on_round=note,
            stop=stop.requested,
            users=users,
            catalogue=catalogue,
            also=further_protocols(chosen, n_users=len(users), n_items=len(catalogue)),
        )
        record_simulation(result, run)
    _print(result, run, as_json, rows)
    if result.budget_spent:
        raise PrivacyBudgetSpent(
            f"The run ended after {len(result.rounds)} rounds: another training round would exceed "
            f"privacy.epsilon = {settings.privacy.epsilon:g}. Its results are in {run.path}.",
            remedy="Raise privacy.epsilon or privacy.noise_multiplier, or lower rounds.total or "
            "privacy.rounds_per_user.",
        )
    if not result.finished:
        again = resume_command(
            run.path, clients=clients, cells=cells, protect=protect, accept_exposure=accept_exposure
        )
        typer.echo(f"Stopped; go on with: {again}", err=True)
        raise typer.Exit(INTERRUPTED)


def _print(
    result: SimulationResult, run: RunFolder, as_json: bool, rows: dict[str, int] | None
) -> None:
    table = result.comparison()
    if as_json:
        content = {
            "run": str(run.path),
            "finished": result.finished,
            "rounds": len(result.rounds),
            "best_round": int(result.best.round),
            "at": table.at,
            "cells": rows,
            "results": [row.first_record() for row in result.rows()],
            "table": table.to_record(),
        }
        print_json(content)
        return
    if table.rows:
        typer.echo(table.to_text())
    typer.echo(str(run.path))
