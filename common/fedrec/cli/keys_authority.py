"""`fedrec keys authority run`: the process that brings epochs to the coordinator."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.keys_roster import KeysFolder
from fedrec.cli.operator_options import (
    Address,
    Plaintext,
    RootCertificate,
    TokenFile,
    open_admin_link,
)
from fedrec.cli.terminal import print_json, printable

if TYPE_CHECKING:
    from fedrec.authority.delivery import AuthorityEvent

__all__ = ["app"]

app = typer.Typer(
    help="The key authority as a process of its own.",
    no_args_is_help=True,
    add_completion=False,
    epilog=(
        "Examples:\n"
        "  fedrec keys authority run recommender.example:7447 --token-file operators.token\n"
        "  fedrec keys authority run 127.0.0.1:7447 --plaintext --once --json"
    ),
)


@app.callback()
def authority() -> None:
    """The key authority as a process of its own."""


@app.command()
def run(
    address: Address,
    into: KeysFolder = Path("keys"),
    token_file: TokenFile = None,
    root_certificate: RootCertificate = None,
    plaintext: Plaintext = False,
    every_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 5.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look once; exit with 3 if nobody answers.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, one for each event.")
    ] = False,
) -> None:
    """Deliver new epochs and list applicants until Ctrl-C, which loses nothing.

    It runs where the data owners trust the machine and calls the coordinator; nobody calls it.
    Changes that `fedrec keys roster` and `rotate` make beside it are delivered within seconds. An
    epoch that a coordinator lost is delivered again.
    """
    from fedrec.authority.delivery import Delivery
    from fedrec.authority.folder import AuthorityFolder
    from fedrec.errors import Unreachable

    folder = AuthorityFolder(into)
    # Refuses a folder without an authority before anything is sent.
    _ = folder.membership
    with closing(open_admin_link(address, token_file, root_certificate, plaintext)) as link:
        delivery = Delivery(folder, link, _print_json if as_json else _print_line)
        try:
            while True:
                answered = delivery.look()
                if once and not answered:
                    raise Unreachable(f"Nobody answers at {address}.", remedy="Start it first.")
                if once:
                    return
                time.sleep(every_seconds)
        except KeyboardInterrupt:
            if not as_json:
                typer.echo("Stopped; the folder is complete at every moment.", err=True)
            raise


def _print_json(event: AuthorityEvent) -> None:
    print_json(asdict(event))
    sys.stdout.flush()


def _print_line(event: AuthorityEvent) -> None:
    epoch = f"epoch {event.epoch}" if event.epoch else ""
    parts = (event.name, epoch, event.client_id, event.label, event.detail)
    line = "  ".join(part for part in parts if part)
    typer.echo(f"{datetime.now().strftime('%H:%M:%S')}  {printable(line)}")
    sys.stdout.flush()
