"""`fedrec runs`: what the folders of runs say."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrec.cli.terminal import AsJson, human_bytes, print_json, print_table, printable

if TYPE_CHECKING:
    from fedrec.evaluation.metrics import Rates
    from fedrec_lab.reports.run_folder import RunSummary


app = typer.Typer(
    help="List the runs in a folder, or show one.",
    no_args_is_help=True,
    add_completion=False,
    epilog=(
        "Examples:\n"
        "  fedrec runs list\n"
        "  fedrec runs list --in elsewhere/runs --json\n"
        "  fedrec runs show runs/movies-20260101-120000"
    ),
)


@app.command("list")
def list_runs(
    base: Annotated[Path, typer.Option("--in", help="The folder that output.runs names.")] = Path(
        "runs"
    ),
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder, the newest first, with what the chosen version reached on test.

    The version is the one that validation chose under the plan's protocol. Figures of different
    protocols say nothing of each other: (!) marks one that flatters every method here, (?) one of
    which that is not known, and `fedrec runs show` says why. A simulation that was stopped goes on
    with `fedrec simulate --resume`; of what ended early there is nothing to go on with here.
    """
    from fedrec.plan.cautions import marked
    from fedrec_lab.reports.run_folder import all_runs

    found = list(all_runs(base))
    if as_json:
        print_json({"folder": str(base), "runs": [_record(each) for each in found]})
        return
    if not found:
        typer.echo(f"There is no run in {base}.", err=True)
        return
    rows = [
        (
            each.path.name,
            each.state,
            f"{each.algorithm} {each.structure} {each.protection}".strip(),
            _of(each.rounds, each.planned),
            "" if each.test is None else marked(each.protocol, each.caution),
            *_rates(each.test),
        )
        for each in found
    ]
    print_table(rows, headers=("run", "state", "what", "rounds", "protocol", "HR", "NDCG"))
    for each in found:
        if each.problem:
            typer.echo(f"{each.path.name}: {printable(each.problem)}", err=True)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that a run left.")],
    as_json: AsJson = False,
) -> None:
    """Show a run: what it was, what it reached and cost, and what its folder holds."""
    from fedrec.plan.cautions import explained
    from fedrec_lab.reports.run_folder import summary_of

    found = summary_of(run)
    files = sorted(path.name + "/" * path.is_dir() for path in run.iterdir())
    if as_json:
        print_json(_record(found) | {"files": files})
        return
    started = "unknown" if found.started is None else f"{found.started:%Y-%m-%d %H:%M:%S} UTC"
    rows = [
        ("run", str(found.path)),
        ("state", found.state),
        ("started", started),
        ("what", f"{found.algorithm} + {found.structure} under {found.protection}"),
        ("rounds", _of(found.rounds, found.planned)),
        ("time", f"{found.seconds:.1f} s in rounds"),
        ("sent", f"{human_bytes(found.upload_bytes)} by one client"),
    ]
    if found.version is not None:
        rows.append(("version", f"{found.version}, chosen on validation"))
    for name, rates in (("validation", found.validation), ("test", found.test)):
        if rates is not None:
            values = f"HR@{found.at} {rates.hr:.4f}  NDCG@{found.at} {rates.ndcg:.4f}"
            rows.append((name, f"{values}  {rates.users} users"))
    if found.test is not None:
        rows.append(("protocol", explained(found.protocol, found.caution)))
    print_table(rows)
    typer.echo(f"\n{'  '.join(files)}\n")
    for line in _next(found, files):
        typer.echo(line)


def _next(found: RunSummary, files: list[str]) -> list[str]:
    """Return the commands that make something of the folder."""
    said = []
    if found.state == "stopped":
        said.append(f"fedrec simulate {found.path}/resolved.toml --resume {found.path}")
    if "report.json" in files:
        said.append(f"fedrec report {found.path}")
    if "model.safetensors" in files and "users.safetensors" in files:
        said.append(f"fedrec recommend {found.path} --user ID")
    return said


def _record(found: RunSummary) -> dict[str, Any]:
    record = asdict(found) | {"path": str(found.path)}
    started: datetime | None = found.started
    return record | {"started": None if started is None else started.isoformat()}


def _of(rounds: int, planned: int) -> str:
    return f"{rounds} of {planned}" if planned else ""


def _rates(rates: Rates | None) -> tuple[str, str]:
    return ("", "") if rates is None else (f"{rates.hr:.4f}", f"{rates.ndcg:.4f}")
