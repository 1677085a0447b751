"""`fedrec watch`: show a coordinator's events, line by line or as a live view."""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrec.cli.flags import Address, OperatorFile, open_admin_link
from fedrec.cli.operating import status_table
from fedrec.cli.terminal import Result, human_bytes, new_console, printable
from fedrec.errors import Unreachable
from fedrec.listening import is_own_address, split_address, written_address

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedrec.wire.admin_link import AdminLink, PageLink, RunEvent, RunStatus


def event_line(event: RunEvent) -> str:
    """Return an event's time, round and kind, and its other fields."""
    time = datetime.fromtimestamp(event.unix_seconds).strftime("%H:%M:%S")
    about = f"round {event.round}"
    what = f"{about}: {event.kind}" if event.round else event.kind
    if event.round and event.kind.startswith("round "):
        what = about + event.kind.removeprefix("round")
    if event.kind == "round published":
        details = _published(event)
    elif event.kind == "run finished":
        details = _ending(event.fields)
    else:
        details = _fields(event.fields)
    return str(printable(f"{time}  {what}" + (f"  {details}" if details else "")))


def _ending(fields: Any) -> str:
    """Return why a run is over."""
    reason = str(fields.get("reason", ""))
    return f"failed: {reason}" if fields.get("failed") else reason


def _published(event: RunEvent) -> str:
    """Return a published round's metrics and costs."""
    fields = dict(event.fields)
    parts = [str(fields.pop("kind", ""))]
    parts += _rates(fields.pop("metrics", []))
    if "bytes_received" in fields:
        parts.append(human_bytes(fields.pop("bytes_received")))
    if "seconds" in fields:
        parts.append(f"{fields.pop('seconds'):.2f} s")
    return ", ".join(part for part in parts if part)


def _rates(values: list[int]) -> list[str]:
    # A line must not wait for numpy if nothing was measured.
    if not values:
        return []
    from fedrec.evaluation.metrics import MetricSums

    sums = MetricSums.of_event(values)
    rates = None if sums is None else sums.rates("model", "validation")
    return [] if rates is None else [f"HR {rates.hr:.4f} NDCG {rates.ndcg:.4f}"]


def _fields(fields: Any) -> str:
    # The metrics are a long list of sums, which the output of --json has.
    shown = {name: value for name, value in fields.items() if name != "metrics"}
    return ", ".join(
        # A size has its unit, which explains it.
        _value(name, value) if name == "bytes" else f"{name} {_value(name, value)}"
        for name, value in shown.items()
    )


def _value(name: str, value: object) -> str:
    if name.startswith("bytes") and isinstance(value, int):
        return human_bytes(value)
    if name == "seconds":
        return f"{value} s"
    return value if isinstance(value, str) else json.dumps(value)


SHOWN_EVENTS = 12
DRAWN_SECONDS = 0.25
IDLE_SECONDS = 1.0
"""The awaited clients, and the rest of a deadline, change without an event."""


