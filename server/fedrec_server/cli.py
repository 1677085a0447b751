"""`fedrec coordinator`: the commands that run on the coordinator's machine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import AcceptExposure
from fedrec.cli.terminal import Result, human_bytes, print_json

if TYPE_CHECKING:
    from fedrec.settings.schema import Settings
    from fedrec_server.federation import PublicCatalogue

app = typer.Typer(no_args_is_help=True, help="Run a coordinator.")


@app.callback()
def coordinator() -> None:
    """Run a coordinator."""


@app.command()
def run(
    settings_file: Annotated[
        Path, typer.Argument(metavar="SETTINGS.toml", help="The settings file.")
    ],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a failed or stopped run.")
    ] = False,
    until_finished: Annotated[
        bool,
        typer.Option("--until-finished", help="Stop when the run has ended and members know."),
    ] = False,
    record_wire: Annotated[
        Path | None,
        typer.Option(help="Record every message in a new file in this folder, for `fedrec audit`."),
    ] = None,
    record_wire_mib: Annotated[
        int,
        typer.Option(min=1, help="Largest size of the recording. The run continues without it."),
    ] = 4096,
    page: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Show the run in a browser at this address. Overrides coordinator.page.",
        ),
    ] = None,
    accept_exposure: AcceptExposure = False,
) -> Result:
    """Serve a federation. The first line on stdout is a JSON object with the address.

    Ctrl-C, SIGHUP and SIGTERM finish started work and save. A second signal stops at once. Run the
    same command to continue. Exit status: 130 after Ctrl-C or SIGHUP, and 0 after SIGTERM, for
    containers. With --until-finished: 0 at the run's end, 4 if the privacy budget is spent, 1 if
    the run failed.
    """
    # Keeps gRPC out of `--help`.
    import asyncio

    from fedrec.errors import PrivacyBudgetSpent
    from fedrec.extras import require
    from fedrec.settings.validation import load_settings
    from fedrec.telemetry import log_to_stderr
    from fedrec.training.round_vectors import RoundVectors
    from fedrec_server.app import Coordinator
    from fedrec_server.run.freed_memory import keep_no_freed_memory
    from fedrec_server.service.wire_recorder import WireRecorder

    keep_no_freed_memory()
    settings = load_settings(settings_file, {"coordinator.page": page})
    log_to_stderr(as_json=settings.coordinator.log_format == "json")
    require(
        "grpc_health",
        *(("starlette", "uvicorn") if settings.coordinator.page else ()),
        *(("grpc_reflection",) if settings.coordinator.reflection else ()),
    )
    catalogue = _catalogue_of(settings)
    recorder = None
    if record_wire is not None:
        recorder = WireRecorder(record_wire, max_bytes=record_wire_mib << 20)
    server = Coordinator.from_settings(
        settings,
        catalogue,
        RoundVectors.of(settings.plan, catalogue.n_items),
        resume=resume,
        accept_exposure=accept_exposure,
        recorder=recorder,
    )

    def tell(address: str, name: str) -> None:
        started = {"address": address, "run": name}
        if server.page_url:
            started["page"] = server.page_url
        print_json(started)

    ending = asyncio.run(server.serve(tell, until_finished=until_finished))
    return Result(
        content={"ending": ending},
        exit_code={"spent": PrivacyBudgetSpent.exit_code, "failed": 1}.get(ending, 0),
        again=["fedrec", *sys.argv[1:]] if ending == "interrupted" else (),
    )


def _catalogue_of(settings: Settings) -> PublicCatalogue:
    """Return the catalogue that the coordinator serves."""
    from fedrec.errors import SettingsError
    from fedrec_server.federation import PublicCatalogue

    if settings.data.catalogue is None:
        raise SettingsError(
            "data.catalogue is missing. The coordinator serves the catalogue to clients.",
            remedy="Set it to the federation's public catalogue file.",
        )
    return PublicCatalogue.load(Path(settings.data.catalogue))


@app.command()
def backup(
    settings_file: Annotated[
        Path, typer.Argument(metavar="SETTINGS.toml", help="The settings file.")
    ],
    into: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder for the copy.")],
) -> Result:
    """Copy the state folder. The coordinator may be running.

    To use the copy, put it where coordinator.state points to, and start a coordinator. A
    coordinator on the copy does not serve clients that know of later rounds.
    """
    from fedrec.settings.validation import load_settings
    from fedrec_server.store.state_folder import back_up

    settings = load_settings(settings_file)
    found = back_up(Path(settings.coordinator.state), into)
    return Result(
        content={"folder": str(into)} | asdict(found),
        text=(
            f"Backed up to {into}: {found.n_files} files, {human_bytes(found.n_bytes)}, up to "
            f"round {found.last_round}.",
        ),
    )


@app.command()
def recover(
    settings_file: Annotated[
        Path, typer.Argument(metavar="SETTINGS.toml", help="The settings file.")
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file from `fedrec keys export-recovery`.")
    ],
) -> Result:
    """Rebuild a lost or outdated state folder from the key authority's data.

    The existing folder is renamed, not deleted. The run continues with the next round, and running
    clients continue automatically.
    """
    from fedrec.clock import SystemClock
    from fedrec.settings.validation import load_settings
    from fedrec.telemetry import log_to_stderr
    from fedrec.training.round_vectors import RoundVectors
    from fedrec_server.recovery import recover as make_anew

    log_to_stderr()
    settings = load_settings(settings_file)
    catalogue = _catalogue_of(settings)
    vectors = RoundVectors.of(settings.plan, catalogue.n_items)
    found = make_anew(settings, catalogue, vectors, file, now=SystemClock().now())
    previous = None if found.aside is None else str(found.aside)
    model = "" if found.has_model else ", and members have the model"
    return Result(
        content=asdict(found) | {"aside": previous},
        text=(
            *(() if previous is None else (f"The previous folder is now {previous}.",)),
            f"Recovered run {found.run} up to round {found.round}{model}.",
            "Start the coordinator. Members continue automatically.",
        ),
    )
