"""All parties of a set of kits in processes of this machine, followed to the run's end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fedrec.demo.processes import Processes
from fedrec.demo.watching import follow_run
from fedrec.errors import SettingsError
from fedrec.reports.round_report import RoundReport
from fedrec.reports.run_view import RunView
from fedrec.wire.admin_link import AdminLink

__all__ = ["clients_of", "run_kits"]

AUTHORITY, COORDINATOR, CLIENTS = "authority", "coordinator", "clients"
LOGS = "logs"
_LAST_SECONDS = 30.0


def clients_of(kits: Path) -> list[Path]:
    """Return the settings files of the clients' kits, by name.

    Raises:
        SettingsError: there is no complete set of kits.
    """
    found = sorted((kits / CLIENTS).glob("*/client.toml"))
    needed = (kits / COORDINATOR / "coordinator.toml", kits / AUTHORITY / "authority.pub.json")
    missing = [str(path) for path in needed if not path.exists()]
    if missing or not found:
        raise SettingsError(
            f"{kits} has no set of kits: {', '.join(missing) or 'there is no client'}.",
            remedy="Make one with `fedrec provision`, or name its folder.",
        )
    return found


def run_kits(
    kits: Path,
    view: RunView,
    console: Console,
    *,
    link_to: Callable[[str], AdminLink],
    on_round: Callable[[RoundReport], None],
    on_start: Callable[[str], None],
    accept_exposure: bool = False,
    record_wire: Path | None = None,
) -> None:
    """Start coordinator, key authority and clients, and show rounds until the run has ended.

    Whatever ends this function ends all of them; what they saved lets the next call go on.

    Args:
        link_to: opens the operators' link to an address.
        on_start: called with the coordinator's address.
        record_wire: a folder for a recording of the coordinator's traffic; None records nothing.

    Raises:
        FedrecError: when a process fails or the run cannot be followed.
    """
    clients = clients_of(kits)
    accepted = ["--accept-exposure"] if accept_exposure else []
    recorded = [] if record_wire is None else ["--record-wire", str(record_wire)]
    with Processes(kits / LOGS) as processes:
        processes.start(
            COORDINATOR, "coordinator", "run", str(kits / COORDINATOR / "coordinator.toml"),
            *accepted, *recorded, talks=True,
        )  # fmt: skip
        address = processes.first_line(COORDINATOR)["address"]
        on_start(address)
        processes.start(
            AUTHORITY, "keys", "authority", "run", address, "--into", str(kits / AUTHORITY),
            "--every-seconds", "0.5",
        )  # fmt: skip
        for settings in clients:
            processes.start(
                settings.parent.name, "client", "run", str(settings), "--coordinator", address,
                "--json", *accepted,
            )  # fmt: skip
        link = link_to(address)
        try:
            follow_run(
                link,
                view,
                console,
                failures=processes.failures,
                on_round=on_round,
                run_folder=kits,
            )
        finally:
            link.close()
        for settings in clients:
            processes.wait_for(settings.parent.name, seconds=_LAST_SECONDS)