class _Taken:
    """The events that a thread took from a stream."""

    def __init__(self, events: Iterable[RunEvent]) -> None:
        self.last: deque[RunEvent] = deque(maxlen=SHOWN_EVENTS)
        self.news = threading.Event()
        self._events = events
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._take, name="events", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Return whether no event follows.

        Raises:
            FedrecError: the error that ended the stream.
        """
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def _take(self) -> None:
        try:
            for event in self._events:
                self.last.append(event)
                self.news.set()
        except BaseException as error:
            # Reported in the thread that draws.
            self._error = error
        finally:
            self.news.set()


def watch_live(link: AdminLink, events: Iterable[RunEvent]) -> None:
    """Show a run on a terminal until its events end.

    Raises:
        FedrecError: the coordinator no longer answers.
    """
    from rich.live import Live

    taken, pause = _Taken(events), threading.Event()
    with Live(console=new_console(), auto_refresh=False) as live:
        while True:
            over = taken.is_over
            taken.news.clear()
            lines = [event_line(event) for event in list(taken.last)]
            live.update(live_view(link.status(), lines), refresh=True)
            if over:
                return
            taken.news.wait(IDLE_SECONDS)
            pause.wait(DRAWN_SECONDS)


def live_view(found: RunStatus, lines: list[str]) -> RenderableType:
    """Return the table above the last events. Each event is one line of the terminal."""
    from rich.console import Group
    from rich.text import Text

    below = (Text(line, no_wrap=True, overflow="ellipsis") for line in lines)
    return Group(status_table(found), Text(), *below)


EPILOG = (
    "Examples:\n"
    "  fedrec watch 127.0.0.1:7447\n"
    "  fedrec watch 127.0.0.1:7447 --json --no-follow > events.jsonl\n"
    "  fedrec watch recommender.example:7447 --web"
)

LAST_EVENT = "run finished"


def watch(
    context: typer.Context,
    address: Address = "",
    after: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Only events after this number. If 0, shows all. By default the live table begins "
            "at the run's current state, and other outputs with the first event.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option(help="Continue as events happen.")] = True,
    operator: OperatorFile = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="SETTINGS.toml",
            help="Also write a run folder under output.runs. Needs the federation's settings.",
        ),
    ] = None,
    web: Annotated[
        bool,
        typer.Option(
            "--web",
            help="Print the address at which a browser shows the run, and end. A link is valid "
            "once and for five minutes.",
        ),
    ] = False,
    as_json: bool = False,
) -> Result:
    """Follow rounds until the run is over or Ctrl-C. The run isn't affected.

    On a terminal it shows a live table, elsewhere one line for each event.
    """
    live = follow and not as_json and sys.stdout.isatty()
    link = context.with_resource(open_admin_link(address, operator))
    if web:
        return _page(link.open_page(), address)
    if after is None:
        starts_late = live and record is None
        after = max(0, link.status().last_event - SHOWN_EVENTS) if starts_late else 0
    events = _until_finished(link.events(after=after, follow=follow))
    if record is not None:
        # It describes the run, not the events after --after.
        first = next(link.events(follow=False), None)
        began = None if first is None else first.unix_seconds
        events = context.with_resource(_recorded(events, record, began, as_json=as_json))
    return Result(content=map(asdict, events), text=_lines(link, events, live=live))


def _lines(link: AdminLink, events: Iterator[RunEvent], *, live: bool) -> Iterator[str]:
    """Yield a line for each event and the protocol of their rates, or show the live view."""
    if live:
        watch_live(link, events)
        return
    protocol = _protocol(link.status())
    if protocol:
        yield protocol
    yield from map(event_line, events)
    # The last round shows whether the protocol flatters. The coordinator may have ended by now.
    with suppress(Unreachable):
        last = _protocol(link.status())
        if last not in ("", protocol):
            yield last


def _protocol(found: RunStatus) -> str:
    """Return the line about the protocol of the lines' rates.

    An older coordinator does not report it, and under noise no round has rates.
    """
    from fedrec.plan.cautions import explained

    explanation = explained(found.protocol, found.caution) if found.epsilon is None else ""
    return explanation and f"HR and NDCG are measured under {explanation}"


def _page(page: PageLink, address: str) -> Result:
    """Return the address to open in a browser."""
    host, _ = split_address(address)
    url = page.url(host)
    return Result(
        content={"url": url, "good_seconds": page.good_seconds}, text=_with_notes(url, page, host)
    )


def _with_notes(url: str, page: PageLink, host: str) -> Iterator[str]:
    """Yield the page's address, and print notes about it on stderr."""
    yield url
    if page.token:
        typer.echo(f"Valid once, for {page.good_seconds / 60:.0f} minutes.", err=True)
    if is_own_address(page.host) and not is_own_address(host):
        typer.echo(
            "The page is on the coordinator's own machine. From here: ssh -L "
            f"{page.port}:{written_address(page.host, page.port)} {host}",
            err=True,
        )


def _until_finished(events: Iterator[RunEvent]) -> Iterator[RunEvent]:
    for event in events:
        yield event
        if event.kind == LAST_EVENT:
            return


@contextmanager
def _recorded(
    events: Iterator[RunEvent], settings_file: Path, began: float | None, *, as_json: bool = False
) -> Iterator[Iterator[RunEvent]]:
    """Pass events on, and write a run folder at the end. Its path is the last line on stdout.

    Args:
        began: the run's start, in unix seconds. None if it has not begun.
        as_json: whether stdout is only for events, so that the path is printed to stderr.
    """
    from fedrec.cli.data_options import catalogue_size
    from fedrec.extras import require
    from fedrec.settings.validation import load_settings
    from fedrec_lab.reports.drawing import why_no_figures
    from fedrec_lab.reports.federation_record import RunView, record_federation
    from fedrec_lab.reports.run_folder import RunFolder

    require("torch", "pyarrow")
    if why_no_figures():
        typer.echo(f"warning: {why_no_figures()}", err=True)
    settings = load_settings(settings_file)
    plan = settings.plan
    n_items, _ = catalogue_size(settings)
    folder = RunFolder.create(settings.output.runs, plan.federation.name, began=began)
    folder.write_settings(settings)
    folder.write_environment()
    view = RunView(planned=plan.rounds.published, at=plan.evaluation.at)

    def noted() -> Iterator[RunEvent]:
        for event in events:
            report = view.take(event)
            if report is not None:
                folder.append_round(report)
            yield event

    try:
        yield noted()
    finally:
        record_federation(
            folder,
            plan,
            view,
            n_items=n_items,
            title=f"{plan.federation.name}: {plan.algorithm.name}",
            subtitle=f"{len(view.rounds)} rounds under {plan.protection.name}",
        )
        typer.echo(str(folder.path), err=as_json)
