"""Runs of several seeds: the flag, and what is said of them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

from fedrec.cli.failures import INTERRUPTED
from fedrec.cli.flags import ACCEPT_EXPOSURE, CELLS, tell_rows
from fedrec.cli.terminal import print_json
from fedrec.errors import SettingsError
from fedrec_lab.cli.round_progress import StopRequest

if TYPE_CHECKING:
    from pathlib import Path

    from fedrec.config.schema import EvaluationSettings, Settings
    from fedrec.planning.cell_rows import Cells
    from fedrec_lab.reports.round_report import RoundReport
    from fedrec_lab.simulation.seeds import SeedResult


def seeds_of(text: str, first: int) -> tuple[int, ...]:
    """Return a list of seeds as it stands, and for a single number so many from `first` on."""
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if "," not in text and len(found) == 1 and 1 <= found[0] <= 1000:
        return tuple(range(first, first + found[0]))
    if "," not in text or not found or min(found) < 0 or len(set(found)) < len(found):
        raise SettingsError(
            f"--seeds is {text!r}.",
            remedy="Give a number from 1 to 1000, or different seeds separated by commas; a "
            "comma after it makes a list of one.",
        )
    return tuple(found)


def resume_command(
    folder: Path, *, clients: int, cells: str, protect: bool, accept_exposure: bool
) -> str:
    """Return the command that goes on with a stopped run.

    It names the run's own settings: those that were asked for may have been changed by flags and
    by the environment.

    Args:
        clients, cells: as given; 0 and no text are the defaults of the command.
    """
    command = ["fedrec", "simulate", str(folder / "resolved.toml"), "--resume", str(folder)]
    command += ["--clients", str(clients)] if clients else []
    command += [CELLS, cells] if cells else []
    command += ["--protect"] if protect else []
    command += [ACCEPT_EXPOSURE] if accept_exposure else []
    return shlex.join(command)


def run_seeds(
    settings: Settings,
    seeds: tuple[int, ...],
    *,
    jobs: int,
    n_clients: int,
    cells: Cells,
    given: str,
    protect: bool,
    accept_exposure: bool,
    as_json: bool,
) -> None:
    """Run all seeds, each into a run folder of its own, and print their results.

    Args:
        cells, given: the partition, and the flag that gave it.
    """
    from fedrec.cli.data_options import echo_note
    from fedrec.data.source import read_users
    from fedrec.provenance import provenance_of
    from fedrec_lab.cli.round_progress import round_text
    from fedrec_lab.reports.run_folder import RunFolder
    from fedrec_lab.simulation.seeds import settings_of_seeds, simulate_seeds

    n_rounds = settings.rounds.total + 2
    name = settings.federation.name
    users, catalogue = read_users(settings.data, reader="a simulation", tell=echo_note)
    rows = None
    if cells:
        rows = tell_rows(settings, users, len(catalogue), n_clients=n_clients, cells=cells)
    folders = {}
    for seed, own in settings_of_seeds(settings, seeds).items():
        run = RunFolder.create(settings.output.runs, f"{name}-seed-{seed}")
        # A seed that is killed has left no record of its own.
        run.write_environment(provenance_of(own.plan, own.client.device))
        run.write_settings(own)
        folders[seed] = run.path

    def told(seed: int, report: RoundReport) -> None:
        typer.echo(f"seed {seed}  round {report.round}/{n_rounds}  {round_text(report)}", err=True)

    stop = StopRequest("Stopping every seed after its round; Ctrl-C again stops at once.")
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
            on_round=told,
            stop=stop.requested,
        )
    _print(results, settings.evaluation, as_json, rows)
    unfinished = [result for result in results if not result.finished]
    for result in unfinished:
        again = resume_command(
            result.folder,
            clients=n_clients,
            cells=given,
            protect=protect,
            accept_exposure=accept_exposure,
        )
        typer.echo(f"Seed {result.seed} stopped; go on with: {again}", err=True)
    if unfinished or len(results) < len(seeds):
        raise typer.Exit(INTERRUPTED)


def _print(
    results: list[SeedResult],
    measured: EvaluationSettings,
    as_json: bool,
    cells: dict[str, int] | None,
) -> None:
    from fedrec_lab.reports.result_row import plain_table

    if as_json:
        print_json(
            {
                "at": measured.at,
                "protocol": measured.protocol,
                "cells": cells,
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
            }
        )
        return
    for result in results:
        if result.rows:
            typer.echo(f"seed {result.seed}, {measured.protocol}")
            typer.echo(plain_table(result.rows, at=measured.at))
    for result in results:
        typer.echo(str(result.folder))
