"""How a run is measured: a method's task and measurements, what trains for them, and the parts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fedrec.data.catalogue import Catalogue
from fedrec.data.splits import UserSplit
from fedrec.durable import write_whole
from fedrec.errors import SettingsError, StorageError
from fedrec.evaluation.metrics import N_CANDIDATES, Protocol, Rates
from fedrec.formats import CHECKPOINT_FILE, check_format, format_number
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import Cells, trained_items
from fedrec.settings.schema import Settings
from fedrec.training.learner import Learner
from fedrec_lab.reports.comparison_table import RESAMPLES, PairedBootstrap, paired_bootstrap
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.simulation.result import SimulationResult, user_ranks
from fedrec_lab.simulation.runner import simulate
from fedrec_lab.simulation.silos_tail import TAIL

BUDGET = 16
"""Settings that each reference may try for one protocol on one set of rows."""


Blocks = Iterator[tuple[NDArray[np.int64], torch.Tensor]]
"""Positions of users, and their scores of all items, -inf for those never recommended."""


class MeasurementStopped(Exception):
    """The measurement was stopped on request, with its progress saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The result of a method under one protocol with one seed, on test.

    Attributes:
        method: a stable name, for programs.
        label: the method's display name.
        chosen: the choice of validation, such as "round 9", or empty if validation chose nothing.
        note: a caveat.
        ranks: the rank of every user's test item, as `kept_ranks` returns them, or empty if
            unknown.
        validation: rates on the validation items, on which the choice was made.
        uninformed: why the version must not be used under noise, or empty if it may.
    """

    method: str
    label: str
    protocol: Protocol
    seed: int
    rates: Rates
    chosen: str = ""
    note: str = ""
    ranks: tuple[float, ...] = ()
    validation: Rates | None = None
    uninformed: str = ""


def kept_ranks(ranks: NDArray[np.float64], at: int) -> tuple[float, ...]:
    """Return expected 0-based ranks, -1 without a test item. A miss has rank K."""
    return tuple(np.minimum(ranks, at).tolist())


def differences_of(
    own: Sequence[Measurement], others: Sequence[Measurement], at: int
) -> dict[Protocol, PairedBootstrap]:
    """Return one method's NDCG minus another's by protocol, where users' ranks are known."""
    found = {}
    for protocol in dict.fromkeys(each.protocol for each in own):
        ranks = [
            np.array([each.ranks for each in side if each.protocol == protocol and each.ranks])
            for side in (own, others)
        ]
        if all(map(len, ranks)):
            found[protocol] = paired_bootstrap(*ranks, at=at, n_resamples=RESAMPLES)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodTask:
    """Data, protocols and seeds for one method.

    Attributes:
        settings: the settings of the run with which it is compared.
        protocols: the protocols under which one training can be measured.
        seeds: the seeds of training and of drawn candidates. A method whose fit depends on no
            seed is fitted once and measured with each of them.
        n_clients: the number of parties among which a federation's users are divided.
        add_lists: takes a method's name, its seed and the scores of its chosen version, for
            metrics of lists. None if they are not asked for.
    """

    settings: Settings
    catalogue: Catalogue
    users: UserSplit
    protocols: tuple[Protocol, ...]
    seeds: tuple[int, ...]
    n_clients: int = 1
    cells: Cells = ()
    budget: int = BUDGET
    folder: Path | None = None
    accept_other_arithmetic: bool = False
    tell: Callable[[str], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False
    add_lists: Callable[[str, int, Blocks], None] | None = None

    @property
    def lists_under(self) -> Protocol:
        """The protocol whose choice has its lists measured: `full` ranks all items, as they do."""
        return "full" if "full" in self.protocols else self.protocols[0]

    @property
    def active(self) -> NDArray[np.int64]:
        """Rows of the items that the federation recommends, ascending: enough users hold them."""
        plan, n_items = self.settings.plan, len(self.catalogue)
        kept = trained_items(plan, self.users, n_items, n_clients=self.n_clients, cells=self.cells)
        return np.nonzero(kept)[0].astype(np.int64)


_FORMAT = "fedrec comparison part"
_VERSION = 3
Part = TypeVar("Part")


class Parts(Generic[Part]):
    """One file for each method, seed and group of protocols, or for each trial and seed.

    Args:
        folder: the run's folder.
        identity: what must be the same for a part to be used again.
        kind: the type of the values in a file.
    """

    def __init__(self, folder: Path, identity: str, kind: type[Part]) -> None:
        self._folder = folder / "parts"
        self._trainings = folder / "trainings"
        self._identity = identity
        self._content: TypeAdapter[tuple[Part, ...]] = TypeAdapter(tuple[kind, ...])  # type: ignore[valid-type]

    def training_folder(self, name: str) -> Path:
        """Return the folder of the part's training checkpoint, which may not exist."""
        return self._trainings / name

    def load(self, name: str) -> tuple[Part, ...] | None:
        """Return a finished part, or None if it is not finished.

        Raises:
            SettingsError: the part belongs to different settings or data.
            StorageError: the part cannot be read.
            VersionMismatch: the part has a different format.
        """
        path = self._folder / f"{name}.json"
        try:
            record = json.loads(path.read_bytes())
            self._check(record, path)
            return self._content.validate_python(record["measurements"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{path} cannot be read: {error}.",
                remedy="Delete it. Its content is measured again.",
            ) from error

    def save(self, name: str, measurements: Sequence[Part]) -> None:
        """Write a part and drop the checkpoint of its training.

        Raises:
            StorageError: the part cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{self._folder} cannot be made: {error}.", remedy="Name a writable folder."
            ) from error
        record = {
            "format": _FORMAT,
            "version": _VERSION,
            "identity": self._identity,
            "measurements": self._content.dump_python(tuple(measurements)),
        }
        content = json.dumps(record, indent=1).encode()
        # A measurement has every user's rank, which only the owner may read.
        write_whole(self._folder / f"{name}.json", content, private=True)
        shutil.rmtree(self._trainings / name, ignore_errors=True)
        if self._trainings.is_dir() and not any(self._trainings.iterdir()):
            self._trainings.rmdir()

    def _check(self, record: dict[str, Any], path: Path) -> None:
        if record["format"] != _FORMAT:
            raise ValueError(f"its format is {record['format']!r}, expected {_FORMAT!r}")
        found = format_number(record.get("version"))
        check_format(found, _VERSION, str(path), anew="start a new run")
        if record["identity"] != self._identity:
            raise SettingsError(
                f"{path} was measured with different settings, data or number of clients.",
                remedy="Resume with the run folder's own resolved.toml, or start a new run.",
            )


_MOST_CELLS = 1 << 27
"""The number of users times items up to which drawing candidates takes seconds."""


def draws_negatives(plan: Plan) -> bool:
    """Return whether the plan's algorithm trains on sampled negatives."""
    return algorithm_of(plan, 1).derived.negatives_per_positive > 0


def protocol_groups(
    protocols: tuple[Protocol, ...], *, negatives: bool
) -> tuple[tuple[Protocol, ...], ...]:
    """Return the protocols in groups that one training can be measured under.

    `paper` leaves the held-out items out of the pool of training negatives. Methods with negatives
    train separately for it, others train once.
    """
    if not negatives:
        return (protocols,) if protocols else ()
    honest = tuple(protocol for protocol in protocols if protocol != "paper")
    leaking = tuple(protocol for protocol in protocols if protocol == "paper")
    return tuple(group for group in (honest, leaking) if group)


def further_protocols(plan: Plan, *, n_users: int, n_items: int) -> tuple[Protocol, ...]:
    """Return further protocols that a simulation measures at hardly any cost.

    `paper` is never among them: with negatives it takes a separate training, without negatives it
    equals `sampled`.
    """
    own = plan.evaluation.protocol
    if plan.evaluation.at > N_CANDIDATES or (own == "paper" and draws_negatives(plan)):
        return ()
    if n_items <= N_CANDIDATES or n_users * n_items > _MOST_CELLS:
        return ()
    honest: tuple[Protocol, ...] = ("full", "sampled")
    return tuple(protocol for protocol in honest if protocol != own)


def train(task: MethodTask, settings: Settings, seed: int) -> SimulationResult:
    """Run a federation with one seed, measured under all of a task's protocols.

    Args:
        settings: the settings of the run. Their protocol and seed are replaced by those of the
            task.

    Raises:
        MeasurementStopped: the task asked to stop. With a folder the training can be resumed.
        TrainingError: training diverged.
    """
    plan_protocol = task.protocols[0]
    if not draws_negatives(settings.plan):
        # Any protocol works, and the settings' own is valid for the algorithm.
        plan_protocol = settings.evaluation.protocol
    changed = settings.model_copy(
        update={
            "federation": settings.federation.model_copy(update={"seed": seed}),
            "evaluation": settings.evaluation.model_copy(update={"protocol": plan_protocol}),
        }
    )
    folder = None if task.folder is None else _checkpoint_folder(task.folder)
    n_rounds = settings.rounds.published

    def report_round(report: RoundReport) -> None:
        task.tell(f"round {report.round}/{n_rounds}")

    result = simulate(
        changed,
        n_clients=task.n_clients,
        cells=task.cells,
        users=task.users,
        catalogue=task.catalogue,
        also=task.protocols,
        folder=folder,
        resume=folder is not None and (folder / CHECKPOINT_FILE).is_file(),
        accept_other_arithmetic=task.accept_other_arithmetic,
        on_round=report_round,
        stop=task.stop,
    )
    if not result.finished:
        raise MeasurementStopped
    return result


def _checkpoint_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def scores_of(result: SimulationResult) -> Blocks:
    """Yield all users' scores under the best version."""
    learner = Learner.of(result.settings.client, result.settings.plan, len(result.catalogue))
    return learner.local.score_blocks(result.best.shared, result.users, result.best.private)


def measurements_of(
    result: SimulationResult, *, method: str = "", label: str = ""
) -> list[Measurement]:
    """Return the measurements of a federation and of the references of its closing round.

    Under the plan's protocol, which chose the version that is kept, the model and popularity have
    their ranks, too.

    Args:
        method, label: take the model's own row alone, under these names.
    """
    table = result.comparison()
    rows = table.rows[:1] if method else table.rows
    empty = result.uninformed
    plan, ranks = result.settings.plan, user_ranks(result)
    known = {plan.algorithm.name: ranks.model, "popularity": ranks.popularity}
    if result.tail is not None:
        known[TAIL] = result.tail.test[plan.evaluation.protocol][1]
    return [
        Measurement(
            method=method or row.method,
            label=label or row.label,
            protocol=protocol,
            seed=sample.seed,
            rates=sample.rates,
            chosen=sample.chosen,
            note="" if method else row.note,
            ranks=kept_ranks(known[row.method], table.at)
            if protocol == plan.evaluation.protocol and row.method in known
            else (),
            validation=result.on_validation(row.method, protocol),
            uninformed="" if empty is None or row is not rows[0] else empty.message,
        )
        for row in rows
        for protocol, samples in row.samples.items()
        for sample in samples
    ]
