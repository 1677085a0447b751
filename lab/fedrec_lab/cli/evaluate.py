"""`fedrec evaluate`: algorithms and references on one split, as a table."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrec.cli.flags import (
    AcceptOtherArithmetic,
    CellsOf,
    SettingsFile,
    SetValues,
    check_is_resumed,
    read_cells,
    tell_rows,
    values_of,
    words_of,
)
from fedrec.cli.terminal import Result
from fedrec.durable import write_whole
from fedrec.errors import RefusedError, SettingsError
from fedrec_lab.cli.simulate import failure_of_seeds, resume_command, seeds_of
from fedrec_lab.reports.round_progress import StopRequest

if TYPE_CHECKING:
    from fedrec.data.catalogue import Catalogue
    from fedrec.data.interactions import Interactions
    from fedrec.data.splits import HeldOut, UserSplit
    from fedrec.evaluation.metrics import Protocol
    from fedrec.settings.schema import Settings
    from fedrec_lab.comparison.comparing import Comparison, ComparisonJob
    from fedrec_lab.comparison.list_measurement import ListMeasurement
    from fedrec_lab.reports.run_folder import RunFolder
    from fedrec_lab.simulation.result import SimulationResult


class Tables:
    """The tables of an evaluation's trainings, kept in its folder for resuming.

    Attributes:
        records: the seed, protocols, round and tables of each training.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "diagnostics.json"
        self.records: list[dict[str, Any]] = []
        if self._path.exists():
            self.records = json.loads(self._path.read_text(encoding="utf-8"))
        self._lines: list[str] = []

    def take(self, result: SimulationResult) -> None:
        """Measure the tables of a training's best version."""
        from fedrec_lab.reports.table_diagnostics import as_text, diagnose_model

        plan, best = result.settings.plan, result.best
        found = diagnose_model(plan, len(result.catalogue), best.shared, dict(best.private.tensors))
        under = "+".join(result.protocols)
        self._lines.append(f"seed {plan.federation.seed}, {under}, round {best.round}")
        self._lines.append(as_text(found))
        self.records.append(
            {
                "seed": plan.federation.seed,
                "protocols": list(result.protocols),
                "round": int(best.round),
                "tables": [asdict(each) for each in found],
            }
        )
        write_whole(self._path, (json.dumps(self.records) + "\n").encode(), private=False)

    def to_text(self) -> str:
        """Return the measurements of this call, and the path of all of them."""
        return "\n".join([*self._lines, f"Spectra: {self._path}"])


EPILOG = (
    "Examples:\n"
    "  fedrec evaluate run.toml\n"
    "  fedrec evaluate run.toml --protocols full,sampled --seeds 5 --skip centralised-ncf\n"
    "  fedrec evaluate run.toml --seeds 1,7 --no-references --out results\n"
    "  fedrec evaluate run.toml --resume runs/movies-evaluate-20260101-120000\n"
    "  fedrec evaluate run.toml --lists-at 5,10,20 --split ratio --export compared\n"
    "  fedrec evaluate runs/movies-20260101-120000 --diagnostics"
)


