"""`fedrec client`: taking part in a federation, and using what came of it."""

from __future__ import annotations

import logging
import shlex
import sys
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.data_options import DataFlags, takes_client_data_flags
from fedrec.cli.flags import (
    AcceptExposure,
    AcceptOtherArithmetic,
    CandidateItems,
    ExcludedItems,
    SimilarTo,
)
from fedrec.cli.recommend import print_recommended
from fedrec.cli.terminal import INTERRUPTED, AsJson, human_bytes, print_json
from fedrec.telemetry import SteadyStream, log_to_stderr
from fedrec_client.serve.cli import EPILOG as SERVE_EPILOG
from fedrec_client.serve.cli import serve

if TYPE_CHECKING:
    from fedrec.follower.events import ClientEvent
    from fedrec_client.app import ClientOutcome
    from fedrec_client.state.held_model import Which


app = typer.Typer(name="client", help="Take part in a federation.", no_args_is_help=True)

SettingsFile = Annotated[Path, typer.Argument(metavar="SETTINGS.toml", help="The settings file.")]
StateFolder = Annotated[str | None, typer.Option("--state", help="client.state: the state folder.")]
Latest = Annotated[bool, typer.Option("--latest", help="The latest model instead of the best one.")]
DataFile = Annotated[str | None, typer.Option("--data", help="data.path: the interactions.")]

app.command("serve", epilog=SERVE_EPILOG)(serve)


