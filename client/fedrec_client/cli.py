"""`fedrec client`: participate in a federation, and use the resulting model."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import (
    AcceptExposure,
    AcceptOtherArithmetic,
    CandidateItems,
    ExcludedItems,
    SetValues,
    items_of_flag,
    values_of,
)
from fedrec.cli.terminal import INTERRUPTED, Result, human_bytes, print_json
from fedrec.telemetry import SteadyStream, log_to_stderr

if TYPE_CHECKING:
    from fedrec.data import Catalogue
    from fedrec.follower.events import ClientEvent
    from fedrec_client.app import ClientOutcome
    from fedrec_client.own_recommender import Wanted
    from fedrec_client.serve.model_holder import ModelChange


app = typer.Typer(name="client", help="Participate in a federation.", no_args_is_help=True)

SettingsFile = Annotated[Path, typer.Argument(metavar="SETTINGS.toml", help="The settings file.")]
StateFolder = Annotated[str | None, typer.Option("--state", help="client.state: the state folder.")]
Latest = Annotated[bool, typer.Option("--latest", help="The latest model instead of the best one.")]
DataFile = Annotated[str | None, typer.Option("--data", help="data.path: the interactions.")]


@app.command()
def run(
    settings_file: SettingsFile,
    state: StateFolder = None,
    data: DataFile = None,
    new_run: Annotated[
        bool, typer.Option("--new-run", help="Replace the stored run by the coordinator's run.")
    ] = False,
    values: SetValues = None,
    give_up_after: Annotated[
        int, typer.Option(min=0, help="Failed calls in a row before giving up. If 0, no limit.")
    ] = 0,
    accept_other_arithmetic: AcceptOtherArithmetic = False,
    accept_exposure: AcceptExposure = False,
) -> Result:
    """Participate until the run is over. Ctrl-C saves and stops. Run the same command to continue.

    The state folder already has the client's keys, from `fedrec client identity`. An invited client
    (client.invitation) creates them here, applies, and waits to be admitted.

    On a machine with other rounding or other libraries, a client does not continue its run without
    --accept-other-arithmetic. Its contributions are as good, and no other party is affected, but
    their bits differ from before.
    """
    from fedrec.environment import ACCEPT_FLAG
    from fedrec.errors import PrivacyBudgetSpent
    from fedrec.extras import require
    from fedrec.follower.events import log_event
    from fedrec.follower.patient_link import Backoff, Stopped, StopSwitch
    from fedrec.monitoring import Monitored, metrics_endpoint
    from fedrec.plan.layout import protection_modules
    from fedrec.privacy import BUDGET_SPENT
    from fedrec.settings.validation import load_settings
    from fedrec_client.app import ClientApp
    from fedrec_client.metrics import ClientMetrics
    from fedrec_client.own_recommender import uninformed

    log_to_stderr(logging.WARNING)
    settings = load_settings(
        settings_file, {"client.state": state, "data.path": data, **values_of(values)}
    )
    require("torch", *protection_modules(settings.plan))
    own = settings.client
    if own.log_format == "json":
        log_to_stderr(logging.INFO, as_json=True)
    show = log_event if own.log_format == "json" else _show
    metrics = ClientMetrics(Path(own.state))
    where = Monitored.of(
        own.metrics_address, own.metrics_token, own.metrics_certificate, section="client"
    )

    def on_event(event: ClientEvent) -> None:
        metrics.take(event)
        show(event)

    stop = StopSwitch()
    client = ClientApp(
        settings,
        on_event=on_event,
        backoff=Backoff(stop, maximum_attempts=give_up_after),
        accept_exposure=accept_exposure,
        accept_other_arithmetic=accept_other_arithmetic,
    )
    try:
        with metrics_endpoint(metrics.registry, where) or nullcontext(), stop.on_signals():
            outcome = client.run(new_run=new_run)
    except (Stopped, KeyboardInterrupt):
        # Consent to leave one run, or to accept one machine, doesn't cover the next one.
        used = {ACCEPT_FLAG} | (set() if client.wants_new_run else {"--new-run"})
        again = ["fedrec", *(word for word in sys.argv[1:] if word not in used)]
        return Result(content=(), again=again)
    spent = outcome.reason.startswith(BUDGET_SPENT)
    return Result(
        content=asdict(outcome),
        text=(f"{outcome.reason}: version {outcome.version}{_best(outcome)}",),
        failure=None if outcome.failed or not outcome.version else uninformed(settings),
        exit_code=PrivacyBudgetSpent.exit_code if spent else int(outcome.failed),
    )


def _best(outcome: ClientOutcome) -> str:
    """Return the version that recommends from now on, and its rates, by name."""
    named = {"validation": outcome.validation, "test": outcome.test}
    rates = [
        f"{split} HR@{outcome.at} {found.hr:.4f} NDCG@{outcome.at} {found.ndcg:.4f}"
        for split, found in named.items()
        if found is not None
    ]
    if not rates:
        return ""
    return (
        f". Best on validation is version {outcome.best_round}: {', '.join(rates)} (protocol "
        f"{outcome.protocol})"
    )


def wanted_of(
    catalogue: Catalogue,
    n: int,
    include_seen: bool,
    exclude: list[str] | None,
    candidates: list[str] | None,
) -> Wanted:
    """Return the items that a command's options ask for.

    Raises:
        DataError: an unknown item, or a file that cannot be read.
    """
    from fedrec_client.own_recommender import Wanted

    chosen = None
    if candidates is not None:
        chosen = items_of_flag("--candidates", candidates, catalogue)
    return Wanted(
        n=n,
        exclude_seen=not include_seen,
        exclude=items_of_flag("--exclude", exclude or (), catalogue),
        candidates=chosen,
    )


@app.command()
def export(
    settings_file: SettingsFile,
    to: Annotated[Path, typer.Option(metavar="FILE", help="FILE.parquet or FILE.csv to write.")],
    n: Annotated[int, typer.Option("-n", min=1, help="Number of items for each user.")] = 100,
    latest: Latest = False,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Include items that users already have.")
    ] = False,
    exclude: ExcludedItems = None,
    candidates: CandidateItems = None,
    state: StateFolder = None,
    data: DataFile = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> Result:
    """Write recommendations for all of this client's users as a table, readable by its owner only.

    Each row is an item for a user: user_id, rank, item_id, title, score and the model's version.
    The file reveals users' interests. Its owner decides on further access.
    """
    from fedrec.settings.validation import load_settings
    from fedrec_client.own_recommender import check_table, export_recommendations, own_recommender

    log_to_stderr(logging.WARNING)
    settings = load_settings(settings_file, {"client.state": state, "data.path": data})
    check_table(to, force=force)
    own = own_recommender(settings, "latest" if latest else "best")
    wanted = wanted_of(own.catalogue, n, include_seen, exclude, candidates)
    found = export_recommendations(own, to, wanted, force=force)
    counts = f"Version {found.version}: {found.n_rows} recommendations to {found.n_users} users. "
    return Result(
        content=asdict(found) | {"file": str(found.file)},
        text=(f"{counts}Readable by its owner only.", str(found.file)),
    )


@app.command("export-model")
def export_model(
    settings_file: SettingsFile,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="A run's folder, or a new one.")],
    latest: Latest = False,
    state: StateFolder = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model.")] = False,
) -> Result:
    """Write the shared model and the catalogue, for `fedrec recommend` and for Python.

    The file holds the result of the members' sums: item rows, the counts of their holders and the
    plan. Users' own vectors stay here. Under encryption the coordinator never had the model: give
    the file only to parties that may read it.
    """
    from fedrec.settings.validation import load_settings
    from fedrec_client.own_recommender import export_model as export

    log_to_stderr(logging.WARNING)
    settings = load_settings(settings_file, {"client.state": state})
    found = export(settings, to, which="latest" if latest else "best", force=force)
    hidden = "The coordinator could never read it. Share it only with parties that may."
    return Result(
        content=asdict(found) | {"model": str(found.model), "catalogue": str(found.catalogue)},
        text=(
            f"Version {found.version} of the shared model. It contains no user's vector.",
            *((hidden,) if found.was_hidden else ()),
            str(found.model),
        ),
    )


@app.command()
def identity(settings_file: SettingsFile, state: StateFolder = None) -> Result:
    """Create this client's keys in an empty or new folder. Show the file for the key authority."""
    from fedrec.identity.identity import PUBLIC_FILE, new_or_known_identity
    from fedrec.settings.validation import load_settings

    settings = load_settings(settings_file, {"client.state": state})
    folder = Path(settings.client.state)
    found = new_or_known_identity(folder, settings.client.label)
    public = folder / PUBLIC_FILE
    return Result(
        content={"client_id": found.client_id, "public_identity": str(public)},
        text=(
            f"client id   {found.client_id}",
            f"give this   {public}",
            "to the key authority. It lists the client in the federation's roster.",
        ),
    )


