"""`fedrec stop`: ending a coordinator's run."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from fedrec.cli.operator_options import (
    Address,
    Plaintext,
    RootCertificate,
    TokenFile,
    open_admin_link,
)
from fedrec.cli.terminal import AsJson, print_json, printable

__all__ = ["EPILOG", "stop"]

EPILOG = (
    "Examples:\n"
    "  fedrec stop 127.0.0.1:7447 --plaintext\n"
    "  fedrec stop recommender.example:7447 --token-file operators.token --now"
)


def stop(
    address: Address,
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait for the round in progress.")
    ] = False,
    token_file: TokenFile = None,
    root_certificate: RootCertificate = None,
    plaintext: Plaintext = False,
    as_json: AsJson = False,
) -> None:
    """End the run after the round in progress; what was published stays."""
    with closing(open_admin_link(address, token_file, root_certificate, plaintext)) as link:
        message = str(printable(link.stop_run(now=now)))
    if as_json:
        print_json({"message": message})
        return
    typer.echo(message)
