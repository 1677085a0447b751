"""`fedrec up`: a whole federation on one machine, for a trial."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import AcceptExposure
from fedrec.cli.terminal import Result, new_console

if TYPE_CHECKING:
    from fedrec.evaluation.metrics import Rates
    from fedrec.plan.schema import Plan
    from fedrec_lab.reports.federation_record import RunView

EPILOG = "Examples:\n  fedrec up\n  fedrec up trial/kits"


def up(
    kits: Annotated[
        Path, typer.Argument(metavar="KITS", help="The folder of `fedrec provision`.")
    ] = Path("kits"),
    page: Annotated[
        bool,
        typer.Option(
            help="Show the run in a browser on this machine, unless coordinator.page names "
            "a different address."
        ),
    ] = True,
    accept_exposure: AcceptExposure = False,
    as_json: bool = False,
) -> Result:
    """Run coordinator, key authority and every client of a set of kits, and show the rounds.

    For a trial: in a deployment each party runs its own kit on its own machine. It ends with the
    run. Ctrl-C ends all processes and loses nothing. Run the same command to continue.
    """
    from dataclasses import asdict

    from fedrec.extras import require
    from fedrec.plan.layout import protection_modules
    from fedrec.settings.validation import load_settings
    from fedrec_lab.demo.parties import ANY_PAGE, PAGE_NEEDS, PARTIES_NEED, Parties, run_parties
    from fedrec_lab.reports.federation_record import RunView

    parties = Parties.of_kits(kits)
    settings = load_settings(parties.coordinator)
    plan = settings.plan
    shown = PAGE_NEEDS if page or settings.coordinator.page else ()
    require(*PARTIES_NEED, *shown, *protection_modules(plan))
    console = new_console(stderr=as_json)
    view = RunView(planned=plan.rounds.published, at=plan.evaluation.at)

    def started(address: str, shown_at: str) -> None:
        n_clients = len(parties.clients)
        console.print(f"Coordinator on {address}, the key authority, {n_clients} clients")
        if shown_at:
            console.print(f"Watch it in a browser: {shown_at}")
        console.print(f"Their logs are in {kits / 'logs'}. Ctrl-C ends them all")

    try:
        run_parties(
            parties,
            kits / "logs",
            view,
            console,
            on_start=started,
            accept_exposure=accept_exposure,
            page=ANY_PAGE if page and not settings.coordinator.page else None,
        )
    except KeyboardInterrupt:
        return Result(content=(), again=["fedrec", *sys.argv[1:]])
    test = None if view.best is None else view.best.test
    return Result(
        content={
            "finished": view.finished,
            "rounds": len(view.rounds),
            "protocol": plan.evaluation.protocol,
            "at": view.at,
            "test": test and asdict(test),
            "clients": [str(settings) for settings in parties.clients],
        },
        text=_text(plan, view, test, parties.clients[0]),
    )


def _text(plan: Plan, view: RunView, test: Rates | None, first: Path) -> Iterator[str]:
    """Yield what a run reached, and what to do with its model.

    Args:
        first: the settings of the first client.
    """
    from fedrec.plan.cautions import explained, measured_caution

    if test is not None:
        caution = measured_caution(plan, view.reference("untrained", "test"))
        yield (
            f"{view.finished}: on held-out items HR@{view.at} {test.hr:.4f}, NDCG@{view.at} "
            f"{test.ndcg:.4f}, protocol {explained(plan.evaluation.protocol, caution)}"
        )
    own = shlex.quote(str(first))
    yield (
        "Each client has the model in its own folder. Recommend to a user of "
        f"{first.parent.name}, or export the shared part of the model:"
    )
    yield f"  fedrec recommend {own} --user USER"
    yield f"  fedrec client export-model {own} --to FOLDER"