@app.command()
@takes_client_data_flags
def run(
    settings_file: SettingsFile,
    state: StateFolder = None,
    data: DataFile = None,
    coordinator: Annotated[
        str | None, typer.Option(help="client.coordinator: host:port to call.")
    ] = None,
    catalogue: Annotated[
        str | None, typer.Option(help="data.catalogue: the federation's catalogue.")
    ] = None,
    authority_key: Annotated[
        str | None, typer.Option(help="client.authority_key: the pinned public key.")
    ] = None,
    certificate: Annotated[
        str | None, typer.Option(help="client.certificate: what the key authority made.")
    ] = None,
    invitation: Annotated[
        str | None, typer.Option(help="client.invitation: what this client applies with.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="client.device: auto, cpu, cuda.")] = None,
    workers: Annotated[
        str | None, typer.Option(help="client.workers: processes that train, or auto.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="client.label: what the client's keys were labelled with; others are refused."
        ),
    ] = None,
    new_run: Annotated[
        bool, typer.Option("--new-run", help="Leave the stored run for the coordinator's.")
    ] = False,
    give_up_after: Annotated[
        int, typer.Option(min=0, help="Give up after so many failed calls in a row; 0 never.")
    ] = 0,
    accept_other_arithmetic: AcceptOtherArithmetic = False,
    accept_exposure: AcceptExposure = False,
    *,
    reading: DataFlags,
    as_json: AsJson = False,
) -> None:
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
    from fedrec.follower.patient_link import Stopped, StopSwitch
    from fedrec.monitoring import Monitored, metrics_endpoint
    from fedrec.plan.layout import protection_modules, training_modules
    from fedrec.privacy import BUDGET_SPENT
    from fedrec.settings.validation import load_settings
    from fedrec_client.app import ClientApp
    from fedrec_client.metrics import ClientMetrics

    log_to_stderr(logging.WARNING)
    settings = load_settings(
        settings_file,
        {
            "client.state": state,
            "data.path": data,
            "client.coordinator": coordinator,
            "data.catalogue": catalogue,
            "client.authority_key": authority_key,
            "client.certificate": certificate,
            "client.invitation": invitation,
            "client.device": device,
            "client.workers": workers,
            "client.label": label,
            **{f"data.{name}": value for name, value in reading.items()},
        },
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
        stop=stop,
        maximum_attempts=give_up_after,
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
        resume = shlex.join(["fedrec", *(word for word in sys.argv[1:] if word not in used)])
        typer.echo(f"Stopped; everything is saved. Go on with: {resume}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(asdict(outcome))
    else:
        typer.echo(f"{outcome.reason}: version {outcome.version}{_best(outcome)}")
    if outcome.reason.startswith(BUDGET_SPENT):
        raise typer.Exit(PrivacyBudgetSpent.exit_code)
    raise typer.Exit(1 if outcome.failed else 0)


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
@takes_client_data_flags
def recommend(
    settings_file: SettingsFile,
    user: Annotated[str, typer.Option(help="The user, as the data file names it.")] = "",
    similar: SimilarTo = "",
    n: Annotated[int, typer.Option("-n", min=1, help="How many items.")] = 10,
    latest: Latest = False,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also what the user has already.")
    ] = False,
    exclude: ExcludedItems = None,
    candidates: CandidateItems = None,
    state: StateFolder = None,
    data: DataFile = None,
    *,
    reading: DataFlags,
    as_json: AsJson = False,
) -> None:
    """Recommend items to one of this client's users, or like one item, on this machine alone."""
    from fedrec.errors import SettingsError
    from fedrec.settings.validation import load_settings
    from fedrec_client.recommending import Wanted
    from fedrec_client.recommending import recommend as recommend_items
    from fedrec_client.recommending import similar as similar_items

    log_to_stderr(logging.WARNING)
    if bool(user) == bool(similar):
        raise SettingsError(
            "Either --user or --similar is needed, and not both.",
            remedy="Give --user ID, or --similar ITEM.",
        )
    overrides: dict[str, object] = {"client.state": state, "data.path": data}
    overrides |= {f"data.{name}": value for name, value in reading.items()}
    settings = load_settings(settings_file, overrides)
    wanted = Wanted(n=n, exclude_seen=not include_seen, exclude=exclude, candidates=candidates)
    which: Which = "latest" if latest else "best"
    if similar:
        found = similar_items(settings, similar, wanted, which=which)
    else:
        found = recommend_items(settings, user, wanted, which=which)
    if as_json:
        print_json(asdict(found))
        return
    print_recommended((item.rank, item.score, item.item_id, item.title) for item in found.items)


@app.command()
@takes_client_data_flags
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
    *,
    reading: DataFlags,
    as_json: AsJson = False,
) -> None:
    """Write what all of this client's users are recommended, as a table for its owner alone.

    A row is a user's item: user_id, rank, item_id, title, score and the model's version. The file
    says what people like; who may read it is for its owner to say.
    """
    from fedrec.settings.validation import load_settings
    from fedrec_client.recommending import Wanted, export_recommendations

    log_to_stderr(logging.WARNING)
    overrides: dict[str, object] = {"client.state": state, "data.path": data}
    overrides |= {f"data.{name}": value for name, value in reading.items()}
    settings = load_settings(settings_file, overrides)
    wanted = Wanted(n=n, exclude_seen=not include_seen, exclude=exclude, candidates=candidates)
    which: Which = "latest" if latest else "best"
    found = export_recommendations(settings, to, wanted, which=which, force=force)
    if as_json:
        print_json(asdict(found) | {"file": str(found.file)})
        return
    typer.echo(
        f"Version {found.version}: {found.n_rows} recommendations to {found.n_users} users; "
        "readable by its owner only."
    )
    typer.echo(str(found.file))


@app.command("export-model")
def export_model(
    settings_file: SettingsFile,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="A run's folder, or a new one.")],
    latest: Latest = False,
    state: StateFolder = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there.")] = False,
    as_json: AsJson = False,
) -> None:
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
    if as_json:
        print_json(asdict(found) | {"model": str(found.model), "catalogue": str(found.catalogue)})
        return
    typer.echo(f"Version {found.version} of the shared model; no user's vector is in it.")
    if found.was_hidden:
        typer.echo("The coordinator could never read it: give it only to those who may.")
    typer.echo(str(found.model))


@app.command()
def identity(
    settings_file: SettingsFile, state: StateFolder = None, as_json: AsJson = False
) -> None:
    """Make this client's keys in an empty or new folder, and show what the key authority needs."""
    from fedrec.identity.identity import PUBLIC_FILE, new_or_known_identity
    from fedrec.settings.validation import load_settings

    settings = load_settings(settings_file, {"client.state": state})
    folder = Path(settings.client.state)
    found = new_or_known_identity(folder, settings.client.label)
    public = folder / PUBLIC_FILE
    if as_json:
        print_json({"client_id": found.client_id, "public_identity": str(public)})
        return
    typer.echo(f"client id   {found.client_id}")
    typer.echo(f"give this   {public}")
    typer.echo("to the key authority, which lists it in the federation's roster.")


@app.command()
def leave(settings_file: SettingsFile, state: StateFolder = None, as_json: AsJson = False) -> None:
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
    if as_json:
        print_json(asdict(found))
        return
    typer.echo(f"Handed in: rounds are to go on without {found.client_id}.")
    typer.echo("The key authority makes the roster that says so when it next looks.")
    if not found.others_go_on:
        typer.echo(
            f"{found.others} others are left of those with whom it was summed, "
            f"{found.needed} are needed: they wait until {found.needed} more have joined, or begin "
            "a new federation (`fedrec provision`)."
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
