"""`fedrec tune`: find the algorithm and settings that are best on validation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import (
    AcceptExposure,
    AcceptOtherArithmetic,
    CellsOf,
    SetValues,
    check_is_resumed,
    read_cells,
    tell_rows,
    values_of,
    words_of,
)
from fedrec.cli.terminal import Result
from fedrec.errors import SettingsError
from fedrec_lab.cli.simulate import resume_command, seeds_of
from fedrec_lab.reports.round_progress import StopRequest

if TYPE_CHECKING:
    from fedrec.data.catalogue import Catalogue
    from fedrec.data.splits import UserSplit
    from fedrec.plan.schema import Plan
    from fedrec.settings.schema import Settings
    from fedrec_lab.reports.run_folder import RunFolder
    from fedrec_lab.tuning.first_choice import FirstChoice
    from fedrec_lab.tuning.space import Contender, Given, Sampler
    from fedrec_lab.tuning.study import Trial

EPILOG = (
    "Examples:\n"
    "  fedrec tune run.toml\n"
    "  fedrec tune run.toml --try algorithm.alpha=1,10 --try algorithm.regularisation=10,50\n"
    "  fedrec tune run.toml --sampler random --trials 40 --seeds 3 --jobs 4\n"
    "  fedrec tune data/interactions.csv --algorithms fedmf,fedals,ease,sketch\n"
    "  fedrec tune run.toml --resume runs/movies-tune-20260101-120000"
)


def tune(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SETTINGS|DATA",
            help="A settings file (.toml), or a file with interactions for starting settings.",
        ),
    ],
    algorithms: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Compare these algorithms, separated by commas, with the same number of trials.",
        ),
    ] = "",
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="KEY=V1,V2,...",
            help="Values to try, in place of the algorithm's own. Repeat it for combinations.",
        ),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="grid (all combinations), random, or tpe (guided by earlier trials). The default "
            "is grid if --trials is enough for it, else tpe.",
        ),
    ] = "",
    trials: Annotated[
        int,
        typer.Option(
            min=0,
            max=1000,
            help="Most settings to try for each algorithm. If 0, tries 16, or all combinations of "
            "--try.",
        ),
    ] = 0,
    seeds: Annotated[
        str,
        typer.Option(
            metavar="N|LIST",
            help="Seeds for each trial: a number of seeds, starting at federation.seed, or a list "
            "such as 1,7.",
        ),
    ] = "1",
    jobs: Annotated[
        int,
        typer.Option(
            min=0, help="Trainings at a time, each in its own process. If 0, uses one per core."
        ),
    ] = 1,
    clients: Annotated[
        int,
        typer.Option(
            min=1,
            help="Clients that share the users. They matter if a client compresses, or checks its "
            "own users: client.minimum_own_item_users.",
        ),
    ] = 1,
    cells: CellsOf = "",
    resume: Annotated[
        Path | None,
        typer.Option(help="Resume in this folder, without training anything twice."),
    ] = None,
    accept_other_arithmetic: AcceptOtherArithmetic = False,
    accept_exposure: AcceptExposure = False,
    values: SetValues = None,
) -> Result:
    """Try settings and algorithms, rank them on validation, and write the best settings.

    The starting settings are the first trial of each algorithm. Everything runs on this machine, on
    the data of the file. Test items are never used. If clients hold the data, tune on the data of
    one of them. If a best value is at either end of its list, the list is widened while trials are
    left.

    The folder, whose path is the last line on stdout, has best.toml, trials.parquet, results.json
    and figures. `fedrec simulate` runs best.toml. Ctrl-C stops after the round and saves. --resume
    continues with the same trials. This command needs the extra tune, which installs optuna.
    """
    from fedrec.cli.data_options import echo_note
    from fedrec.data.source import read_users
    from fedrec.extras import require
    from fedrec.plan.schema import users_with_room

    check_is_resumed(accept_other_arithmetic, resume)
    require("optuna", "pyarrow")
    from fedrec_lab.tuning.report import record_of, text_of, write_study
    from fedrec_lab.tuning.study import StudyTask, run_study

    given, chosen = values_of(values), _sampler(sampler)
    contenders = _contenders(source, {}, given, algorithms)
    settings = contenders[0].load({})
    n_clients, by_cells, unused = read_cells(settings, cells, clients if clients > 1 else 0)
    _check([each.load({}).plan for each in contenders], unused, accept_exposure=accept_exposure)
    numbers = seeds_of(seeds, settings.federation.seed)
    users, catalogue = read_users(
        settings.data, reader="tuning", tell=echo_note, folder=Path(settings.output.runs)
    )
    if source.suffix != ".toml":
        room = {"federation.maximum_users": users_with_room(len(users))}
        contenders = _contenders(source, room, given, algorithms)
        settings = contenders[0].load({})
    rows = tell_rows(settings, users, len(catalogue), n_clients=n_clients or 1, cells=by_cells)
    run, begin = _folder(settings, resume, accept_other_arithmetic)
    task = StudyTask(
        users=users,
        catalogue=catalogue,
        folder=run.path,
        seeds=numbers,
        sampler=chosen,
        trials=trials or None,
        tries=tuple(tries or ()),
        jobs=jobs,
        n_clients=n_clients or clients,
        cells=by_cells,
        accept_other_arithmetic=accept_other_arithmetic,
    )

    stop = StopRequest("Stopping after this round. Ctrl-C again stops at once.")
    with run.removed_if_empty(), stop.on_interrupt():
        study = run_study(contenders, task, begin=begin, tell=_tell, stop=stop.requested)
        write_study(study, run)
    flags = words_of(
        {
            "algorithms": algorithms,
            "try": tries,
            "sampler": sampler,
            "trials": trials,
            "seeds": "" if seeds == "1" else seeds,
            "jobs": 0 if jobs == 1 else jobs,
            "clients": 0 if clients == 1 else clients,
            "cells": cells,
            "accept_exposure": accept_exposure,
            "set": values,
        }
    )
    return Result(
        content={"run": str(run.path), "cells": rows, **record_of(study)},
        text=(*text_of(study), str(run.path)),
        again=[] if study.finished else resume_command(run.path, flags, command="tune"),
    )


def choose_first(
    values: Given,
    users: UserSplit,
    catalogue: Catalogue,
    *,
    n_clients: int,
    tell: Callable[[str], None],
) -> FirstChoice:
    """Choose a few starting settings on validation, for `fedrec init --auto`."""
    from fedrec_lab.tuning.first_choice import choose

    return choose(values, users, catalogue, n_clients=n_clients, tell=tell)


def _check(plans: list[Plan], unused: str, *, accept_exposure: bool) -> None:
    """Refuse plans that can't be tried here, and print the warnings.

    Args:
        unused: the warning about the cells, or empty.
    """
    from fedrec.extras import require
    from fedrec.plan.exposure import check_exposure
    from fedrec.plan.layout import training_modules
    from fedrec_lab.reports.drawing import why_no_figures

    for plan in plans:
        check_exposure(plan, accepted=accept_exposure)
    require(*(module for plan in plans for module in training_modules(plan)))
    if any(plan.privacy.mechanism != "none" for plan in plans):
        typer.echo(
            "warning: Trials are ranked by exact figures on validation, which privacy.epsilon does "
            "not cover. Tune on data for which that is acceptable.",
            err=True,
        )
    for warning in filter(None, (why_no_figures(), unused)):
        typer.echo(f"warning: {warning}", err=True)


def _folder(
    settings: Settings, resume: Path | None, accepted: bool
) -> tuple[RunFolder, Callable[[], None]]:
    """Open the folder to resume, or make one. Return it with what to do before the first training.

    Args:
        accepted: whether other arithmetic than that of the folder is accepted.
    """
    from fedrec.environment import provenance_of
    from fedrec_lab.reports.run_folder import RunFolder

    if resume is None:
        run = RunFolder.create(settings.output.runs, f"{settings.federation.name}-tune")
    else:
        run = RunFolder.open(resume)

    def begin() -> None:
        trains = provenance_of(settings.plan, settings.client.device)
        if resume is None:
            run.write_environment(trains)
            run.write_settings(settings)
        else:
            run.go_on(trains, accepted=accepted)

    return run, begin


def _tell(trial: Trial) -> None:
    reached = trial.note if trial.ndcg is None else f"NDCG {trial.ndcg:.4f}"
    typer.echo(f"{trial.algorithm} {trial.number + 1}  {trial.text}  {reached}", err=True)


def _contenders(source: Path, room: Given, given: Given, algorithms: str) -> tuple[Contender, ...]:
    """Return the algorithms with the settings of a file, or with starting ones for data.

    Args:
        room: settings that follow from the data.
    """
    from fedrec.algorithms import STARTING_ALGORITHM
    from fedrec_lab.tuning.space import contenders_of, settings_of_data

    names = [name.strip() for name in algorithms.split(",") if name.strip()]
    if source.suffix == ".toml":
        return contenders_of(source, {}, given, names)
    base = {**settings_of_data(source, STARTING_ALGORITHM.name), **room}
    return contenders_of(None, base, given, names)


def _sampler(name: str) -> Sampler | None:
    from fedrec_lab.tuning.space import SAMPLERS

    found = next((each for each in SAMPLERS if each == name), None)
    if name and found is None:
        raise SettingsError(f"--sampler is {name!r}.", remedy=f"Use one of {', '.join(SAMPLERS)}.")
    return found
