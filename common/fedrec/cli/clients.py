"""`fedrec clients`: what each member of a coordinator's federation does."""

from __future__ import annotations

from dataclasses import asdict

import typer

from fedrec.cli.flags import Address, OperatorFile, open_admin_link
from fedrec.cli.run_status import MEMBER_HEADERS, member_rows
from fedrec.cli.terminal import AsJson, count_of, print_json, print_table

EPILOG = (
    "Examples:\n"
    "  fedrec clients 127.0.0.1:7447\n"
    "  fedrec clients recommender.example:7447 --operator operator.pem --json"
)


def clients(
    address: Address,
    operator: OperatorFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what each client does, when it was last heard, and what was counted of it.

    Clients that are not here come first: away (it fell silent), stopped (it said goodbye), starting
    (it has joined and asked for nothing yet) and can't start. The others wait, train for the round
    in progress, or are paused with their cell.
    """
    with open_admin_link(address, operator) as link:
        found = link.status()
    if as_json:
        print_json({"now": found.now, "members": [asdict(one) for one in found.members]})
        return
    print_table(member_rows(found), headers=MEMBER_HEADERS)
    more = found.clients_in_roster - len(found.members)
    if more > 0:
        typer.echo(f"and {count_of(more, 'more client')}")
