"""A demonstration's federation of processes, followed to its end."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from fedrec_lab.demo.parties import ANY_PAGE, run_parties
from fedrec_lab.demo.workspace import Workspace
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.reports.run_view import RunView

__all__ = ["announce", "run_federation"]


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