def evaluate(
    settings_file: SettingsFile,
    protocols: Annotated[
        str, typer.Option(help="Protocols to use: full, sampled and paper, separated by commas.")
    ] = "full,sampled,paper",
    seeds: Annotated[
        str,
        typer.Option(
            metavar="N|LIST", help="Number of seeds from federation.seed, or a list such as 1,7."
        ),
    ] = "3",
    references: Annotated[
        bool,
        typer.Option(
            help="Also run local training and methods with all data in one place: EASE, EDLAE, "
            "ItemKNN, RP3beta, iALS, LightGCN, MF and NCF."
        ),
    ] = True,
    budget: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of settings that each tuned reference may try on validation, for each "
            "protocol and set of rows.",
        ),
    ] = 16,
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Leave out a reference, such as ease. Repeatable."),
    ] = None,
    clients: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of clients that share the users. Each also trains alone. If 0, uses "
            "rounds.minimum_clients.",
        ),
    ] = 0,
    cells: CellsOf = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results, in place of a new run folder.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Resume in this folder, without measuring anything twice."),
    ] = None,
    diagnostics: Annotated[
        bool,
        typer.Option(
            "--diagnostics",
            help="Also measure the best versions' item tables: information abundance, and the "
            "principal components for 95 and 99 % of the variance. A run folder isn't trained.",
        ),
    ] = False,
    lists_at: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Also measure top-K lists at these K, such as 5,10,20, for every method: "
            "precision, MAP, AUC, coverage, novelty, Gini, and all by user activity.",
        ),
    ] = "",
    split: Annotated[
        str,
        typer.Option(
            metavar="last|ratio|time",
            help="Test items: the last one of each user, the latest share of each history, or all "
            "after one point in time.",
        ),
    ] = "last",
    test_share: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="For ratio and time: share of test items.")
    ] = 0.2,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="With --lists-at: write the split and the lists for RecBole and LensKit.",
        ),
    ] = None,
    accept_other_arithmetic: AcceptOtherArithmetic = False,
    values: SetValues = None,
) -> Result:
    """Train a federation with several seeds and compare it with references, in one table.

    Every protocol chooses its round on its own validation items, and the table shows test. full and
    sampled share a training. paper has its own if the algorithm draws negatives. References train
    on all users' data in one place, which a deployed federation never does. They are shown on the
    rows that may travel and on all rows. A difference has its paired bootstrap interval. Tuning
    iALS and LightGCN takes minutes, up to 20 together on MovieLens-100K with the defaults. --budget
    4 or --skip ials --skip lightgcn shortens it. Ctrl-C stops after the round and saves. A second
    one stops at once.

    With --lists-at, every method's lists are measured on all test items, and lists.json and
    lists.parquet are in the folder. With --split ratio or time, a user has several test items, and
    the other metrics are about the first of them.

    --resume is refused if training rounds differently than in the folder, unless
    --accept-other-arithmetic is given. The last line on stdout is the folder.
    """
    from fedrec.cli.data_options import echo_note
    from fedrec.data.source import read_users
    from fedrec.extras import require
    from fedrec.plan.layout import training_modules
    from fedrec.plan.privacy import few_clients_warnings
    from fedrec.settings.validation import load_settings
    from fedrec_lab.comparison.comparing import compare
    from fedrec_lab.comparison.list_measurement import ListMeasurement

    check_is_resumed(accept_other_arithmetic, resume)
    chosen = _protocols(protocols)
    numbers_of_lists = _lists_at(lists_at, export)
    if settings_file.is_dir():
        return _diagnosed(settings_file, asked=diagnostics)
    settings = load_settings(settings_file, values_of(values))
    numbers = seeds_of(seeds, settings.federation.seed)
    names = _references(references, skip or [])
    require(*training_modules(settings.plan), "pyarrow", *(["scipy"] if names else []))
    division = _Division(split, test_share)
    users, catalogue = read_users(
        settings.data,
        reader="an evaluation",
        tell=echo_note,
        divide=division,
        folder=Path(settings.output.runs) if out is None else out.parent,
    )
    if max(numbers_of_lists, default=0) > len(catalogue):
        raise SettingsError(
            f"--lists-at is {lists_at!r}, but the catalogue has {len(catalogue)} items.",
            remedy="Ask for shorter lists.",
        )
    asked, by_cells, unused = read_cells(settings, cells, clients)
    for warning in (*few_clients_warnings(settings.plan, clients), *filter(None, (unused,))):
        typer.echo(f"warning: {warning}", err=True)
    silos = references or settings.client.tail
    n_clients = asked or (settings.rounds.minimum_clients if silos else 1)
    rows = tell_rows(settings, users, len(catalogue), n_clients=n_clients, cells=by_cells)
    run = _folder(
        settings, out, resume, lists=bool(numbers_of_lists), accepted=accept_other_arithmetic
    )
    lists = None
    if numbers_of_lists:
        held = division.held
        lists = ListMeasurement(numbers_of_lists, held=held, folder=run.path, export=export)
    tables = Tables(run.path) if diagnostics else None

    stop = StopRequest("Stopping after this round. Ctrl-C again stops at once.")
    with stop.on_interrupt():
        result = compare(
            settings,
            users=users,
            catalogue=catalogue,
            protocols=chosen,
            seeds=numbers,
            references=names,
            n_clients=n_clients,
            cells=by_cells,
            budget=budget,
            folder=run.path,
            accept_other_arithmetic=accept_other_arithmetic,
            listener=None if sys.stderr.isatty() else _Lines(),
            stop=stop.requested,
            trained=None if tables is None else tables.take,
            lists=lists,
        )
    run.write_results(result.table)
    run.write_ranks(result.ranks, users)
    flags = words_of(
        {
            "protocols": protocols,
            "seeds": seeds,
            "clients": n_clients,
            "budget": budget,
            "cells": cells,
            "no_references": not references,
            "diagnostics": diagnostics,
            "skip": skip,
            "lists_at": lists_at,
            **({} if split == "last" else {"split": split, "test_share": test_share}),
            "export": export,
        }
    )
    again = resume_command(run.path, flags, command="evaluate")
    return _result(result, run.path, rows, tables, lists, again)


def _diagnosed(run: Path, *, asked: bool) -> Result:
    """Return the diagnostics of a run folder's tables, for which nothing is trained."""
    from fedrec_lab.reports.table_diagnostics import as_text, diagnose_folder

    if not asked:
        raise SettingsError(
            f"{run} is a folder, but this command trains and needs settings.",
            remedy=f"Pass {run / 'resolved.toml'} to measure a run's settings again.",
        )
    found = diagnose_folder(run)
    records = [asdict(each) for each in found]
    return Result(content={"run": str(run), "tables": records}, text=(as_text(found),))


