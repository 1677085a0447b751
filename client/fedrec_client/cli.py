"""`fedrec client`: taking part in a federation, and using what came of it."""

from __future__ import annotations

import json
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
    values_of,
)
from fedrec.cli.terminal import INTERRUPTED, Result, human_bytes, stopped
from fedrec.telemetry import SteadyStream, log_to_stderr

if TYPE_CHECKING:
    from fedrec.follower.events import ClientEvent
    from fedrec_client.app import ClientOutcome
    from fedrec_client.serve.model_holder import ModelChange
    from fedrec_client.state.held_model import Which


app = typer.Typer(name="client", help="Take part in a federation.", no_args_is_help=True)

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
        bool, typer.Option("--new-run", help="Leave the stored run for the coordinator's.")
    ] = False,
    values: SetValues = None,
    give_up_after: Annotated[
        int, typer.Option(min=0, help="Give up after so many failed calls in a row; 0 never.")
    ] = 0,
    accept_other_arithmetic: AcceptOtherArithmetic = False,
    accept_exposure: AcceptExposure = False,
) -> Result:
    """Take part until the run is over; Ctrl-C saves and stops, and the same command goes on.

    The state folder has the client's keys already: `fedrec client identity` makes them. Who was
    invited (client.invitation) makes them here, applies, and waits to be admitted.

    On a machine that rounds otherwise, or with other libraries, a client does not go on with a run
    that it is in, unless --accept-other-arithmetic is given: what it contributes is as good, and
    concerns no other party, but not the bits that it would have been before.
    """
    from fedrec.environment import ACCEPT_FLAG
    from fedrec.errors import PrivacyBudgetSpent
    from fedrec.extras import require
    from fedrec.follower.events import log_event
    from fedrec.follower.patient_link import Backoff, Stopped, StopSwitch
    from fedrec.monitoring import Monitored, metrics_endpoint
    from fedrec.plan.layout import protection_modules, training_modules
    from fedrec.privacy import BUDGET_SPENT
    from fedrec.settings.validation import load_settings
    from fedrec_client.app import ClientApp
    from fedrec_client.metrics import ClientMetrics

    log_to_stderr(logging.WARNING)
    settings = load_settings(
        settings_file, {"client.state": state, "data.path": data, **values_of(values)}
    )
    require(*training_modules(settings.plan), *protection_modules(settings.plan))
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
        # A user who left one run for another did not agree to leave the next one, too; nor does who
        # accepted one machine accept the next.
        used = {ACCEPT_FLAG} | (set() if client.wants_new_run else {"--new-run"})
        raise stopped(["fedrec", *(word for word in sys.argv[1:] if word not in used)]) from None
    spent = outcome.reason.startswith(BUDGET_SPENT)
    return Result(
        content=asdict(outcome),
        text=(f"{outcome.reason}: version {outcome.version}{_best(outcome)}",),
        exit_code=PrivacyBudgetSpent.exit_code if spent else int(outcome.failed),
    )


def _best(outcome: ClientOutcome) -> str:
    """Return the version that recommends from here on, and what it reached, by name."""
    named = {"validation": outcome.validation, "test": outcome.test}
    rates = [
        f"{split} HR@{outcome.at} {found.hr:.4f} NDCG@{outcome.at} {found.ndcg:.4f}"
        for split, found in named.items()
        if found is not None
    ]
    if not rates:
        return ""
    return (
        f"; best on validation is version {outcome.best_round}: {', '.join(rates)} "
        f"(protocol {outcome.protocol})"
    )


@app.command()
def export(
    settings_file: SettingsFile,
    to: Annotated[Path, typer.Option(metavar="FILE", help="FILE.parquet or FILE.csv, to write.")],
    n: Annotated[int, typer.Option("-n", min=1, help="How many items for each user.")] = 100,
    latest: Latest = False,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also what users have already.")
    ] = False,
    exclude: ExcludedItems = None,
    candidates: CandidateItems = None,
    state: StateFolder = None,
    data: DataFile = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> Result:
    """Write what all of this client's users are recommended, as a table for its owner alone.

    A row is a user's item: user_id, rank, item_id, title, score and the model's version. The file
    says what people like; who may read it is for its owner to say.
    """
    from fedrec.settings.validation import load_settings
    from fedrec_client.recommending import Wanted, export_recommendations

    log_to_stderr(logging.WARNING)
    settings = load_settings(settings_file, {"client.state": state, "data.path": data})
    wanted = Wanted(n=n, exclude_seen=not include_seen, exclude=exclude, candidates=candidates)
    which: Which = "latest" if latest else "best"
    found = export_recommendations(settings, to, wanted, which=which, force=force)
    said = f"Version {found.version}: {found.n_rows} recommendations to {found.n_users} users; "
    return Result(
        content=asdict(found) | {"file": str(found.file)},
        text=(f"{said}readable by its owner only.", str(found.file)),
    )


