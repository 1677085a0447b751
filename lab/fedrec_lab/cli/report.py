"""`fedrec report`: write a run's report and figures again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrec.cli.terminal import Result

EPILOG = (
    "Examples:\n"
    "  fedrec report runs/movies-20260101-120000\n"
    "  fedrec report runs/movies-20260101-120000 --json"
)


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
