"""`fedrec tune`: find the settings that are best on validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import (
    AcceptExposure,
    CellsOf,
    SettingsFile,
    SetValues,
    read_cells,
    tell_rows,
    values_of,
)
from fedrec.cli.terminal import INTERRUPTED, Result, TextTable
from fedrec_lab.cli.round_progress import StopRequest

if TYPE_CHECKING:
    from fedrec.evaluation.metrics import Rates
    from fedrec.plan.schema import Plan
    from fedrec.settings.schema import Settings
    from fedrec_lab.comparison.tuning import Trial


EPILOG = (
    "Examples:\n"
    "  fedrec tune run.toml\n"
    "  fedrec tune run.toml --try algorithm.alpha=1,10 --try algorithm.regularisation=10,50\n"
    "  fedrec tune run.toml --try algorithm.learning_rate=0.5,1,2 --set rounds.total=30"
)


def tune(
    settings_file: SettingsFile,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="KEY=V1,V2,...",
            help="Values to try. Repeat it for combinations. The default is the algorithm's own "
            "grid, if it has one.",
        ),
    ] = None,
    clients: Annotated[
        int,
        typer.Option(
            min=1,
            help="Clients that share the users. They matter if a client compresses, or checks its "
            "own users: client.minimum_own_item_users.",
        ),
    ] = 1,
    cells: CellsOf = "",
    accept_exposure: AcceptExposure = False,
    values: SetValues = None,
) -> Result:
    """Train with the file's settings and with each of the others, and rank them on validation.

    Everything runs in this process, on the data of the settings file, as in `fedrec simulate`. Test
    items are never used. If clients hold the data, tune on the data of one of them. Nothing is
    written: copy the printed lines. Ctrl-C stops and shows what was tried.
    """
    from fedrec.cli.data_options import echo_note
    from fedrec.data.source import read_users
    from fedrec.extras import require
    from fedrec.plan.exposure import check_exposure
    from fedrec.plan.layout import training_modules
    from fedrec.settings.validation import load_settings
    from fedrec_lab.comparison.tuning import grid_of, tried, try_settings

    given = values_of(values)
    settings = load_settings(settings_file, given)
    check_exposure(settings.plan, accepted=accept_exposure)
    require(*training_modules(settings.plan))
    grid = grid_of(settings.algorithm.name, tries or ())
    # All are checked before the first is trained.
    jobs: list[tuple[Mapping[str, str], Settings]] = [({}, settings)]
    jobs += [(each, load_settings(settings_file, {**given, **each})) for each in grid]
    dealt = [read_cells(own, cells, clients if clients > 1 else 0) for _, own in jobs]
    if dealt[0][2]:
        typer.echo(f"warning: {dealt[0][2]}", err=True)
    users, catalogue = read_users(settings.data, reader="tuning", tell=echo_note)
    n_clients, by_cells, _ = dealt[0]
    rows = tell_rows(settings, users, len(catalogue), n_clients=n_clients or 1, cells=by_cells)
    stop = StopRequest("Stopping after this round. Ctrl-C again stops at once.")
    trials: list[Trial] = []
    popularity: Rates | None = None
    known: list[tuple[Plan, int]] = []
    with stop.on_interrupt():
        for number, ((each, own), parties) in enumerate(zip(jobs, dealt, strict=True), start=1):
            same = (own.plan, own.client.minimum_own_item_users)
            if same in known:
                continue
            known.append(same)
            found = try_settings(
                own,
                each,
                users,
                catalogue,
                n_clients=parties[0] or clients,
                cells=parties[1],
                stop=stop.requested,
            )
            if found is None:
                break
            trial, reference = found
            trials.append(trial)
            popularity = popularity or reference
            reached = f"NDCG {trial.rates.ndcg:.4f}" if trial.rates else trial.note
            typer.echo(f"{number}/{len(jobs)}  {_named(each)}  {reached}", err=True)
    at, ranked = settings.evaluation.at, tried(trials)
    best = ranked[0].rates if ranked else None
    beaten = bool(best and popularity and best.ndcg > popularity.ndcg)
    return Result(
        content={
            "at": at,
            "cells": rows,
            "trials": [asdict(trial) for trial in ranked],
            "popularity": asdict(popularity) if popularity else None,
            "above_popularity": beaten,
        },
        text=_text(ranked, popularity, at, beaten),
        exit_code=INTERRUPTED if stop.requested() else 0,
    )


def _named(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "as in the file"


def _text(
    trials: list[Trial], popularity: Rates | None, at: int, beaten: bool
) -> Iterator[str | TextTable]:
    best = trials[0] if trials and trials[0].rates else None
    rows = [
        [
            _named(trial.values),
            *([f"{trial.rates.hr:.4f}", f"{trial.rates.ndcg:.4f}"] if trial.rates else ["-", "-"]),
            str(trial.round) if trial.rates else "-",
            trial.note,
        ]
        for trial in trials
    ]
    if popularity:
        rows.append(["popularity", f"{popularity.hr:.4f}", f"{popularity.ndcg:.4f}", "-", ""])
    yield TextTable(rows=rows, headers=["on validation", f"HR@{at}", f"NDCG@{at}", "round", ""])
    if best is None:
        return
    if not beaten:
        yield "None of them is better than popularity on validation. Try others with --try."
    if not best.values:
        yield "The file's own settings are the best of these."
        return
    yield "Best, for the settings file:"
    sections: dict[str, list[str]] = {}
    for key, value in best.values.items():
        section, _, field = key.partition(".")
        sections.setdefault(section, []).append(f"{field} = {value}")
    for section, lines in sections.items():
        yield "\n".join([f"[{section}]", *lines])
