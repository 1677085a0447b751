"""`fedrec stop`: ending a coordinator's run."""

from __future__ import annotations

from typing import Annotated

import typer

from fedrec.cli.flags import Address, OperatorFile, open_admin_link
from fedrec.cli.terminal import AsJson, print_json, printable

EPILOG = (
    "Examples:\n"
    "  fedrec stop 127.0.0.1:7447\n"
    "  fedrec stop recommender.example:7447 --operator operator.pem --now"
)


def stop(
    address: Address,
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait for the round in progress.")
    ] = False,
    operator: OperatorFile = None,
    as_json: AsJson = False,
) -> None:
    """End the run after the round in progress; what was published stays."""
    with open_admin_link(address, operator) as link:
        message = str(printable(link.stop_run(now=now)))
    if as_json:
        print_json({"message": message})
        return
    typer.echo(message)
