"""A federation of processes on this machine, followed to its end."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from fedrec.demo.processes import Processes
from fedrec.demo.watching import follow_run
from fedrec.demo.workspace import Workspace
from fedrec.identity.certificates import Credentials
from fedrec.reports.run_folder import RunFolder
from fedrec.reports.run_view import RunView
from fedrec.wire.admin_link import AdminLink

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
    """Start coordinator and clients, show the rounds, and return what they measured.

    Args:
        record_wire: a folder for a recording of the coordinator's traffic; None records nothing.

    Raises:
        FedrecError: when a process fails or the run cannot be followed.
    """
    plan = workspace.plan
    view = RunView(planned=plan.rounds.total + 2, at=plan.evaluation.at)
    with Processes(folder.path / "logs") as processes:
        accepted = ["--accept-exposure"] if accept_exposure else []
        recorded = [] if record_wire is None else ["--record-wire", str(record_wire)]
        processes.start(
            "coordinator", "coordinator", "run", str(workspace.coordinator_settings), *accepted,
            *recorded, talks=True,
        )  # fmt: skip
        address = processes.first_line("coordinator")["address"]
        announce(
            console,
            "Running",
            f": coordinator on {address}, {len(workspace.client_settings)} clients",
        )
        for number, settings in enumerate(workspace.client_settings, start=1):
            processes.start(
                f"client-{number}", "client", "run", str(settings), "--coordinator", address,
                "--json", *accepted,
            )  # fmt: skip
        link = AdminLink(address, Credentials.load(workspace.operator, "the demonstration"))
        try:
            follow_run(
                link,
                view,
                console,
                failures=processes.failures,
                on_round=folder.append_round,
                run_folder=folder.path,
            )
        finally:
            link.close()
        processes.wait_for("client", seconds=30.0)
    return view
