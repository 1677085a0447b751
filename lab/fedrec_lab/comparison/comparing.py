"""A run's algorithm and its references, measured one after the other, as one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from typing import Protocol as Shape

import numpy as np
from numpy.typing import NDArray

from fedrec.data.catalogue import Catalogue
from fedrec.data.frames import DataFrame
from fedrec.data.interactions import Interactions
from fedrec.data.splits import UserSplit
from fedrec.errors import SettingsError, TrainingError
from fedrec.evaluation.metrics import N_CANDIDATES, PROTOCOLS, Protocol
from fedrec.ids import digest
from fedrec.plan.algorithm import about_algorithm
from fedrec.plan.cautions import protocol_cautions
from fedrec.plan.travelling_rows import Cells, cells_in_use
from fedrec.settings.schema import ClientSettings, Settings
from fedrec.showing import Tabular
from fedrec_lab.comparison.list_measurement import ListMeasurement
from fedrec_lab.comparison.measurement import (
    BUDGET,
    Blocks,
    Measurement,
    MeasurementStopped,
    MethodTask,
    Parts,
    differences_of,
    draws_negatives,
    measurements_of,
    protocol_groups,
    train,
)
from fedrec_lab.comparison.references import ALL_ROWS, REFERENCES, Reference
from fedrec_lab.reports.comparison_table import ComparisonRow, ComparisonTable, Sample
from fedrec_lab.reports.result_row import REFERENCE_LABELS
from fedrec_lab.reports.round_progress import is_watched, progress_bar
from fedrec_lab.simulation.checkpoint import simulation_identity
from fedrec_lab.simulation.result import SimulationResult, with_tail
from fedrec_lab.simulation.runner import given_or_read
from fedrec_lab.simulation.seeds import check_seeds
from fedrec_lab.simulation.silos_tail import TAIL, check_tail


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonJob:
    """One method with some seeds under protocols that share a training.

    Attributes:
        reference: its name in `REFERENCES`. Empty for the run's own algorithm.
        name: the name of its part's file.
        text: the line that is shown while it runs.
    """

    reference: str
    protocols: tuple[Protocol, ...]
    seeds: tuple[int, ...]
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Tabular):
    """The table, as far as it is complete.

    Attributes:
        finished: whether it was not stopped before the end.
        uninformed: the seeds whose version under noise must not be used, each with the reason.
        ranks: the algorithm's 0-based ranks by protocol and seed, as far as they are known. A miss
            has rank K, and a user without a test item has -1. (n_users,).
    """

    table: ComparisonTable
    finished: bool
    uninformed: tuple[str, ...] = ()
    ranks: Mapping[tuple[Protocol, int], NDArray[np.float64]] = field(default_factory=dict)

    def columns(self) -> Mapping[str, list[Any]]:
        """Return the columns of the table."""
        return self.table.columns()

    def __repr__(self) -> str:
        return repr(self.table) if self.finished else f"{self.table!r}, stopped before its end"

    def __str__(self) -> str:
        return str(self.table) if self.finished else f"{self.table}\n(stopped before its end)"

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


class Listener(Shape):
    """Is told how far a comparison is."""

    def begin(self, number: int, n_jobs: int, job: ComparisonJob) -> None:
        """A job begins. Numbers count from 1."""

    def tell(self, text: str) -> None:
        """Something of the job was reached."""


def _still(**moved: object) -> None:
    """Show nothing."""


class _Shown:
    """Shows jobs as a bar.

    Args:
        update: moves it. See `progress_bar`.
    """

    def __init__(self, update: Callable[..., None]) -> None:
        self._update, self._job = update, ""

    def begin(self, number: int, n_jobs: int, job: ComparisonJob) -> None:
        self._job = job.text
        self._update(completed=number - 1, total=n_jobs, text=self._job)

    def tell(self, text: str) -> None:
        self._update(text=f"{self._job}: {text}")


def jobs_of(
    settings: Settings,
    protocols: tuple[Protocol, ...],
    seeds: tuple[int, ...],
    references: tuple[str, ...],
) -> list[ComparisonJob]:
    """Return the methods that must be measured. The run's own algorithm is the first.

    Raises:
        SettingsError: nothing is asked for, or the settings are inconsistent with a protocol.
    """
    for name, given in (("protocols", protocols), ("references", references), ("seeds", seeds)):
        if isinstance(given, str | int):
            raise SettingsError(f"{name} is {given!r}.", remedy=f"Pass a tuple: ({given!r},).")
    if not protocols or not seeds:
        raise SettingsError("A comparison needs at least one protocol and one seed.")
    check_seeds(seeds)
    for name, given, known in (
        ("protocols", protocols, PROTOCOLS),
        ("references", references, tuple(REFERENCES)),
    ):
        if unknown := [each for each in given if each not in known]:
            raise SettingsError(
                f"{name} has {unknown[0]!r}.", remedy=f"Choose among {', '.join(known)}."
            )
    if settings.evaluation.at > N_CANDIDATES and set(protocols) != {"full"}:
        raise SettingsError(
            f"evaluation.at is {settings.evaluation.at}, but sampled and paper rank the held-out "
            f"item among {N_CANDIDATES} others, so that it is always found.",
            remedy=f"Compare under full alone, or set evaluation.at to {N_CANDIDATES} or less.",
        )
    jobs = []
    negatives = draws_negatives(settings.plan)
    allowed = about_algorithm(settings).supports.protocols
    for group in protocol_groups(protocols, negatives=negatives):
        if negatives and not set(group) & set(allowed):
            continue
        for seed in seeds:
            jobs.append(_job("", settings.algorithm.name, group, (seed,)))
    for name in references:
        reference = REFERENCES[name]
        if reference.only_with not in ("", settings.algorithm.name):
            continue
        for group in protocol_groups(protocols, negatives=reference.draws_negatives):
            for chosen in ((seed,) for seed in seeds) if reference.job_for_each_seed else (seeds,):
                jobs.append(_job(name, _method(name, settings), group, chosen))
    return jobs


_REFERENCE = "reference-"


def _method(reference: str, settings: Settings) -> str:
    """Return the name of a reference's parts and rows, which may not be those of the algorithm."""
    return _REFERENCE + reference if reference == settings.algorithm.name else reference


