"""`fedrec runs` lists, shows or compares folders of runs. `fedrec report` writes one again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrec.cli.terminal import Result, TextTable, human_bytes, printable
from fedrec.errors import SettingsError

if TYPE_CHECKING:
    from fedrec.evaluation.metrics import Rates
    from fedrec_lab.reports.run_summary import RunSummary


_EPILOG = (
    "Examples:\n"
    "  fedrec runs\n"
    "  fedrec runs elsewhere/runs --json\n"
    "  fedrec runs runs/movies-20260101-120000\n"
    "  fedrec runs compare runs/movies-20260101-120000 runs/movies-20260102-120000\n"
    "  fedrec runs compare runs/movies-20260101-120000 runs/movies-20260102-120000 --out compared"
)
REPORT_EPILOG = (
    "Examples:\n"
    "  fedrec report runs/movies-20260101-120000\n"
    "  fedrec report runs/movies-20260101-120000 --json"
)
_COMPARE = "compare"


app = typer.Typer(add_completion=False)


@app.command(epilog=_EPILOG)
def runs(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUNS|RUN|compare RUN RUN...]",
            help="A folder of runs, by default runs, or the folder of one run. After the word "
            "compare, the folders of two runs or more.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="compare: a new folder for the page, tables and figures."
        ),
    ] = None,
) -> Result:
    """List the runs in a folder, the newest first, show one run, or compare runs.

    A list shows the test rates of the version that validation chose, under the plan's protocol.
    Don't compare figures across protocols: (!) marks one that flatters every method here, (?) one
    for which that is unknown. The page of a run explains why. A stopped simulation, or one that was
    interrupted by a kill, has a line with the command that resumes it. Runs that ended early can't
    be resumed from their folder.

    For one run, it shows its settings, results and costs, and the content of its folder.

    compare shows the settings that differ and the results on test, also of evaluations. Runs that
    differ only in federation.seed are one row: mean, deviation and the interval of the mean over
    seeds. For the same users, the first row's HR, NDCG and MRR minus another row's have paired
    bootstrap intervals over users. A deployed run has none, because it releases no ranks of single
    users. --out writes a page with overlaid curves, each curve as SVG and PNG, and the table as
    Markdown, CSV, Parquet and JSON. The page's path is then the last line.
    """
    given = places or ["runs"]
    if given[0] == _COMPARE:
        return _compared([Path(each) for each in given[1:]], out)
    if len(given) > 1 or out is not None:
        raise SettingsError(
            "Several runs or --out were given without the word compare.",
            remedy="Use `fedrec runs compare RUN RUN...`.",
        )
    place = Path(given[0])
    from fedrec_lab.reports.run_folder import SETTINGS_NAME
    from fedrec_lab.reports.run_summary import all_runs

    if place.is_dir() and (place / SETTINGS_NAME).is_file():
        return _one(place)
    found = list(all_runs(place))
    content = {"folder": str(place), "runs": [_record(each) for each in found]}
    return Result(content=content, text=_listed(place, found))


def _compared(folders: list[Path], out: Path | None) -> Result:
    from fedrec.extras import require
    from fedrec_lab.comparison.runs import compare_runs
    from fedrec_lab.reports.run_folder import new_folder

    require("pyarrow", "scipy", *(["matplotlib"] if out is not None else []))
    found = compare_runs(*folders)
    page = [] if out is None else [str(found.write(new_folder(out)))]
    return Result(
        content=found.to_record() | {"report": page[0] if page else None},
        text=(found.to_text(), *page),
    )


def _listed(base: Path, found: list[RunSummary]) -> Iterator[str | TextTable]:
    from fedrec.plan.cautions import marked

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
    yield TextTable(rows=rows, headers=("run", "state", "what", "rounds", "protocol", "HR", "NDCG"))
    for each in found:
        if each.problem:
            typer.echo(f"{each.path.name}: {printable(each.problem)}", err=True)
        for command in _again(each):
            what = "resume" if each.resumable else "run it again, as it left no checkpoint"
            typer.echo(f"{each.path.name} was {each.state}. To {what}: {command}", err=True)


def _one(run: Path) -> Result:
    from fedrec_lab.reports.run_summary import summary_of

    found = summary_of(run)
    files = sorted(path.name + "/" * path.is_dir() for path in run.iterdir())
    return Result(content=_record(found) | {"files": files}, text=_shown(found, files))


def _shown(found: RunSummary, files: list[str]) -> Iterator[str | TextTable]:
    from fedrec.plan.cautions import explained

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
    yield TextTable(rows=rows)
    yield f"\n{'  '.join(files)}\n"
    yield from _next(found, files)


def _next(found: RunSummary, files: list[str]) -> list[str]:
    """Return the commands that use the folder."""
    commands, path = _again(found), shlex.quote(str(found.path))
    if "report.json" in files:
        commands.append(f"fedrec report {path}")
    if "model.safetensors" in files and "users.safetensors" in files:
        commands.append(f"fedrec recommend {path} --user ID")
    return commands


def _again(found: RunSummary) -> list[str]:
    """Return the command that resumes a run. Without a checkpoint, it begins a new run."""
    if found.state not in ("stopped", "interrupted"):
        return []
    resumed = ("--resume", str(found.path)) if found.resumable else ()
    again = ["fedrec", "simulate", f"{found.path}/resolved.toml", *resumed, *found.flags]
    return [shlex.join(again)]


def _record(found: RunSummary) -> dict[str, Any]:
    record = asdict(found) | {"path": str(found.path)}
    started: datetime | None = found.started
    return record | {"started": None if started is None else started.isoformat()}


def _of(rounds: int, planned: int) -> str:
    return f"{rounds} of {planned}" if planned else ""


def _rates(rates: Rates | None) -> tuple[str, str]:
    return ("", "") if rates is None else (f"{rates.hr:.4f}", f"{rates.ndcg:.4f}")


def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]) -> Result:
    """Write a run's report again, with every figure as SVG and PNG in figures/.

    Everything comes from report.json in the run's folder, so nothing is trained or measured again.
    The last line is the page's path.
    """
    from fedrec.extras import require
    from fedrec_lab.reports.run_folder import RunFolder

    require("matplotlib")
    folder = RunFolder.open(run)
    content = folder.report_content()
    figures = folder.write_figures(content.figures)
    page = folder.write_report(content)
    names = [str(path) for path in figures]
    return Result(content={"report": str(page), "figures": names}, text=(*names, str(page)))
