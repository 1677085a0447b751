"""`fedrec keys authority run`: the process that brings epochs to the coordinator.

Where the authority alone holds the secret key it opens the rounds' sums, too.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import Address, open_admin_link
from fedrec.cli.terminal import print_json, printable, stopped
from fedrec_authority.cli.roster import AUTHORITY_FOLDER, KeysFolder

if TYPE_CHECKING:
    from fedrec_authority.delivery import AuthorityEvent


_printing = threading.Lock()


class LogFormat(StrEnum):
    """How lines of the log are written."""

    TEXT = "text"
    JSON = "json"


app = typer.Typer(
    help="The key authority as a process of its own.",
    no_args_is_help=True,
    add_completion=False,
    epilog=(
        "Examples:\n"
        "  fedrec keys authority run recommender.example:7447\n"
        "  fedrec keys authority run 127.0.0.1:7447 --into keys --once --json"
    ),
)


@app.callback()
def authority() -> None:
    """The key authority as a process of its own."""


@app.command()
def run(
    address: Address,
    into: KeysFolder = AUTHORITY_FOLDER,
    every_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 5.0,
    once: Annotated[
        bool,
        typer.Option("--once", help="Look once; exit with 3 if nobody answers. Opens no sum."),
    ] = False,
    new_run: Annotated[
        bool,
        typer.Option(
            "--new-run", help="Open the sums of the coordinator's run, and of the last no more."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, one for each event.")
    ] = False,
    metrics_address: Annotated[
        str,
        typer.Option(
            help="host:port at which Prometheus reads this process's numbers, as in "
            "127.0.0.1:9465. An address that other machines reach needs --metrics-token."
        ),
    ] = "",
    metrics_token: Annotated[
        str | None, typer.Option(help="A file with the bearer token that a reader has to show.")
    ] = None,
    metrics_certificate: Annotated[
        str | None,
        typer.Option(help="A key and its certificate (PEM), with which numbers go over TLS."),
    ] = None,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            metavar="text|json",
            help="Lines of the log for people, or JSON objects, events included, on stderr.",
        ),
    ] = LogFormat.TEXT,
) -> None:
    """Deliver new epochs and list applicants until Ctrl-C, which loses nothing.

    It runs where the data owners trust the machine and calls the coordinator; nobody calls it.
    Changes that `fedrec keys roster` and `rotate` make beside it are delivered within seconds. An
    epoch that a coordinator lost is delivered again.

    Where protection.key_holder is "authority" it also opens the rounds' sums, and no round goes on
    without it. It calls as an operator and as the revealer, with certificates of its folder.
    """
    from fedrec.durable import require_writable
    from fedrec.errors import Unreachable
    from fedrec.monitoring import Monitored, metrics_endpoint
    from fedrec.telemetry import log_to_stderr
    from fedrec.wire.grpc_link import GrpcLink
    from fedrec_authority.delivery import Delivery
    from fedrec_authority.folder.authority_folder import AuthorityFolder
    from fedrec_authority.folder.folder_changes import running
    from fedrec_authority.metrics import AuthorityMetrics
    from fedrec_authority.opening.revealer import Revealer

    # What it refuses is logged, and must not stand among the objects of --json.
    in_log = log_format is LogFormat.JSON
    log_to_stderr(logging.INFO if in_log else logging.WARNING, as_json=in_log)

    if into.is_dir():
        require_writable(into, "--into")
    folder = AuthorityFolder(into)
    # Refuses a folder without an authority before anything is sent.
    reveals = folder.reveals and not once
    shown = [show for show, wanted in ((_print_json, as_json), (_log, in_log)) if wanted]
    metrics = AuthorityMetrics(into)
    where = Monitored(
        address=metrics_address,
        token=metrics_token,
        certificate=metrics_certificate,
        names=("--metrics-address", "--metrics-token", "--metrics-certificate"),
    )

    def tell(event: AuthorityEvent) -> None:
        metrics.take(event)
        for show in shown or (_print_line,):
            show(event)

    with ExitStack() as stack:
        stack.enter_context(running(folder))
        stack.enter_context(metrics_endpoint(metrics.registry, where) or nullcontext())
        wait: Callable[[float], None] = time.sleep
        if reveals:
            calling = GrpcLink(address, folder.revealer_credentials())
            revealer = Revealer(folder, calling, tell, new_run=new_run)
            stack.enter_context(closing(revealer))
            revealer.start()
            wait = revealer.wait
        link = stack.enter_context(open_admin_link(address, folder.operators.own))
        delivery = Delivery(folder, link, tell)
        try:
            while True:
                answered = delivery.look()
                if once and not answered:
                    raise Unreachable(f"Nobody answers at {address}.", remedy="Start it first.")
                if once:
                    return
                wait(every_seconds)
        except KeyboardInterrupt:
            raise stopped(["fedrec", *sys.argv[1:]]) from None


def _print_json(event: AuthorityEvent) -> None:
    with _printing:
        print_json(asdict(event))
        sys.stdout.flush()


def _log(event: AuthorityEvent) -> None:
    """Write an event to the log, with what there is to say of it."""
    from fedrec.telemetry import logger_of

    said = {key: value for key, value in asdict(event).items() if value and key != "name"}
    logger_of("fedrec.authority").info(event.name, **said)


def _print_line(event: AuthorityEvent) -> None:
    epoch = f"epoch {event.epoch}" if event.epoch else ""
    number = f"round {event.round}" if event.round else ""
    parts = (event.name, epoch, number, event.client_id, event.label, event.detail)
    line = "  ".join(part for part in parts if part)
    with _printing:
        typer.echo(f"{datetime.now().strftime('%H:%M:%S')}  {printable(line)}")
        sys.stdout.flush()