def _job(
    reference: str, method: str, protocols: tuple[Protocol, ...], seeds: tuple[int, ...]
) -> ComparisonJob:
    under, numbers = "+".join(protocols), "+".join(map(str, seeds))
    word = "seed" if len(seeds) == 1 else "seeds"
    return ComparisonJob(
        reference=reference,
        protocols=protocols,
        seeds=seeds,
        name=f"{method}-{under}-seed-{numbers}",
        text=f"{method}, {under}, {word} {numbers}",
    )


def compare(
    settings: Settings,
    *,
    users: UserSplit | Interactions | DataFrame | None = None,
    catalogue: Catalogue | None = None,
    protocols: tuple[Protocol, ...] = ("full",),
    seeds: tuple[int, ...] = (1,),
    references: tuple[str, ...] = tuple(REFERENCES),
    n_clients: int = 1,
    cells: Cells = (),
    budget: int = BUDGET,
    folder: str | Path | None = None,
    accept_other_arithmetic: bool = False,
    listener: Listener | None = None,
    stop: Callable[[], bool] = lambda: False,
    trained: Callable[[SimulationResult], None] | None = None,
    lists: ListMeasurement | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Measure an algorithm and its references, in one process that has all data.

    Args:
        users: the data: a frame, interactions, or what `load_data` returns with `catalogue`. If
            omitted, the settings' data file is read.
        catalogue: the items of `users`. Frames and interactions need none.
        protocols: the table's columns. Each chooses its round on its own validation.
        seeds: the seeds of training and of drawn candidates. Each has a run of its own.
        references: names in `REFERENCES`. If one cannot run here, or diverges, its row has the
            reason, and the comparison continues.
        n_clients: parties of the run's own federation. With 2 or more there is a row for local
            training.
        cells: the partition of its parties, as in `simulate`.
        budget: settings that each tuned reference may try for a protocol on one set of rows.
        folder: the folder for finished parts, which are reused.
        accept_other_arithmetic: resume a training even if it rounded differently.
        stop: called between rounds and between settings.
        trained: called with the result of each training of the run's own algorithm.
        lists: measures the lists of all methods, too. Training negatives that are drawn as under
            `paper` count only if no other protocol is asked for.
        progress: show each measurement on stderr or in the notebook. By default on a terminal and
            in a notebook, unless `listener` is given.

    Raises:
        SettingsError: the settings cannot be combined, or the folder belongs to a different
            comparison.
        TrainingError: the run's own algorithm diverged.
        StorageError: the folder cannot be written or read.
    """
    within = None if folder is None else Path(folder)
    users, catalogue = given_or_read(settings, users, catalogue, within)
    if budget < 1:
        raise SettingsError(f"budget is {budget}.", remedy="Try 1 setting or more.")
    jobs = jobs_of(settings, protocols, seeds, references)
    cells = cells_in_use(settings.plan, cells, n_clients)
    identity = simulation_identity(
        settings, catalogue.fingerprint(), users, n_clients=n_clients, cells=cells
    )
    check_tail(settings, len(users), n_clients)
    parts = None
    if within is not None:
        parts = _parts(within, settings.client, identity, n_clients, budget)
    found: list[Measurement] = []
    failures: dict[str, str] = {}
    finished = True
    first: dict[str, tuple[Protocol, ...]] = {}
    with ExitStack() as stack:
        watched = listener is None and (is_watched() if progress is None else progress)
        update = stack.enter_context(progress_bar("measurements")) if watched else _still
        listener = listener or _Shown(update)
        for number, job in enumerate(jobs, start=1):
            listed = first.setdefault(job.reference, job.protocols) == job.protocols
            wanted = lists if listed else None
            known = None if parts is None else parts.load(job.name)
            if known is not None:
                found += known
                continue
            task = MethodTask(
                settings=settings,
                catalogue=catalogue,
                users=users,
                protocols=job.protocols,
                seeds=job.seeds,
                n_clients=n_clients,
                cells=cells,
                budget=budget,
                folder=None if parts is None else parts.training_folder(job.name),
                accept_other_arithmetic=accept_other_arithmetic,
                tell=listener.tell,
                stop=stop,
                add_lists=_adding(wanted, job, settings, users, catalogue),
            )
            try:
                if stop():
                    raise MeasurementStopped
                listener.begin(number, len(jobs), job)
                method = REFERENCES[job.reference]() if job.reference else _Own(trained, wanted)
                measured = method.measure(task)
            except MeasurementStopped:
                finished = False
                break
            except (SettingsError, TrainingError) as error:
                if not job.reference:
                    raise
                failures[_method(job.reference, settings)] = str(error)
                listener.tell(str(error))
                continue
            if job.reference == settings.algorithm.name:
                measured = [replace(each, method=_REFERENCE + each.method) for each in measured]
            found += measured
            if parts is not None:
                parts.save(job.name, measured)
        if finished:
            update(completed=len(jobs), text="")
    cautions = protocol_cautions(settings.plan, users, len(catalogue), protocols)
    return _comparison(settings, protocols, found, failures, cautions=cautions, finished=finished)


def _parts(
    folder: Path, client: ClientSettings, plan_identity: str, n_clients: int, budget: int
) -> Parts[Measurement]:
    """Return the finished parts of the same comparison in a folder."""
    local = ("tail", client.tail_minimum_users) if client.tail else ()
    identity = digest("fedrec comparison v2", plan_identity, n_clients, budget, *local).hex()
    return Parts(folder, identity, Measurement)


def _comparison(
    settings: Settings,
    protocols: tuple[Protocol, ...],
    found: list[Measurement],
    failures: Mapping[str, str],
    *,
    cautions: Mapping[Protocol, str],
    finished: bool,
) -> Comparison:
    """Return the table of measurements, and of references that failed.

    Args:
        failures: why a method has no row, by its name.
        cautions: a sentence for each protocol that flatters results.
    """
    order = [settings.algorithm.name, TAIL, *_MEASURED_BY_FEDERATIONS]
    order += [_method(name, settings) + rows for name in REFERENCES for rows in ("", ALL_ROWS)]
    rows = tuple(_rows(found, failures, order, settings.evaluation.at))
    table = ComparisonTable(
        rows=rows,
        protocols=protocols,
        at=settings.evaluation.at,
        cautions=cautions,
    )
    empty = {each.seed: each.uninformed for each in found if each.uninformed}
    return Comparison(
        table=table,
        finished=finished,
        uninformed=tuple(f"Seed {seed}: {why}" for seed, why in empty.items()),
        ranks={
            (each.protocol, each.seed): np.array(each.ranks)
            for each in found
            if each.method == order[0] and each.ranks
        },
    )


def _adding(
    lists: ListMeasurement | None,
    job: ComparisonJob,
    settings: Settings,
    users: UserSplit,
    catalogue: Catalogue,
) -> Callable[[str, int, Blocks], None] | None:
    """Return the function that takes a reference's scores, under the name of its row."""
    if lists is None:
        return None
    before = _REFERENCE if job.reference == settings.algorithm.name else ""

    def add(method: str, seed: int, blocks: Blocks) -> None:
        lists.add(before + method, seed, users, catalogue, blocks)

    return add


_MEASURED_BY_FEDERATIONS = (*(scorer for scorer, _ in REFERENCE_LABELS), "closed_formula")


class _Own(Reference):
    """The run's own algorithm, with everything that its closing round measures."""

    def __init__(
        self,
        trained: Callable[[SimulationResult], None] | None,
        lists: ListMeasurement | None,
    ) -> None:
        taking = None if lists is None else lists.take
        self._listeners = [listener for listener in (trained, taking) if listener is not None]

    def measure(self, task: MethodTask) -> list[Measurement]:
        """Train once for each seed. See `Reference.measure`."""
        found: list[Measurement] = []
        for seed in task.seeds:
            result = with_tail(train(task, task.settings, seed))
            for listener in self._listeners:
                listener(result)
            found += measurements_of(result)
        return found


def _rows(
    found: list[Measurement], failures: Mapping[str, str], order: Sequence[str], at: int
) -> Iterator[ComparisonRow]:
    """Yield a row for each method that was measured or failed, in a fixed order."""
    own = [measurement for measurement in found if measurement.method == order[0]]
    for method in order:
        samples: dict[Protocol, list[Sample]] = {}
        mine = [measurement for measurement in found if measurement.method == method]
        for each in mine:
            sample = Sample(
                seed=each.seed,
                rates=each.rates,
                chosen=each.chosen,
                validation=each.validation,
            )
            samples.setdefault(each.protocol, []).append(sample)
        notes = [f"seed {each.seed}: {each.note}" for each in mine if each.note]
        failure = failures.get(method, " ".join(dict.fromkeys(notes)))
        if mine or failure:
            yield ComparisonRow(
                method=method,
                label=mine[0].label if mine else REFERENCES[method.removeprefix(_REFERENCE)].label,
                samples=samples,
                note=failure,
                differences={} if method == order[0] else differences_of(own, mine, at),
            )
