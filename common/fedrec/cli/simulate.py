"""`fedrec simulate`: a whole federation in this process."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.failures import INTERRUPTED
from fedrec.cli.stop_request import StopRequest
from fedrec.cli.terminal import AsJson, human_bytes, new_console, print_json
from fedrec.cli.value_flags import SetValues, values_of

if TYPE_CHECKING:
    from fedrec.config.schema import Settings
    from fedrec.reports.round_report import RoundReport
    from fedrec.reports.run_folder import RunFolder
    from fedrec.simulation.result import SimulationResult

__all__ = ["EPILOG", "simulate"]

EPILOG = (
    "Examples:\n"
    "  fedrec simulate run.toml\n"
    "  fedrec simulate run.toml --clients 3 --protect --set rounds.total=5\n"
    "  fedrec simulate run.toml --resume runs/movies-20260101-120000"
)

Told = Callable[["RoundReport"], None]


def simulate(
    settings_file: Annotated[
        Path, typer.Argument(metavar="SETTINGS", help="The federation's settings.")
    ],
    clients: Annotated[
        int, typer.Option(min=0, help="Clients that share the users; 0 takes what is fastest.")
    ] = 0,
    protect: Annotated[
        bool, typer.Option("--protect", help="Really encrypt, add and reveal every round.")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the stopped run in this folder.")
    ] = None,
    values: SetValues = None,
    as_json: AsJson = False,
) -> None:
    """Run the federation of a settings file in one process, on the data that it names.

    It publishes the same bits as the coordinator and clients would, whatever the number of
    clients and the protection, so neither is needed for research; --protect measures their
    cost. Only update.compress = "client" and update.subset = "client" depend on how users are
    dealt: give --clients with them. Ctrl-C stops after the round and saves; a second one stops
    at once. The last line on stdout is the run's folder.

    The table has the plan's protocol and, where one training allows both, full and sampled side
    by side, each with the round that its own validation chose. `fedrec evaluate` adds seeds,
    references and the protocol paper.
    """
    from fedrec.algorithms import ALGORITHMS
    from fedrec.comparison.training import further_protocols
    from fedrec.config.loading import load_settings
    from fedrec.data.source import read_users
    from fedrec.reports.run_folder import RunFolder
    from fedrec.simulation.federation import simulate as run_federation
    from fedrec.simulation.recording import record_simulation
    from fedrec.updates import UPDATES

    settings = load_settings(settings_file, values_of(values))
    chosen = settings.plan
    for warning in (
        *ALGORITHMS[chosen.algorithm.name].warnings(chosen),
        *UPDATES[chosen.update.structure].warnings(chosen.update),
    ):
        typer.echo(f"warning: {warning}", err=True)
    users, catalogue = read_users(settings.data, reader="a simulation")
    n_clients = clients or (settings.rounds.minimum_clients if protect else 1)
    if resume is not None:
        run = RunFolder.open(resume)
    else:
        run = RunFolder.create(settings.output.runs, settings.federation.name)
    stop = StopRequest("Stopping after this round; Ctrl-C again stops at once.")
    with stop.on_interrupt(), _progress(settings, run) as told:
        result = run_federation(
            settings,
            n_clients=n_clients,
            protect=protect,
            folder=run.path,
            resume=resume is not None,
            on_round=told,
            stop=stop.requested,
            users=users,
            catalogue=catalogue,
            also=further_protocols(chosen, n_users=len(users), n_items=len(catalogue)),
        )
    record_simulation(result, run)
    _print(result, run, as_json)
    if not result.finished:
        again = ["fedrec", "simulate", str(settings_file), "--resume", str(run.path)]
        typer.echo(f"Stopped; go on with: {shlex.join(again)}", err=True)
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _progress(settings: Settings, run: RunFolder) -> Iterator[Told]:
    """Record every round and show it: a bar on a terminal, else a line a round, on stderr."""
    n_rounds = settings.rounds.total + 2
    if not sys.stderr.isatty():

        def tell(report: RoundReport) -> None:
            run.append_round(report)
            typer.echo(f"round {report.round}/{n_rounds}  {_round_text(report)}", err=True)

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("rounds"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=new_console(stderr=True)) as bar:
        task = bar.add_task("rounds", total=n_rounds, text="")

        def show(report: RoundReport) -> None:
            run.append_round(report)
            bar.update(task, completed=int(report.round), text=_round_text(report))

        yield show


def _round_text(report: RoundReport) -> str:
    parts: list[str] = [report.kind]
    if report.loss is not None:
        parts.append(f"loss {report.loss:.4f}")
    if report.validation is not None:
        parts.append(f"HR {report.validation.hr:.4f} NDCG {report.validation.ndcg:.4f}")
    parts += [f"{human_bytes(report.vector_bytes)} up", f"{report.seconds:.2f} s"]
    return "  ".join(parts)


def _print(result: SimulationResult, run: RunFolder, as_json: bool) -> None:
    table = result.comparison()
    if as_json:
        content = {
            "run": str(run.path),
            "finished": result.finished,
            "rounds": len(result.rounds),
            "best_round": int(result.best.round),
            "at": table.at,
            "results": [
                {"method": row.label, "note": row.note} | asdict(row.samples[0])
                for row in result.rows()
            ],
            "table": table.to_record(),
        }
        print_json(content)
        return
    if table.rows:
        typer.echo(table.to_text())
    typer.echo(str(run.path))
