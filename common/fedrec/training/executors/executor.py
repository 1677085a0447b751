"""Train and measure a party's users: the interface, and the plain loops in this process."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms.algorithm import Algorithm, RoundStart
from fedrec.algorithms.cohort import Cohort, CohortTables
from fedrec.algorithms.declarations import Shapes, SumNoise
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.errors import ERRORS, FedrecError, InternalError
from fedrec.evaluation.metrics import RANK_FIELDS, Protocol, Split, rank_values
from fedrec.evaluation.protocols import Ranking
from fedrec.model.state import PrivateState
from fedrec.model.tables import table_bytes
from fedrec.telemetry import logger_of
from fedrec.tensor_products import one_thread
from fedrec.training import fitting
from fedrec.training.device import DeviceTables, open_tables
from fedrec.training.fitting import fit_of
from fedrec.updates.update import UpdateSettings

if TYPE_CHECKING:
    from fedrec.algorithms.accelerators import Accelerator
    from fedrec.algorithms.grid import RoundSums, SumsShape
    from fedrec.model.tables import TableRoom
    from fedrec.training.blocks import Room


CPU = torch.device("cpu")


def can_be_made_again(algorithm: Algorithm) -> bool:
    """Return whether another process can import the class, unlike one from a notebook's cell."""
    kind = type(algorithm)
    return kind.__module__ != "__main__" and "<locals>" not in kind.__qualname__


def recipe_of(algorithm: Algorithm) -> dict[str, Any]:
    """Return the values that `algorithm_from` needs, as JSON."""
    return {
        "module": type(algorithm).__module__,
        "name": type(algorithm).__qualname__,
        "settings": algorithm.settings.model_dump(mode="json"),
        "shapes": asdict(algorithm.shapes)
        | {"update": algorithm.shapes.update.model_dump(mode="json")},
    }


def algorithm_from(recipe: Mapping[str, Any]) -> Algorithm:
    """Return an algorithm equal to the one behind a recipe."""
    kind: type[Algorithm] = attrgetter(recipe["name"])(import_module(recipe["module"]))
    shapes = dict(recipe["shapes"])
    shapes["update"] = UpdateSettings.model_validate(shapes["update"])
    shapes["noise"] = shapes["noise"] and SumNoise(**shapes["noise"])
    return kind(kind.settings_type.model_validate(recipe["settings"]), Shapes(**shapes))


def arrays_of(start: RoundStart) -> dict[str, NDArray[Any]]:
    """Return the arrays of a start by name, for `start_from`."""
    arrays = {f"shared.{name}": values.cpu().numpy() for name, values in start.shared.items()}
    arrays["active"] = start.active.cpu().numpy()
    if start.basis is not None:
        arrays["basis"] = start.basis.cpu().numpy()
    return arrays


def numbers_of(start: RoundStart) -> dict[str, Any]:
    """Return the other values of a start, as JSON, for `start_from`."""
    return {
        "round": start.round,
        "n_items": start.n_items,
        "scalars": dict(start.scalars),
        "party_key": start.party_key,
    }


def start_from(
    numbers: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    device: torch.device = CPU,
) -> RoundStart:
    """Return the start with these values, on a device."""
    tensors = {name: torch.from_numpy(own).to(device) for name, own in arrays.items()}
    active, basis = tensors.pop("active"), tensors.pop("basis", None)
    return RoundStart(
        round=numbers["round"],
        shared={name.removeprefix("shared."): own for name, own in tensors.items()},
        n_items=numbers["n_items"],
        active=active,
        scalars=numbers["scalars"],
        basis=basis,
        party_key=numbers["party_key"],
    )


_LOG = "fedrec.training"


def failure_of(error: Exception) -> dict[str, Any]:
    """Return a worker's error as JSON, for `error_of`."""
    return {
        "say": "failed",
        "error": type(error).__name__,
        "message": error.message if isinstance(error, FedrecError) else str(error),
        "remedy": error.remedy if isinstance(error, FedrecError) else "",
        "known": isinstance(error, FedrecError),
        "where": traceback.format_exc(),
    }