@app.command()
def leave(settings_file: SettingsFile, state: StateFolder = None) -> Result:
    """Leave the federation permanently. This can't be undone.

    The client signs that it may be missing from sums, and the key authority makes the roster with
    this change. The other clients continue without it if enough are left. Its contribution may then
    become computable from two sums, one with it and one without. A running client still
    participates. Stop it to contribute nothing more.
    """
    from fedrec.settings.validation import load_settings
    from fedrec_client.joining import leave as hand_in

    log_to_stderr(logging.WARNING)
    found = hand_in(load_settings(settings_file, {"client.state": state}))
    waiting = (
        f"{found.others} of the clients with which it was summed are left, but {found.needed} are "
        f"needed. They wait until {found.needed} more have joined. Otherwise begin a new "
        "federation (`fedrec provision`)."
    )
    return Result(
        content=asdict(found),
        text=(
            f"Submitted: rounds will continue without {found.client_id}.",
            "The key authority applies this when it next checks.",
            *(() if found.others_go_on else (waiting,)),
        ),
    )


def _show(event: ClientEvent) -> None:
    """Print one line for an event on stderr."""
    time = f"{datetime.now():%H:%M:%S}"
    parts = [
        time,
        f"round {event.round}" if event.round is not None else "",
        event.name,
        event.detail,
    ]
    if event.seconds:
        parts.append(f"{event.seconds:.2f} s")
    if event.name in ("published", "abandoned"):
        parts += [f"{human_bytes(event.bytes_up)} up", f"{human_bytes(event.bytes_down)} down"]
    print("  ".join(part for part in parts if part), file=SteadyStream(sys.stderr), flush=True)


