"""Train and measure a party's users: the interface, and the plain loops in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.algorithm import Algorithm
from fedrec.algorithms.declarations import Shapes, SumNoise
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.tensor_products import one_thread
from fedrec.training import fitting
from fedrec.training.device import DeviceTables, open_tables
from fedrec.training.fitting import fit_of
from fedrec.updates.settings import UpdateSettings

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.accelerators import Accelerator
    from fedrec.algorithms.algorithm import RoundStart
    from fedrec.algorithms.cohort import Cohort
    from fedrec.algorithms.grid import RoundSums, SumsShape
    from fedrec.model.state import PrivateState
    from fedrec.model.tables import TableRoom
    from fedrec.training.blocks import Room
    from fedrec.training.executors.measuring import MeasureJob


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


_COMPILED_BYTES = 128 << 20
"""The memory of users that compiled code trains at once.

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
            memory_bytes = min(memory_bytes, _COMPILED_BYTES)
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
