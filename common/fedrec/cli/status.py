"""`fedrec status`: how far a coordinator is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from fedrec.cli.operator_options import (
    Address,
    Plaintext,
    RootCertificate,
    TokenFile,
    open_admin_link,
)
from fedrec.cli.terminal import AsJson, human_bytes, print_json, print_table

if TYPE_CHECKING:
    from fedrec.cli.admin_link import RunStatus

__all__ = ["EPILOG", "status", "status_rows"]

EPILOG = (
    "Examples:\n"
    "  fedrec status 127.0.0.1:7447 --plaintext\n"
    "  fedrec status recommender.example:7447 --token-file operators.token --json"
)


def status(
    address: Address,
    token_file: TokenFile = None,
    root_certificate: RootCertificate = None,
    plaintext: Plaintext = False,
    as_json: AsJson = False,
) -> None:
    """Show the round in progress, how many are published, and who was seen."""
    with open_admin_link(address, token_file, root_certificate, plaintext) as link:
        found = link.status()
    if as_json:
        print_json(asdict(found))
        return
    print_table(status_rows(found))


def status_rows(found: RunStatus) -> list[tuple[str, str]]:
    """Return a run's status as rows for people."""
    rows = [
        ("federation", f"{found.federation}, run {found.run}, protection {found.protection}"),
        ("rounds", f"{found.rounds_published} of {found.rounds_planned} published"),
        ("abandoned", str(found.rounds_abandoned)),
        ("clients", f"{found.clients_seen} seen of {found.clients_in_roster} in the roster"),
    ]
    if found.finished:
        return [*rows, ("finished", found.finish_reason or "yes")]
    current = found.current
    if current is None:
        return [*rows, ("now", "waiting for clients")]
    rows.append(("now", f"round {current.round} ({current.kind}), {current.phase}"))
    arrived = f"{current.arrived} of {current.expected} updates"
    rows.append(("arrived", f"{arrived}, {human_bytes(current.bytes_received)}"))
    if current.seconds_left:
        rows.append(("closes in", f"{current.seconds_left:.0f} s at the latest"))
    return rows