_SERVE_EPILOG = (
    "Examples:\n"
    "  fedrec client serve client.toml\n"
    "  curl 'http://127.0.0.1:7480/v1/recommend?user=196&n=5'\n"
    "  curl 'http://127.0.0.1:7480/v1/similar?item=50'"
)


@app.command(epilog=_SERVE_EPILOG)
def serve(
    settings_file: SettingsFile,
    host: Annotated[
        str, typer.Option(help="The address to serve. Any but loopback needs more options.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on. If 0, uses a free port.")
    ] = 7480,
    latest: Latest = False,
    state: StateFolder = None,
    data: DataFile = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that every request must carry.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Serve TLS with this certificate and its chain (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key.")] = None,
    accept_plaintext: Annotated[
        bool,
        typer.Option(
            "--accept-plaintext",
            help="Serve another address without TLS, because another service encrypts.",
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A host name that requests may use. Repeatable."),
    ] = None,
    access_log: Annotated[
        bool,
        typer.Option(
            "--access-log",
            help="Log a line for each request: method, path, status and time, never an id.",
        ),
    ] = False,
) -> Result:
    """Answer requests for recommendations over HTTP, on this machine only.

    The first line on stdout is a JSON object with the address. /docs there describes the requests.
    A version that `fedrec client run` publishes is used within a second, without interruption. If
    there is no version yet, the service reports that and waits. It works while the client runs,
    after it, and without the coordinator, and changes nothing in the state folder.

    Ctrl-C and SIGHUP exit with 130, SIGTERM with 0.
    """
    # Several threads slow down small products, and other processes. Set before numpy is imported.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    from fedrec.errors import SettingsError
    from fedrec.listening import plain_host
    from fedrec.settings.validation import load_settings
    from fedrec_client.serve.model_holder import ModelHolder, log_change
    from fedrec_client.serve.server import ServingOptions
    from fedrec_client.serve.server import serve as serve_until_stopped

    log_to_stderr()
    show = _show_change
    settings = load_settings(settings_file, {"client.state": state, "data.path": data})
    if settings.client.log_format == "json":
        log_to_stderr(logging.INFO, as_json=True)
        show = log_change
    if settings.data.path is None:
        raise SettingsError(
            "data.path is missing. It names the items that users already have.",
            remedy="Set data.path in the settings, or give --data.",
        )
    place = ServingOptions(
        host=plain_host(host, "--host"),
        port=port,
        token_file=token_file,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        accept_plaintext=accept_plaintext,
        access_log=access_log,
        names=tuple(plain_host(name, "--allow-host") for name in allow_host or ()),
    )
    holder = ModelHolder(settings, "latest" if latest else "best", on_change=show)
    interrupted = serve_until_stopped(
        place, holder, lambda address: print_json({"address": address})
    )
    return Result(
        content={"ending": "interrupted" if interrupted else "terminated"},
        exit_code=INTERRUPTED if interrupted else 0,
    )


def _show_change(change: ModelChange) -> None:
    """Print one line on stderr about a change of the model."""
    line = f"{datetime.now():%H:%M:%S}  {change}"
    print(line, file=SteadyStream(sys.stderr), flush=True)