def error_of(failure: Mapping[str, Any], words: str = "") -> FedrecError:
    """Return the error of a worker as an error of this process, and log its traceback.

    Args:
        words: the end of the worker's stderr.
    """
    logger_of(_LOG).warning("worker process failed", where=failure["where"], said=words)
    kinds = {kind.__name__: kind for kind in ERRORS.values()}
    kind = kinds.get(failure["error"]) if failure["known"] else None
    if kind is not None:
        return kind(failure["message"], remedy=failure["remedy"])
    return InternalError(
        f"A worker process failed: {failure['error']}: {failure['message']}.",
        remedy='Its traceback is in the log. Set client.engine = "local" and client.workers = 1 '
        "to train in this process.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One round's training of one party's users.

    Attributes:
        accelerator: the compiled code that trains on a CPU in place of the trainer, or None.
        start: the model that all users start from.
        participating: the users that train, bool (n_users,), or None for all.
        private: the users' refreshed private tables.
        sums: the sums that users' changes are added to.
        memory_bytes: the memory for users in training, under every executor.
        room: the memory or files of private tables.
        on_device: the private tables on the device. It also names the device.
        block_room: the number of users that train there at once, given the model and the sums.
    """

    algorithm: Algorithm
    accelerator: Accelerator | None
    start: RoundStart
    cohort: Cohort
    participating: NDArray[np.bool_] | None
    private: PrivateState
    sums: SumsShape
    memory_bytes: int
    room: TableRoom
    on_device: DeviceTables
    block_room: Callable[[RoundStart, RoundSums], Room | None]

    @property
    def device(self) -> torch.device:
        """The device of training."""
        return self.on_device.device


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The result of a job.

    Attributes:
        sums: the sums of the users' changes.
        metrics: (participants, loss, clipped values, clipped users), int64 (4,).
        private: all users' tables. Users that didn't train keep theirs.
        finite: whether all values of the tables are finite.
    """

    sums: RoundSums
    metrics: NDArray[np.int64]
    private: PrivateState
    finite: bool


class Executor(ABC):
    """Carry out jobs, one after the other."""

    @abstractmethod
    def train(self, job: Job) -> JobResult:
        """Train a job's users.

        Raises:
            FedrecError: the users couldn't be trained. The caller checks for diverged values.
        """

    @abstractmethod
    def measure(self, job: MeasureJob) -> NDArray[np.int64]:
        """Measure a job's users, and return their sums in the form of `Measures.empty`.

        Raises:
            FedrecError: the users couldn't be measured.
        """

    def close(self) -> None:  # noqa: B027 (an executor may have nothing to end)
        """End everything that the executor started. The next job starts it again."""


_CACHED_BYTES = 128 << 20
"""The memory of users that compiled code trains, or that a processor ranks, at once.

More isn't faster, and this little is reused by the next users, without new memory."""


class SerialExecutor(Executor):
    """Train users in chunks, one after the other, in this process."""

    def train(self, job: Job) -> JobResult:
        """Train a job's users (see `Executor.train`)."""
        algorithm, device = job.algorithm, job.device
        sums = job.sums.empty(device)
        fit = fit_of(algorithm, job.start, sums, job.accelerator, job.block_room(job.start, sums))
        tables = open_tables(job.private, job.room, job.on_device)
        memory_bytes = job.memory_bytes
        if job.accelerator is not None and device.type == "cpu":
            memory_bytes = min(memory_bytes, _CACHED_BYTES)
        metrics = np.zeros(4, dtype=np.int64)
        # torch's threads have short work here. If they then waited for more, they would take
        # processors from the compiled threads.
        with one_thread() if isinstance(algorithm, TrainedAlgorithm) else nullcontext():
            for chunk in job.cohort.chunks(
                participating=job.participating,
                steps=algorithm.steps,
                bytes_per_user=algorithm.bytes_per_user,
                memory_bytes=memory_bytes,
                device=device,
            ):
                result = fit(chunk, tables.take(chunk.user_index))
                tables.put(chunk.user_index, result.private)
                metrics += fitting.training_sums(result.loss, result.clipped)
        private = tables.finish()
        return JobResult(sums=sums, metrics=metrics, private=private, finite=tables.finite)

    def measure(self, job: MeasureJob) -> NDArray[np.int64]:
        """Measure a job's users (see `Executor.measure`)."""
        return job.run()


BYTES_PER_SCORE = 32
"""The memory for one user's score of an item during ranking: scores, their source and masks, and
those of the block before, while they are in use."""
_SECONDS_A_SCORE = 5e-9


def seconds_of_ranking(n_users: int, n_items: int) -> float:
    """Return the estimated time on one processor to rank users' held-out items of one split."""
    return n_users * n_items * _SECONDS_A_SCORE


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Score users on the active items.

    Attributes:
        start: the model.
        tables: the users' training items.
        private: their private tables, refreshed for the model. Those that aren't read may be
            missing.
    """

    algorithm: Algorithm
    start: RoundStart
    tables: CohortTables
    private: PrivateState
    on_device: DeviceTables

    def parts(
        self, rows: NDArray[np.int64], memory_bytes: int, *, n_columns: int = 0
    ) -> Iterator[NDArray[np.int64]]:
        """Cut user positions into parts whose scores fit the memory.

        Args:
            n_columns: the number of a user's scores that must fit, by default the active ones.
        """
        widths = self.private.widths()
        wanted = {name: widths[name] for name in self.algorithm.scoring if name in widths}
        # A user's own rows when they are read, when they move to the device, and a working copy.
        n_scores = max(n_columns or self.tables.n_items, 1)
        per_user = BYTES_PER_SCORE * n_scores + 3 * table_bytes(1, wanted)
        at_once = max(16, memory_bytes // per_user)
        for begin in range(0, len(rows), at_once):
            yield rows[begin : begin + at_once]

    def scores(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """Return some users' scores of the active items, float32 (n_rows, n_active)."""
        own = self.on_device.rows(self.private, rows, self.algorithm.scoring)
        chunk = self.tables.chunk_of(rows, self.on_device.device)
        return self.algorithm.scores(chunk, self.start, own)


@dataclass(frozen=True, slots=True)
class Measures:
    """Choose the sums of ranks that measuring returns.

    Attributes:
        at: the K of HR@K.
    """

    protocols: tuple[Protocol, ...]
    splits: tuple[Split, ...]
    at: int

    def empty(self) -> NDArray[np.int64]:
        """Return sums of no users, int64 (n_protocols, n_splits, len(RANK_FIELDS))."""
        return np.zeros((len(self.protocols), len(self.splits), len(RANK_FIELDS)), np.int64)

    def of(
        self,
        scoring: Scoring,
        ranking: Ranking,
        rows: NDArray[np.int64],
        memory_bytes: int,
    ) -> NDArray[np.int64]:
        """Return the sums of some users in the form of `empty`."""
        found, active = self.empty(), scoring.start.active.cpu().numpy()
        if scoring.on_device.device == CPU:
            memory_bytes = min(memory_bytes, _CACHED_BYTES)
        for part in scoring.parts(rows, memory_bytes):
            scores = scoring.scores(part)
            for sums, protocol in zip(found, self.protocols, strict=True):
                for own, split in zip(sums, self.splits, strict=True):
                    ranks = ranking.ranks(scores, part, split, protocol, active)
                    own += rank_values(ranks, self.at).sum(0)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureJob:
    """The measuring of one model on one party's users.

    Attributes:
        cohort: the users that are scored.
        ranking: the same users' held-out items.
        memory_bytes: the memory for scores, under every executor.
    """

    scoring: Scoring
    cohort: Cohort
    ranking: Ranking
    measures: Measures
    memory_bytes: int

    @property
    def estimated_seconds(self) -> float:
        """The estimated time on one processor: 5 ns for ranking a score once."""
        n_ranked = len(self.measures.protocols) * len(self.measures.splits)
        return n_ranked * seconds_of_ranking(self.cohort.n_users, len(self.cohort.active))

    def run(self) -> NDArray[np.int64]:
        """Measure all users in this process."""
        rows = np.arange(self.cohort.n_users)
        return self.measures.of(self.scoring, self.ranking, rows, self.memory_bytes)
