"""The live view of a federation, from the coordinator's journal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live

from fedrec.errors import FedrecError, TrainingError, Unreachable
from fedrec.wire.admin_link import AdminLink
from fedrec_lab.demo.processes import Failure
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_view import RunView

__all__ = ["follow_run"]


def follow_run(
    link: AdminLink,
    view: RunView,
    console: Console,
    *,
    failures: Callable[[], list[Failure]],
    on_round: Callable[[RoundReport], None],
    logs: Path,
) -> None:
    """Show a run until it ends.

    Args:
        failures: processes that ended with an error; looked at several times a second.
        on_round: called with every published round.
        logs: folder of the processes' logs, named in errors.

    Raises:
        TrainingError: when the run fails or a process ends with an error.
        Unreachable: when the coordinator falls silent.
    """
    # The journal is a blocking stream; the main thread stays free for Ctrl-C and dead clients.
    broken: list[FedrecError] = []

    def read() -> None:
        try:
            for event in link.events():
                report = view.take(event)
                if report is not None:
                    on_round(report)
                    if not console.is_terminal:
                        console.print(view.line(report))
                if view.finished:
                    return
        except FedrecError as error:
            broken.append(error)

    reader = threading.Thread(target=read, name="journal", daemon=True)
    reader.start()
    with _live(console, view) as refresh:
        while reader.is_alive():
            reader.join(timeout=0.2)
            refresh()
            _check(failures(), logs)
    # When the coordinator dies, its journal may end before anybody looked at the processes.
    if broken or view.failed:
        _check(failures(), logs)
    remedy = f"The logs are in {logs}."
    if broken:
        raise Unreachable(f"The coordinator no longer answers: {broken[0].message}", remedy=remedy)
    if view.failed:
        raise TrainingError(f"The run failed: {view.finished}.", remedy=remedy)


def _check(dead: list[Failure], logs: Path) -> None:
    if dead:
        raise TrainingError(
            "\n".join(map(str, dead)),
            remedy=f"The other processes were stopped; their logs are in {logs}. Correct what the "
            "log says and run the same command again.",
        )


@contextmanager
def _live(console: Console, view: RunView) -> Iterator[Callable[[], None]]:
    if not console.is_terminal:
        yield lambda: None
        return
    with Live(view.table(), console=console, refresh_per_second=8, transient=False) as live:
        yield lambda: live.update(view.table())
        live.update(view.table())
