"""`fedrec status`: how far a coordinator is."""

from __future__ import annotations

from dataclasses import asdict

from fedrec.cli.flags import Address, OperatorFile, open_admin_link
from fedrec.cli.run_status import status_rows
from fedrec.cli.terminal import AsJson, print_json, print_table

EPILOG = (
    "Examples:\n"
    "  fedrec status 127.0.0.1:7447\n"
    "  fedrec status recommender.example:7447 --operator operator.pem --json"
)


def status(
    address: Address,
    operator: OperatorFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the round in progress, how many are published, and how many clients are here."""
    with open_admin_link(address, operator) as link:
        found = link.status()
    if as_json:
        print_json(asdict(found))
        return
    print_table(status_rows(found))
