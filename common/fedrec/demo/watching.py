"""The live view of a federation, from the coordinator's journal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from fedrec.errors import FedrecError, TrainingError, Unreachable
from fedrec.evaluation.metrics import MetricSums
from fedrec.ids import RoundId
from fedrec.reports.round_report import RoundReport
from fedrec.wire.admin_link import AdminLink, RunEvent

__all__ = ["RunView", "follow_run"]


@dataclass(slots=True, kw_only=True)
class RunView:
    """What is known of a run so far.

    Attributes:
        planned: rounds that will be published: training, the count and the evaluation.
        arrived, asked, phase: of the round in progress.
        references: metric sums of the evaluation round, once it is published.
    """

    planned: int
    at: int
    rounds: list[RoundReport] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    references: MetricSums | None = None
    round: int = 0
    kind: str = ""
    phase: str = "waiting for clients"
    arrived: int = 0
    asked: int = 0
    bytes_received: int = 0
    finished: str = ""
    failed: bool = False

    def take(self, event: RunEvent) -> RoundReport | None:
        """Note an event; return the report of a round that was just published."""
        fields = event.fields
        match event.kind:
            case "round opened":
                self.round, self.kind, self.phase = event.round, fields["kind"], "collecting"
                self.arrived, self.asked = 0, fields["asked"]
            case "update counted":
                self.arrived += 1
                self.bytes_received += fields["bytes"]
            case "collecting ended":
                self.phase = "summing"
            case "key holder asked":
                self.phase = "revealing"
            case "round abandoned":
                self.abandoned.append(fields["reason"])
            case "run finished":
                self.finished, self.failed = fields["reason"], fields["failed"]
            case "round published":
                return self._published(event)
        return None

    def _published(self, event: RunEvent) -> RoundReport:
        fields = event.fields
        self.phase = "published"
        sums = MetricSums(np.array(fields["metrics"], dtype=np.int64))
        report = RoundReport.of(
            RoundId(event.round),
            fields["kind"],
            sums,
            seconds=fields["seconds"],
            vector_bytes=fields["bytes_received"] // max(1, fields["counted"]),
            n_clients=fields["counted"],
        )
        self.rounds.append(report)
        if fields["kind"] == "evaluate":
            self.references = sums
        return report

    def line(self, report: RoundReport) -> str:
        """Return one line on a published round."""
        rates = report.validation
        quality = ""
        if rates is not None:
            quality = f"HR@{self.at} {rates.hr:.4f}  NDCG@{self.at} {rates.ndcg:.4f}  "
        loss = "" if report.loss is None else f"loss {report.loss:.4f}  "
        return (
            f"round {len(self.rounds):>3}/{self.planned}  {report.kind:<8}  {quality}{loss}"
            f"{report.n_clients} clients, {report.vector_bytes / 1024:.0f} KiB each, "
            f"{report.seconds:.2f} s"
        )

    def table(self) -> Table:
        """Return the view for a terminal."""
        table = Table.grid(padding=(0, 2))
        measured = [report.validation for report in self.rounds if report.validation is not None]
        best = max((rates.ndcg for rates in measured), default=0.0)
        filled = round(30 * len(self.rounds) / max(1, self.planned))
        table.add_row("progress", f"{'━' * filled}{'╌' * (30 - filled)} {len(self.rounds)}/"
                      f"{self.planned} rounds published")  # fmt: skip
        table.add_row(
            "now", f"round {self.round} ({self.kind}), {self.phase}, "
            f"{self.arrived} of {self.asked} clients arrived",
        )  # fmt: skip
        if measured:
            table.add_row(
                "validation",
                f"HR@{self.at} {measured[-1].hr:.4f}  NDCG@{self.at} {measured[-1].ndcg:.4f}  "
                f"(best NDCG {best:.4f})",
            )
        table.add_row("received", f"{self.bytes_received / 2**20:.1f} MiB of updates")
        if self.abandoned:
            table.add_row("abandoned", f"{len(self.abandoned)}: {self.abandoned[-1]}")
        return table


def follow_run(
    link: AdminLink,
    view: RunView,
    console: Console,
    *,
    failed: Callable[[], list[str]],
    on_round: Callable[[RoundReport], None],
) -> None:
    """Show a run until it ends.

    Args:
        failed: names of processes that ended with an error; looked at several times a second.
        on_round: called with every published round.

    Raises:
        TrainingError: when the run fails or a client's process ends with an error.
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
                        console.print(view.line(report), highlight=False)
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
            dead = failed()
            if dead:
                raise TrainingError(f"The process of {' and '.join(dead)} ended with an error.")
    if broken:
        raise Unreachable(f"The coordinator no longer answers: {broken[0].message}")
    if view.failed:
        raise TrainingError(f"The run failed: {view.finished}.")


@contextmanager
def _live(console: Console, view: RunView) -> Iterator[Callable[[], None]]:
    if not console.is_terminal:
        yield lambda: None
        return
    with Live(view.table(), console=console, refresh_per_second=8, transient=False) as live:
        yield lambda: live.update(view.table())
        live.update(view.table())
