"""All parties of a federation in processes of this machine, followed to the run's end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rich.console import Console

from fedrec.errors import SettingsError
from fedrec.identity.certificates import Credentials
from fedrec.listening import reached_from_here, split_address, written_address
from fedrec.wire.admin_link import AdminLink
from fedrec_lab.demo.processes import Processes
from fedrec_lab.demo.watching import follow_run
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_view import RunView

__all__ = ["ANY_PAGE", "PAGE_NEEDS", "PARTIES_NEED", "Parties", "run_parties"]

AUTHORITY, COORDINATOR, CLIENTS = "authority", "coordinator", "clients"
_LAST_SECONDS = 30.0
PARTIES_NEED = ("torch", "grpc_health")
PAGE_NEEDS = ("starlette", "uvicorn")
ANY_PAGE = "127.0.0.1:0"
"""For a trial: on this machine alone, on whichever port is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """Where everybody's files are.

    Attributes:
        coordinator: its settings file.
        authority: the key authority's folder.
        clients: the clients' settings files; their folders' names are theirs.
    """

    coordinator: Path
    authority: Path
    clients: tuple[Path, ...]

    @classmethod
    def of_kits(cls, kits: Path) -> Self:
        """Return the parties of what `fedrec provision` made.

        Raises:
            SettingsError: there is no complete set of kits.
        """
        found = cls(
            coordinator=kits / COORDINATOR / "coordinator.toml",
            authority=kits / AUTHORITY,
            clients=tuple(sorted((kits / CLIENTS).glob("*/client.toml"))),
        )
        needed = (found.coordinator, found.operator)
        missing = [str(path) for path in needed if not path.exists()]
        if missing or not found.clients:
            raise SettingsError(
                f"{kits} is no complete set of kits: "
                f"{', '.join(missing) or f'no client in {kits / CLIENTS}'} is missing.",
                remedy="Make one with `fedrec provision`, or name its folder.",
            )
        return found

    @property
    def operator(self) -> Path:
        """What opens the operators' service."""
        return self.authority / "operator.pem"


def run_parties(
    parties: Parties,
    logs: Path,
    view: RunView,
    console: Console,
    *,
    on_start: Callable[[str, str], None],
    on_round: Callable[[RoundReport], None] = lambda report: None,
    accept_exposure: bool = False,
    record_wire: Path | None = None,
    page: str | None = None,
) -> None:
    """Start coordinator, key authority and clients, and show rounds until the run has ended.

    Whatever ends this function ends all of them; what they saved lets the next call go on.

    Args:
        logs: folder of their logs.
        on_start: called with the coordinator's address and that of its page, maybe empty.
        record_wire: a folder for a recording of the coordinator's traffic; None records nothing.
        page: where a browser may look, as host:port; None leaves it to the coordinator's settings.

    Raises:
        FedrecError: when a process fails or the run cannot be followed.
    """
    accepted = ["--accept-exposure"] if accept_exposure else []
    recorded = [] if record_wire is None else ["--record-wire", str(record_wire)]
    shown = [] if page is None else ["--page", page]
    with Processes(logs) as processes:
        processes.start(
            COORDINATOR, "coordinator", "run", str(parties.coordinator), *accepted, *recorded,
            *shown, talks=True,
        )  # fmt: skip
        started = processes.first_line(COORDINATOR)
        host, port = split_address(started["address"])
        address = written_address(reached_from_here(host), port)
        on_start(address, started.get("page", ""))
        processes.start(
            AUTHORITY, "keys", "authority", "run", address, "--into", str(parties.authority),
            "--every-seconds", "0.5",
        )  # fmt: skip
        for settings in parties.clients:
            processes.start(
                settings.parent.name, "client", "run", str(settings), "--coordinator", address,
                "--json", *accepted,
            )  # fmt: skip
        link = AdminLink(address, Credentials.load(parties.operator, "the operator's file"))
        try:
            follow_run(
                link,
                view,
                console,
                failures=processes.failures,
                on_round=on_round,
                logs=logs,
            )
        finally:
            link.close()
        for settings in parties.clients:
            processes.wait_for(settings.parent.name, seconds=_LAST_SECONDS)
