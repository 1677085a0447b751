"""`fedrec reproduce`: a published row under the paper's protocol and the honest ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import AcceptOtherArithmetic, SetValues, check_is_resumed, values_of
from fedrec.cli.terminal import Result, TextTable, count_of
from fedrec_lab.cli.costs import COSTS, SPACE, tables_named
from fedrec_lab.reports.round_progress import StopRequest, round_progress

if TYPE_CHECKING:
    from fedrec_lab.papers import PublishedRow
    from fedrec_lab.papers.comparison import MeasuredRow
    from fedrec_lab.papers.reproduction import Request


EPILOG = (
    "Examples:\n"
    "  fedrec reproduce --list\n"
    "  fedrec reproduce pfedrec/ml-100k\n"
    "  fedrec reproduce colr/ml-1m --protocols paper,sampled --seeds 5\n"
    "  fedrec reproduce fedmf/filmtrust --rounds 10\n"
    "  fedrec reproduce --resume runs/reproduce-20260101-120000\n"
    "  fedrec reproduce colr/costs --sizes-only\n"
    "  fedrec reproduce colr/costs/topk --sample 4000\n"
    "  fedrec reproduce pfedclr/space"
)


_PROTOCOLS = "paper,sampled,full"


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A row, as in pfedrec/ml-100k, the beginning of rows, as in colr/ml-1m, or a "
            f"table of costs: {COSTS}, {COSTS}/topk, {SPACE}.",
        ),
    ] = "",
    show_list: Annotated[
        bool, typer.Option("--list", help="List all rows, and whether their data is here.")
    ] = False,
    protocols: Annotated[
        str, typer.Option(help="Protocols to run: paper, sampled and full, separated by commas.")
    ] = _PROTOCOLS,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of each protocol, with the seeds 1, 2, ...")
    ] = 1,
    rounds: Annotated[
        int,
        typer.Option(
            min=0, help="Number of rounds for a shorter trial. If 0, uses the row's number."
        ),
    ] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path, typer.Option(help="The folder for the run folder.")] = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option(help="Resume the stopped run in this folder.")
    ] = None,
    accept_other_arithmetic: AcceptOtherArithmetic = False,
    sample: Annotated[
        int,
        typer.Option(min=1, help=f"{COSTS}: Paillier ciphertexts to time. The rest is scaled."),
    ] = 100,
    sizes_only: Annotated[
        bool, typer.Option("--sizes-only", help=f"{COSTS}: measure no seconds on this machine.")
    ] = False,
    values: SetValues = None,
) -> Result:
    """Run published rows under the paper's protocol and the honest ones.

    The paper's protocol leaks the held-out items in most papers. sampled ranks the same candidates
    without the leak, and full ranks all items. Rounds are chosen on validation. HR@10 within one
    point of the published figure counts as reproduced. A run with fewer rounds, with --set or on
    other data than the paper's gets no verdict. Ctrl-C stops after the round and saves. The last
    line on stdout is the run's folder.

    A table of costs is not a run. colr/costs shows the CoLR paper's tables 2 and 3, minutes of 1000
    rounds and encrypted updates, with the costs here. After another slash, give the beginning of
    rows. pfedclr/space shows the PFedCLR paper's table 6, the space of a model at a client and at a
    server. It has the printed sizes, and those according to the rules that these follow.
    """
    from fedrec.errors import SettingsError
    from fedrec.extras import require
    from fedrec_lab.papers.reproduction import Request

    if show_list:
        return _list(name)
    check_is_resumed(accept_other_arithmetic, resume)
    if resume is None and (table := tables_named(name, sample=sample, sizes_only=sizes_only)):
        return table
    require("torch")
    if not name and resume is None:
        raise SettingsError(
            "The name of a row is missing.", remedy="`fedrec reproduce --list` shows all rows."
        )
    if resume is not None:
        if name or values or rounds or seeds != 1 or (protocols, device) != (_PROTOCOLS, "auto"):
            raise SettingsError(
                f"--resume continues the request of {resume}, so it takes no name and no other "
                "options.",
                remedy="Omit the name and the other options, or start a new run without --resume.",
            )
        folder = resume
        request = Request.load(folder)
    else:
        request = Request.of(
            name,
            protocols=protocols,
            seeds=seeds,
            rounds=rounds,
            device=device,
            values={key: str(value) for key, value in values_of(values).items()},
        )
        request.check_settings()
        request.require_data()
        folder = request.make_folder(out)
    return _run(request, folder, accept_other_arithmetic)


def _run(request: Request, folder: Path, accept_other_arithmetic: bool) -> Result:
    from fedrec_lab.papers.reproduction import reproduce_rows

    stop = StopRequest("Stopping after this round. Ctrl-C again stops at once.")
    with stop.on_interrupt():
        comparisons = reproduce_rows(
            request,
            folder,
            watch=round_progress,
            stop=stop.requested,
            accept_other_arithmetic=accept_other_arithmetic,
        )
    # Only a complete row is shown: a stopped run must not be mistaken for a result.
    return Result(
        content={
            "run": str(folder),
            "finished": not stop.requested(),
            "rows": [found.to_json() for found in comparisons],
        },
        text=(*(part for found in comparisons for part in _shown(found)), str(folder)),
        again=["fedrec", "reproduce", "--resume", str(folder)] if stop.requested() else (),
    )


def _shown(found: MeasuredRow) -> Iterator[str | TextTable]:
    yield TextTable(rows=found.table(), headers=found.headings())
    yield from found.sentences()
    yield ""


def _list(name: str) -> Result:
    from fedrec.data.public import cached_path
    from fedrec_lab.papers import ROWS, rows_named

    rows = rows_named(name, ROWS) if name else tuple(ROWS.values())
    here = {row.dataset: cached_path(row.dataset).is_file() for row in rows}
    listed = [
        {
            "name": row.name,
            "dataset": row.dataset,
            "data_available": here[row.dataset],
            "hr": row.hr,
            "ndcg": row.ndcg,
            "source": row.source,
            "note": row.note,
            "plan": json.loads(row.plan.model_dump_json()),
        }
        for row in rows
    ]
    return Result(content={"rows": listed}, text=_text_of_list(rows, here))


def _text_of_list(
    rows: tuple[PublishedRow, ...], here: dict[str, bool]
) -> Iterator[str | TextTable]:
    from fedrec.data.public import how_to_get

    yield TextTable(
        rows=[
            (
                row.name,
                f"{row.hr:.4f} / {row.ndcg:.4f}",
                count_of(row.plan.rounds.total, "round"),
                f"{row.minutes:g} min",
                "yes" if here[row.dataset] else "no",
                row.source,
            )
            for row in rows
        ],
        headers=("row", "HR@10 / NDCG@10", "rounds", "a protocol", "data", "source"),
    )
    yield f"Tables of costs: {COSTS}, {SPACE}"
    for dataset, found in here.items():
        if not found:
            typer.echo(f"{dataset} is not on this machine. {how_to_get(dataset)}", err=True)
