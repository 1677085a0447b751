"""`fedrec status`: how far a coordinator is."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict

from fedrec.cli.operator_options import (
    Address,
    Plaintext,
    RootCertificate,
    TokenFile,
    open_admin_link,
)
from fedrec.cli.run_status import status_rows
from fedrec.cli.terminal import AsJson, print_json, print_table

__all__ = ["EPILOG", "status"]

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
    with closing(open_admin_link(address, token_file, root_certificate, plaintext)) as link:
        found = link.status()
    if as_json:
        print_json(asdict(found))
        return
    print_table(status_rows(found))