def _result(
    result: Comparison,
    folder: Path,
    rows: dict[str, int] | None,
    tables: Tables | None,
    lists: ListMeasurement | None,
    again: list[str],
) -> Result:
    """Return what the command prints about a comparison in this folder.

    Args:
        again: the words of the command that resumes it.
    """
    return Result(
        content={
            "run": str(folder),
            "finished": result.finished,
            "cells": rows,
            **({} if tables is None else {"diagnostics": tables.records}),
            **({} if lists is None else {"lists": [row.to_record() for row in lists.rows]}),
            **result.table.to_record(),
        },
        text=(
            *((result.table.to_text(),) if result.table.rows else ()),
            *(() if tables is None else (tables.to_text(),)),
            *(() if lists is None else (lists.to_text(),)),
            str(folder),
        ),
        again=[] if result.finished else again,
        failure=failure_of_seeds(result.uninformed),
    )


class _Division:
    """Divides histories as --split names it, and keeps the test items.

    Raises:
        SettingsError: the name is unknown.
    """

    def __init__(self, split: str, share: float) -> None:
        from fedrec.data.splits import BY

        known = next((by for by in BY if by == split), None)
        if known is None:
            raise SettingsError(f"--split is {split!r}.", remedy=f"Choose from {', '.join(BY)}.")
        self._by, self._share = known, share
        self.held: HeldOut | None = None

    def __call__(self, interactions: Interactions, catalogue: Catalogue) -> UserSplit:
        from fedrec.data.splits import hold_out

        users, self.held = hold_out(interactions, catalogue, by=self._by, share=self._share)
        return users


def _check_lists(folder: Path, *, asked: bool) -> None:
    """Refuse to resume if finished trainings have lists that aren't asked for, or lack those."""
    kept = (folder / "lists.json").exists()
    if kept != asked and any(folder.glob("parts/*.json")):
        raise RefusedError(
            f"{folder} was measured {'with' if kept else 'without'} --lists-at.",
            remedy="Resume with the same options, or evaluate into a new folder.",
        )


def _lists_at(text: str, export: Path | None) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = (0,)
    if any(number < 1 for number in found):
        raise SettingsError(
            f"--lists-at is {text!r}. Expected whole numbers of at least 1.",
            remedy="Separate them with commas, as in 5,10,20.",
        )
    if export is not None and not found:
        raise SettingsError("--export needs lists.", remedy="Set --lists-at, too.")
    return found


def _protocols(text: str) -> tuple[Protocol, ...]:
    from fedrec.evaluation.metrics import PROTOCOLS

    wanted = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in wanted if name not in PROTOCOLS]
    if unknown or not wanted:
        raise SettingsError(
            f"--protocols is {text!r}.",
            remedy=f"Name one or more of {', '.join(PROTOCOLS)}, separated by commas.",
        )
    return tuple(protocol for protocol in PROTOCOLS if protocol in wanted)


def _references(wanted: bool, skipped: list[str]) -> tuple[str, ...]:
    from fedrec_lab.comparison.references import REFERENCES

    unknown = [name for name in skipped if name not in REFERENCES]
    if unknown:
        raise SettingsError(
            f"--skip names {unknown[0]}, which is not a reference.",
            remedy=f"Choose from {', '.join(REFERENCES)}.",
        )
    return tuple(name for name in REFERENCES if wanted and name not in skipped)


def _folder(
    settings: Settings, out: Path | None, resume: Path | None, *, lists: bool, accepted: bool
) -> RunFolder:
    """Open the folder to resume, or make one with the run's settings.

    If resuming is refused, the run's own settings must not have been replaced.

    Args:
        lists: whether top-K lists are measured.
        accepted: whether other arithmetic than that of the folder is accepted.
    """
    from fedrec.environment import provenance_of
    from fedrec_lab.reports.run_folder import RunFolder, new_folder

    trains = provenance_of(settings.plan, settings.client.device)
    if resume is not None:
        run = RunFolder.open(resume)
        _check_lists(run.path, asked=lists)
        run.go_on(trains, accepted=accepted)
        return run
    if out is None:
        run = RunFolder.create(settings.output.runs, f"{settings.federation.name}-evaluate")
    else:
        run = RunFolder(new_folder(out))
    run.write_environment(trains)
    run.write_settings(settings)
    return run


class _Lines:
    """Prints a line for each job, and another after a long one, for a pipe or a file."""

    def __init__(self) -> None:
        self._printed_at = 0.0

    def begin(self, number: int, n_jobs: int, job: ComparisonJob) -> None:
        self._printed_at = time.monotonic()
        typer.echo(f"{number}/{n_jobs}  {job.text}", err=True)

    def tell(self, text: str) -> None:
        if time.monotonic() - self._printed_at >= 10.0 or not text.startswith(("round", "setting")):
            self._printed_at = time.monotonic()
            typer.echo(f"  {text}", err=True)
