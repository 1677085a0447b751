"""The demonstration's second act, what it costs, and how its run is followed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.text import Text

from fedrec.config.schema import Plan, Settings
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import Rates
from fedrec.provenance import provenance_of
from fedrec.training.learner import Learner
from fedrec_lab.demo.parties import ANY_PAGE, run_parties
from fedrec_lab.demo.workspace import DEVICE, DemoData, Workspace, provisioned
from fedrec_lab.reports.federation_record import RunView, record_federation, result_rows
from fedrec_lab.reports.result_row import ResultRow
from fedrec_lab.reports.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """Bytes that one client moved in a round, measured at its own network interface.

    Attributes:
        up: median over clients and rounds of all bytes sent.
        down: median over clients and rounds of all bytes received.
    """

    up: int
    down: int


def measured_costs(workspace: Workspace) -> RoundCosts:
    """Read the clients' own journals."""
    lines = list(journal_lines(workspace))
    return RoundCosts(
        up=int(median(line["bytes_up"] for line in lines)),
        down=int(median(line["bytes_down"] for line in lines)),
    )


def journal_lines(workspace: Workspace) -> Iterator[dict[str, int]]:
    """Yield what every client wrote down of every round in which it counted."""
    for state in workspace.client_states:
        for line in (state / "client-log.jsonl").read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            if found["outcome"] == "counted":
                yield found


def announce(console: Console, what: str, more: str) -> None:
    """Print what begins now."""
    console.print(Text.assemble((what, "bold"), more))


def run_federation(
    workspace: Workspace,
    folder: RunFolder,
    console: Console,
    *,
    accept_exposure: bool = False,
    record_wire: Path | None = None,
) -> RunView:
    """Start all parties, show the rounds, and return what they measured.

    Args:
        record_wire: a folder for a recording of the coordinator's traffic; None records nothing.

    Raises:
        FedrecError: when a process fails or the run cannot be followed.
    """
    plan = workspace.plan
    view = RunView(planned=plan.rounds.total + 2, at=plan.evaluation.at)
    n_clients = len(workspace.parties.clients)

    def started(address: str, page: str) -> None:
        what = f": coordinator on {address}, the key authority, {n_clients} clients"
        announce(console, "Running", what)
        announce(console, "Watch", f" it in a browser: {page}")

    run_parties(
        workspace.parties,
        folder.path / "logs",
        view,
        console,
        on_start=started,
        on_round=folder.append_round,
        accept_exposure=accept_exposure,
        record_wire=record_wire,
        page=ANY_PAGE,
    )
    return view


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondAct:
    """What the second federation reached.

    Attributes:
        test: of its version that was best on validation.
        seconds: from the start of its first process to its last round.
        folder: its run folder, inside the first one's.
    """

    plan: Plan
    view: RunView
    test: Rates
    costs: RoundCosts
    seconds: float
    folder: Path

    @property
    def row(self) -> ResultRow:
        """Its line in the table of the first federation."""
        return result_rows(self.plan, self.view)[0]

    def sentence(self, first: Plan, first_test: Rates) -> str:
        """Return how it compares with the first federation."""
        ratio = self.test.ndcg / first_test.ndcg if first_test.ndcg > 0 else float("inf")
        return (
            f"{self.plan.algorithm.name} reaches {ratio:.2f} times {first.algorithm.name}'s "
            f"NDCG@{self.plan.evaluation.at} after {self.plan.rounds.total} rounds in place of "
            f"{first.rounds.total}, in {self.seconds:.0f} s, {self.costs.up:,} bytes an upload."
        )

    def summary(self) -> dict[str, Any]:
        """Return what a program may want to read."""
        return {
            "plan": self.plan.model_dump(),
            "test": asdict(self.test),
            "costs": asdict(self.costs),
            "seconds": self.seconds,
            "folder": str(self.folder),
        }


def run_second_act(
    plan: Plan, data: DemoData, path: Path, *, n_clients: int, console: Console
) -> SecondAct:
    """Run a federation of processes on data that the first one used, with new keys.

    Args:
        path: where its run folder shall be; made here.

    Raises:
        FedrecError: when it cannot be started or fails.
    """
    path.mkdir()
    folder = RunFolder(path)
    catalogue = {"catalogue": str(path / "catalogue.csv")}
    folder.write_settings(Settings.model_validate(plan.model_dump() | {"data": catalogue}))
    folder.write_environment(provenance_of(plan, DEVICE))
    announce(
        console,
        "Second act",
        f": {plan.algorithm.name} on the same data, protection {plan.protection.name}, "
        f"{plan.rounds.total} rounds",
    )
    Learner(plan, len(data.catalogue), device=DEVICE).warm_up()
    workspace = provisioned(path, plan, data, n_clients=n_clients)
    began = time.monotonic()
    view = run_federation(workspace, folder, console)
    seconds = time.monotonic() - began
    best = view.best
    if best is None or best.test is None:
        raise TrainingError("The second run measured nothing: no user has a held-out item.")
    record_federation(
        folder,
        plan,
        view,
        n_items=len(data.catalogue),
        title="fedrec demo, second act",
        subtitle=f"{data.name}, {plan.protection.name}, {plan.rounds.total} rounds",
    )
    return SecondAct(
        plan=plan,
        view=view,
        test=best.test,
        costs=measured_costs(workspace),
        seconds=seconds,
        folder=path,
    )