@app.command("export-model")
def export_model(
    settings_file: SettingsFile,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="A run's folder, or a new one.")],
    latest: Latest = False,
    state: StateFolder = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there.")] = False,
) -> Result:
    """Write the shared model and the catalogue, for `fedrec recommend` and for Python.

    It holds what the members' sums made: item rows, the counts of their holders and the plan.
    Users' own vectors stay here. Under encryption the coordinator never had the model; give the
    file only to those who may read it.
    """
    from fedrec.settings.validation import load_settings
    from fedrec_client.recommending import export_model as export

    log_to_stderr(logging.WARNING)
    settings = load_settings(settings_file, {"client.state": state})
    found = export(settings, to, which="latest" if latest else "best", force=force)
    hidden = "The coordinator could never read it: give it only to those who may."
    return Result(
        content=asdict(found) | {"model": str(found.model), "catalogue": str(found.catalogue)},
        text=(
            f"Version {found.version} of the shared model; no user's vector is in it.",
            *((hidden,) if found.was_hidden else ()),
            str(found.model),
        ),
    )


@app.command()
def identity(settings_file: SettingsFile, state: StateFolder = None) -> Result:
    """Make this client's keys in an empty or new folder, and show what the key authority needs."""
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
            "to the key authority, which lists it in the federation's roster.",
        ),
    )


@app.command()
def leave(settings_file: SettingsFile, state: StateFolder = None) -> Result:
    """Have rounds wait for this client no more, for good: there is no way back.

    It signs that it may be missing, and the key authority makes the roster that says so. The others
    go on without it, if they are enough. What this client contributed may then become computable
    from two sums, one with it and one without. While it runs it still takes part; stop it to
    contribute nothing more.
    """
    from fedrec.settings.validation import load_settings
    from fedrec_client.joining import leave as hand_in

    log_to_stderr(logging.WARNING)
    found = hand_in(load_settings(settings_file, {"client.state": state}))
    waiting = (
        f"{found.others} others are left of those with whom it was summed, {found.needed} are "
        f"needed: they wait until {found.needed} more have joined, or begin a new federation "
        "(`fedrec provision`)."
    )
    return Result(
        content=asdict(found),
        text=(
            f"Handed in: rounds are to go on without {found.client_id}.",
            "The key authority makes the roster that says so when it next looks.",
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
        str, typer.Option(help="The address to serve; another than this machine's own needs more.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes any that is free.")
    ] = 7480,
    latest: Latest = False,
    state: StateFolder = None,
    data: DataFile = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that every question has to carry.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Serve TLS with this certificate and its chain (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key.")] = None,
    accept_plaintext: Annotated[
        bool,
        typer.Option(
            "--accept-plaintext",
            help="Serve another address without TLS, because something else encrypts.",
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A host name that requests may be addressed to; repeat it."),
    ] = None,
) -> None:
    """Answer questions for recommendations over HTTP, on this machine alone.

    The first line on stdout is a JSON object with the address, where /docs describes what can be
    asked. A version that `fedrec client run` publishes is used within a second, without an
    interruption. If there is no version yet, the service says so and waits. It works beside a
    running client, after it, and without the coordinator, and changes nothing in the state folder.

    Ctrl-C and SIGHUP leave with 130, SIGTERM with 0.
    """
    # Small products on several threads take longer, and others' time. Before numpy is imported.
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
            "data.path is missing: what users have already is in the data.",
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


def _show_change(change: ModelChange) -> None:
    """Print one line on what became of the model on stderr."""
    line = f"{datetime.now():%H:%M:%S}  {change}"
    print(line, file=SteadyStream(sys.stderr), flush=True)
