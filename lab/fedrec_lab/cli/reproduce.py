"""`fedrec reproduce`: a published row under the paper's protocol and the honest ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import AcceptOtherArithmetic, SetValues, check_is_resumed, values_of
from fedrec.cli.terminal import Result, TextTable, count_of
from fedrec_lab.reports.round_progress import StopRequest, round_progress

if TYPE_CHECKING:
    from fedrec_lab.papers import PublishedRow
    from fedrec_lab.papers.comparison import MeasuredRow
    from fedrec_lab.papers.costs import CostRow, OwnCosts, OwnTimes, TimeRow
    from fedrec_lab.papers.reproduction import Request


COSTS, SPACE = "colr/costs", "pfedclr/space"
"""The tables of costs, by their names in `fedrec reproduce`."""


def tables_named(name: str, *, sample: int, sizes_only: bool) -> Result | None:
    """Return published tables of costs with the costs here, or None for another name.

    Every row shows the published figures and those here. CoLR's table 2 is the paper's estimate.
    Its minutes on a link follow from the numbers of a message. For its minutes of computation, a
    client's training and the server's work are timed on this machine. In table 3 a client protects
    an update and reveals a sum, and the coordinator adds the updates of 60 clients. Sizes are
    exact, including those according to the paper's rules. A ~ marks seconds that were scaled up
    from a sample of the values. The ratio is the paper's: encrypted bytes over plain bytes.

    Args:
        name: `SPACE`, or `COSTS`, optionally with a slash and the beginning of rows.
        sample: number of Paillier ciphertexts to time.
        sizes_only: measure no seconds on this machine.

    Raises:
        SettingsError: there is no such row.
    """
    from fedrec.errors import SettingsError
    from fedrec_lab.papers import costs

    if name == SPACE:
        return _space()
    table, _, begins = name.removeprefix(COSTS).partition("/")
    if table or not name.startswith(COSTS):
        return None
    times = [row for row in costs.TIMES if row.name.startswith(begins)]
    rows = [row for row in costs.COSTS if row.name.startswith(begins)]
    if not rows and not times:
        known = dict.fromkeys([row.name for row in costs.COSTS] + [row.name for row in costs.TIMES])
        raise SettingsError(
            f"There is no row {begins!r} in the tables.", remedy=f"Rows are {', '.join(known)}."
        )
    taken = [(row, costs.own_times(row, timed=not sizes_only)) for row in times]
    found = [(row, costs.own_costs(row, sample=sample, timed=not sizes_only)) for row in rows]
    return Result(
        content={
            "times": [_times_content(row, ours) for row, ours in taken],
            "rows": [_content(row, ours) for row, ours in found],
        },
        text=_text(taken, found),
    )


def _text(
    taken: list[tuple[TimeRow, OwnTimes]], found: list[tuple[CostRow, tuple[OwnCosts, ...]]]
) -> Iterator[str | TextTable]:
    if taken:
        yield TextTable(
            rows=[line for row, ours in taken for line in _time_lines(row, ours)],
            title="CoLR, table 2: minutes of 1000 rounds on MovieLens-1M (3,706 items, dim 64)",
            headers=("row", "", "link", "computation", "total", "client s", "server s"),
        )
        yield "\nComputation is 1000 x (7 x client + 10 + server) seconds: 166.67 minutes are the"
        yield "constant. The paper does not print its seconds.\n"
    if found:
        yield TextTable(
            rows=[line for row, ours in found for line in _lines(row, ours)],
            title="CoLR, table 3: one update of MovieLens-1M (3,706 items, dim 64)",
            headers=(
                *("row", "values", "set", "client s", "server s"),
                *("cipher KB", "plain KB", "ratio"),
            ),
        )
        yield "\nKB are 1,024 bytes. Under topk an index of 4 bytes comes with each value: it is"
        yield "in the paper's plain KB, and here under paillier/paper and single in both."


def _time_lines(row: TimeRow, ours: OwnTimes) -> list[tuple[str, ...]]:
    printed = (row.link_minutes, row.computation_minutes, row.total_minutes)
    lines = [(row.name, "published", *(f"{minutes:.2f}" for minutes in printed), "", "")]
    link = f"{ours.link_minutes:.2f}"
    if ours.computation_minutes is None:
        return [*lines, ("", "here", link, "", "", "", "")]
    computation, total = ours.computation_minutes, ours.link_minutes + ours.computation_minutes
    seconds = (f"{ours.client_seconds:.3g}", f"{ours.server_seconds:.3g}")
    return [*lines, ("", "here", link, f"{computation:.2f}", f"{total:.2f}", *seconds)]


def _times_content(row: TimeRow, ours: OwnTimes) -> dict[str, object]:
    published = asdict(row)
    del published["update"]
    return {"published": published, "ours": asdict(ours)}


def _space() -> Result:
    from fedrec_lab.papers.costs import SPACE as ROWS

    return Result(
        content={
            "rows": [
                {
                    "published": asdict(row),
                    "by_rule": {"client_bytes": row.client_bytes, "server_bytes": row.server_bytes},
                }
                for row in ROWS
            ]
        },
        text=(
            TextTable(
                rows=[
                    (
                        row.name,
                        f"{row.n_users:,}",
                        f"{row.n_items:,}",
                        f"{row.client_mb:.4f}",
                        f"{row.by_rule[0]:.4f}",
                        f"{row.server_mb:.4f}",
                        f"{row.by_rule[1]:.4f}",
                    )
                    for row in ROWS
                ],
                title="PFedCLR, table 6: what a model of dim 16 takes, in MB of 2^20 bytes",
                headers=("row", "users", "items", "client", "by rule", "server", "by rule"),
            ),
            "\nThe paper's server keeps every user's upload. A coordinator here adds them up as",
            "they arrive, under every protection that can add.",
        ),
    )


def _content(row: CostRow, ours: tuple[OwnCosts, ...]) -> dict[str, object]:
    rules = {
        "cipher_bytes": row.cipher_bytes,
        "plain_bytes": row.plain_bytes,
        "ratio": row.ratio,
    }
    own_rows = [{**asdict(own), "ratio": own.ratio} for own in ours]
    return {"published": asdict(row), "by_rule": rules, "ours": own_rows}


def _lines(row: CostRow, ours: tuple[OwnCosts, ...]) -> list[tuple[str, ...]]:
    low, high = row.server_seconds
    server = f"{low:g}" if low == high else f"{low:g}-{high:g}"
    sizes = (str(row.cipher_kb), str(row.plain_kb), f"{row.printed_ratio:.2f}")
    printed = (f"{row.client_seconds:g}", server, *sizes)
    by_rule = ("", "", _kb(row.cipher_bytes), _kb(row.plain_bytes), f"{row.ratio:.2f}")
    lines: list[tuple[str, ...]] = [
        (row.name, str(row.n_values), "published", *printed),
        ("", "", "according to the paper's rules", *by_rule),
    ]
    for own in ours:
        seconds = (_seconds(own.client_seconds, own), _seconds(own.server_seconds, own))
        sizes = (_kb(own.cipher_bytes), _kb(own.plain_bytes), f"{own.ratio:.2f}")
        lines.append(("", "", f"{own.protection}/{own.preset}", *seconds, *sizes))
    return lines


def _kb(n_bytes: float) -> str:
    return f"{n_bytes / 1024:.1f}"


def _seconds(seconds: float | None, own: OwnCosts) -> str:
    if seconds is None:
        return ""
    shown = f"{seconds:.3g}" if seconds < 100 else f"{seconds:.0f}"
    return f"{'~' if own.sampled_values else ''}{shown}"


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
        typer.Option(min=1, help=f"{COSTS}: number of Paillier ciphertexts to time."),
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
