"""`fedrec keys authority run`: the process that delivers epochs to the coordinator.

If only the authority has the secret key, it also opens the rounds' sums.
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
from fedrec.cli.terminal import Result, print_json, printable
from fedrec_authority.cli.roster import AUTHORITY_FOLDER, KeysFolder

if TYPE_CHECKING:
    from fedrec_authority.delivery import AuthorityEvent


_printing = threading.Lock()


class LogFormat(StrEnum):
    """Formats of log lines."""

    TEXT = "text"
    JSON = "json"


app = typer.Typer(
    help="Run the key authority.",
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
    """Run the key authority."""


@app.command()
def run(
    address: Address = "",
    into: KeysFolder = AUTHORITY_FOLDER,
    every_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds between two polls.")] = 5.0,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Poll once, without opening a sum. The exit code is 3 if the coordinator doesn't "
            "answer.",
        ),
    ] = False,
    new_run: Annotated[
        bool,
        typer.Option(
            "--new-run", help="Open sums of the coordinator's current run, not of the previous one."
        ),
    ] = False,
    as_json: bool = False,
    metrics_address: Annotated[
        str,
        typer.Option(
            help="host:port of this process's Prometheus metrics, for example 127.0.0.1:9465. An "
            "address that other machines reach needs --metrics-token."
        ),
    ] = "",
    metrics_token: Annotated[
        str | None, typer.Option(help="File with the bearer token for reading the metrics.")
    ] = None,
    metrics_certificate: Annotated[
        str | None,
        typer.Option(help="Key and certificate file (PEM), to serve the metrics over TLS."),
    ] = None,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            metavar="text|json", help="Log lines as text or as JSON objects with events, on stderr."
        ),
    ] = LogFormat.TEXT,
) -> Result:
    """Deliver new epochs and list applicants until Ctrl-C, which loses no data.

    It runs on a machine that the data owners trust. It calls the coordinator and accepts no
    connections. It delivers the changes of `fedrec keys roster` and `rotate` within seconds. An
    epoch that a coordinator lost is delivered again.

    If protection.key_holder is "authority", it also opens the rounds' sums, and no round ends
    without it. It calls as an operator and as the revealer, with certificates from its folder.
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

    # Its refusals are logged, and must not appear among the objects of --json.
    in_log = log_format is LogFormat.JSON
    log_to_stderr(logging.INFO if in_log else logging.WARNING, as_json=in_log)

    if into.is_dir():
        require_writable(into, "--into")
    folder = AuthorityFolder(into)
    # Refuses a folder without an authority before the first call.
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
                    raise Unreachable(f"No answer from {address}.", remedy="Start it first.")
                if once:
                    return Result(content=())
                wait(every_seconds)
        except KeyboardInterrupt:
            return Result(content=(), again=["fedrec", *sys.argv[1:]])


def _print_json(event: AuthorityEvent) -> None:
    with _printing:
        print_json(asdict(event))


def _log(event: AuthorityEvent) -> None:
    """Write an event to the log, with its details."""
    from fedrec.telemetry import logger_of

    fields = {key: value for key, value in asdict(event).items() if value and key != "name"}
    logger_of("fedrec.authority").info(event.name, **fields)


def _print_line(event: AuthorityEvent) -> None:
    epoch = f"epoch {event.epoch}" if event.epoch else ""
    number = f"round {event.round}" if event.round else ""
    parts = (event.name, epoch, number, event.client_id, event.label, event.detail)
    line = "  ".join(part for part in parts if part)
    with _printing:
        typer.echo(f"{datetime.now().strftime('%H:%M:%S')}  {printable(line)}")
