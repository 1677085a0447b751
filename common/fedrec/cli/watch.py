"""`fedrec watch`: a coordinator's rounds as they happen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.operator_options import Address, OperatorFile, open_admin_link
from fedrec.cli.run_status import status_rows
from fedrec.cli.terminal import human_bytes, new_console, print_json, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedrec.wire.admin_link import AdminLink, RunEvent, RunStatus

__all__ = ["EPILOG", "watch"]

EPILOG = (
    "Examples:\n"
    "  fedrec watch 127.0.0.1:7447\n"
    "  fedrec watch 127.0.0.1:7447 --json --no-follow > events.jsonl"
)

SHOWN_EVENTS = 12
LAST_EVENT = "run finished"


def watch(
    address: Address,
    after: Annotated[
        int, typer.Option(min=0, help="Only events after this number; 0 shows all.")
    ] = 0,
    follow: Annotated[bool, typer.Option(help="Go on as events happen.")] = True,
    operator: OperatorFile = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="SETTINGS.toml",
            help="Also write a run folder under output.runs; needs the federation's settings.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, one for each event.")
    ] = False,
) -> None:
    """Follow rounds until the run is over or Ctrl-C; the run does not notice.

    On a terminal a live table is shown, elsewhere one line for each event.
    """
    with closing(open_admin_link(address, operator)) as link:
        events = _until_finished(link.events(after=after, follow=follow))
        if record is not None:
            events = _recorded(events, record)
        if as_json:
            for event in events:
                print_json(asdict(event))
                sys.stdout.flush()
        elif follow and sys.stdout.isatty():
            _watch_live(link, events)
        else:
            for event in events:
                typer.echo(_line(event))


def _until_finished(events: Iterator[RunEvent]) -> Iterator[RunEvent]:
    for event in events:
        yield event
        if event.kind == LAST_EVENT:
            return


def _recorded(events: Iterator[RunEvent], settings_file: Path) -> Iterator[RunEvent]:
    """Pass events on, and leave a run folder when they end."""
    from fedrec.cli.catalogue_size import catalogue_size
    from fedrec.config.loading import load_settings
    from fedrec.reports.federation_record import record_federation
    from fedrec.reports.run_folder import RunFolder
    from fedrec.reports.run_view import RunView

    settings = load_settings(settings_file)
    plan = settings.plan
    n_items, _ = catalogue_size(settings)
    folder = RunFolder.create(settings.output.runs, plan.federation.name)
    folder.write_settings(settings)
    folder.write_environment()
    view = RunView(planned=plan.rounds.total + 2, at=plan.evaluation.at)
    try:
        for event in events:
            report = view.take(event)
            if report is not None:
                folder.append_round(report)
            yield event
    finally:
        record_federation(
            folder,
            plan,
            view,
            n_items=n_items,
            title=f"{plan.federation.name}: {plan.algorithm.name}",
            subtitle=f"{len(view.rounds)} rounds under {plan.protection.name}",
        )
        typer.echo(str(folder.path), err=True)


def _watch_live(link: AdminLink, events: Iterator[RunEvent]) -> None:
    from rich.live import Live

    lines: list[str] = []
    first = link.status()
    with Live(_view(first, lines), console=new_console(), auto_refresh=False) as live:
        for event in events:
            lines = [*lines, _line(event)][-SHOWN_EVENTS:]
            live.update(_view(link.status(), lines), refresh=True)


def _view(found: RunStatus, lines: list[str]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in status_rows(found):
        table.add_row(*row)
    return Group(table, Text(), *(Text(line) for line in lines))


def _line(event: RunEvent) -> str:
    time = datetime.fromtimestamp(event.unix_seconds).strftime("%H:%M:%S")
    what = f"round {event.round}: {event.kind}" if event.round else event.kind
    # The metrics are a long list of sums; they are in the output of --json.
    shown = {name: value for name, value in event.fields.items() if name != "metrics"}
    parts = [f"{name} {_value(name, value)}" for name, value in shown.items()]
    line = f"{time}  {what}" + (f"  ({', '.join(parts)})" if parts else "")
    return str(printable(line))


def _value(name: str, value: object) -> str:
    if name.startswith("bytes") and isinstance(value, int):
        return human_bytes(value)
    if name == "seconds":
        return f"{value} s"
    return value if isinstance(value, str) else json.dumps(value)
