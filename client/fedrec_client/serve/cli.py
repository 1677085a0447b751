"""The command `fedrec client serve`."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.data_options import DataFlags, takes_client_data_flags
from fedrec.cli.terminal import INTERRUPTED
from fedrec.telemetry import SteadyStream, log_to_stderr

if TYPE_CHECKING:
    from fedrec_client.serve.model_holder import ModelChange


EPILOG = (
    "Examples:\n"
    "  fedrec client serve client.toml\n"
    "  curl 'http://127.0.0.1:7480/v1/recommend?user=196&n=5'\n"
    "  curl 'http://127.0.0.1:7480/v1/similar?item=50'"
)


@takes_client_data_flags
def serve(
    settings_file: Annotated[
        Path, typer.Argument(metavar="SETTINGS.toml", help="The settings file.")
    ],
    host: Annotated[
        str,
        typer.Option(
            help="Address to serve. Any other than this machine's own needs further options."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port. 0 takes a free one.")] = 7480,
    latest: Annotated[
        bool, typer.Option("--latest", help="Serve the latest model instead of the best one.")
    ] = False,
    state: Annotated[
        str | None, typer.Option("--state", help="client.state: the state folder.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="data.path: the interactions.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that every request must carry.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="TLS certificate with its chain (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key.")] = None,
    accept_plaintext: Annotated[
        bool,
        typer.Option(
            "--accept-plaintext",
            help="Serve other machines without TLS, because something else encrypts.",
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A host name to which requests may be addressed. Repeatable."),
    ] = None,
    *,
    reading: DataFlags,
) -> None:
    """Serve recommendations over HTTP, on this machine alone.

    The first line on stdout is a JSON object with the address, where /docs describes the requests.
    A version that `fedrec client run` publishes is loaded within a second, without interrupting
    service. Without a version, the command reports that and waits. It works next to a running
    client, after it, and without the coordinator, and changes nothing in the state folder.

    Ctrl-C and SIGHUP exit with 130, SIGTERM with 0.
    """
    # Small products on several threads take longer, and other processes' time. Set before numpy is
    # imported.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    from fedrec.errors import SettingsError
    from fedrec.listening import plain_host
    from fedrec.settings.validation import load_settings
    from fedrec_client.serve.model_holder import ModelHolder, log_change
    from fedrec_client.serve.server import ServingOptions
    from fedrec_client.serve.server import serve as serve_until_stopped

    log_to_stderr()
    show = _show
    given = {f"data.{name}": value for name, value in reading.items()}
    settings = load_settings(settings_file, {"client.state": state, "data.path": data, **given})
    if settings.client.log_format == "json":
        log_to_stderr(logging.INFO, as_json=True)
        show = log_change
    if settings.data.path is None:
        raise SettingsError(
            "data.path is missing: users' histories are in the data.",
            remedy="Set data.path in the settings, or give --data.",
        )
    place = ServingOptions(
        host=plain_host(host, "--host"),
        port=port,
        token_file=token_file,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        accept_plaintext=accept_plaintext,
        names=tuple(plain_host(name, "--allow-host") for name in allow_host or ()),
    )
    holder = ModelHolder(settings, "latest" if latest else "best", on_change=show)
    interrupted = serve_until_stopped(
        place, holder, lambda address: print(json.dumps({"address": address}), flush=True)
    )
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _show(change: ModelChange) -> None:
    """Print a line about a change of the model on stderr."""
    line = f"{datetime.now():%H:%M:%S}  {change}"
    print(line, file=SteadyStream(sys.stderr), flush=True)
