"""The live table of `fedrec watch`: where the run is, and the last of what happened.

Events come by a stream, and one thread takes them as they arrive. The table is drawn a few times a
second at most, from one status that is asked for after the events that stand below it: so it is
never behind the run, however many events a late watcher is sent at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedrec.cli.run_status import status_rows
from fedrec.cli.terminal import new_console
from fedrec_lab.cli.event_line import event_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedrec.wire.admin_link import AdminLink, RunEvent, RunStatus

__all__ = ["SHOWN_EVENTS", "watch_live"]

SHOWN_EVENTS = 12
DRAWN_SECONDS = 0.25
IDLE_SECONDS = 1.0
"""Who is awaited, and what is left of a deadline, change without an event."""


class _Taken:
    """What a thread took of a stream of events."""

    def __init__(self, events: Iterable[RunEvent]) -> None:
        self.last: deque[RunEvent] = deque(maxlen=SHOWN_EVENTS)
        self.news = threading.Event()
        self._events = events
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._take, name="events", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Tell whether no event follows.

        Raises:
            FedrecError: what ended the stream.
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
            # Told in the thread that draws.
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
    """Return the table above the last events, each on one line of the terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in status_rows(found):
        table.add_row(*row)
    below = (Text(line, no_wrap=True, overflow="ellipsis") for line in lines)
    return Group(table, Text(), *below)
