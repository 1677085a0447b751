"""A cluster's worker: train and measure shards of users, and keep nothing between two calls.

A call brings all that it needs and changes nothing, so that after a worker's death the same call
gives the same result on any other worker.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec import __version__
from fedrec.algorithms.accelerators import accelerator_for
from fedrec.algorithms.cohort import CohortTables
from fedrec.algorithms.grid import SumsShape
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.arithmetic import Arithmetic, arithmetic_of
from fedrec.errors import SettingsError
from fedrec.evaluation.protocols import Histories, Ranking
from fedrec.model.state import PrivateState
from fedrec.probes import fingerprint, look
from fedrec.tensor_products import one_thread
from fedrec.training.device import DeviceTables
from fedrec.training.executors.executor import (
    CPU,
    Measures,
    Scoring,
    algorithm_from,
    failure_of,
    start_from,
)
from fedrec.training.fitting import fit_of, training_sums
from fedrec.training.trainer import BlockRoom

Rows = dict[str, NDArray[np.float32]]
"""Users' private rows, by table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a node must have in common with the machine that uses it.

    Attributes:
        version: fedrec's version.
        fingerprint: the fingerprint of the probes, as `fedrec doctor` shows it.
        safe: whether the cluster's traffic needs a token.
    """

    version: str
    arithmetic: Arithmetic
    fingerprint: str
    safe: bool

    @classmethod
    def of_this_process(cls, device: str = "cpu") -> NodeReport:
        """Examine this process and its device. The first time, this takes a second or two.

        Raises:
            SettingsError: this process has no such device.
        """
        return cls(
            version=__version__,
            arithmetic=arithmetic_of(device),
            fingerprint=fingerprint(look()),
            safe=os.environ.get("RAY_AUTH_MODE") == "token",
        )

    def check(self, found: NodeReport, node: str) -> None:
        """Compare a node with this machine.

        Raises:
            SettingsError: it has no token, another fedrec, or computes different bits.
        """
        if not found.safe:
            raise SettingsError(
                f"Node {node} of the Ray cluster runs without a token. Any process that reaches "
                "its ports could read users' histories and run code.",
                remedy="Make a token with `ray get-auth-token --generate`, copy it to every node, "
                "and start Ray there again with RAY_AUTH_MODE=token.",
            )
        if found.version != self.version:
            raise SettingsError(
                f"Node {node} of the Ray cluster has fedrec {found.version}, but this machine has "
                f"{self.version}.",
                remedy="Install the same fedrec on every node, and start Ray there again.",
            )
        if found.arithmetic != self.arithmetic or found.fingerprint != self.fingerprint:
            raise SettingsError(
                f"Node {node} of the Ray cluster computes different bits from this machine: its "
                f"fingerprint is {found.fingerprint}, not {self.fingerprint}. "
                f"{self.arithmetic.difference(found.arithmetic)}".rstrip(),
                remedy="Use nodes with one kind of processor, one kind of device, and the same "
                "packages. `fedrec doctor` shows them on every node.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What all shards of a job have in common.

    Attributes:
        report: the report of the machine whose job it is.
        numbers, arrays: the model (see `start_from`).
        memory_bytes: the memory of one worker for users at once, on its device.
    """

    report: NodeReport
    recipe: Mapping[str, Any]
    numbers: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Told):
    """A round's training.

    Attributes:
        accelerated: whether compiled code trains in place of the trainer.
    """

    accelerated: bool
    sums: SumsShape


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedShard:
    """The result of training a shard.

    Attributes:
        parts, sums_finite, n_shrunk: the users' sums (see `RoundSums.add_parts`).
        metrics: see `JobResult.metrics`.
        own: the private rows of the users that trained, in the order of the tasks.
    """

    parts: dict[str, NDArray[Any]]
    sums_finite: bool
    n_shrunk: int
    metrics: NDArray[np.int64]
    own: Rows


Tasks = tuple[tuple[NDArray[np.int64], int], ...]
"""(positions of users in their shard, the most steps that one of them needs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRanking:
    """The held-out items of a shard's users (see `Ranking`).

    Attributes:
        drawn: their candidates, if they are kept.
    """

    histories: Histories
    n_items: int
    seed: int
    drawn: tuple[NDArray[np.int64], NDArray[np.bool_]] | None


class ShardWorker:
    """Train and measure shards, on one thread of a processor or on one CUDA device."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        # Arguments lie in memory that all processes of a node share. Users' rows are copied from
        # there before they are used.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._report: NodeReport | None = None
        self._device = CPU

    def check(self, expected: NodeReport) -> dict[str, Any] | None:
        """Return why this node can't be used, as a failure, or None."""
        found: dict[str, Any] | None = _told(lambda: self._check(expected))
        return found

    def _check(self, expected: NodeReport) -> None:
        node = socket.gethostname()
        if self._report is None:
            # Ray shows a worker only the device that it reserved for it.
            self._device = self._device_for(expected)
            try:
                self._report = NodeReport.of_this_process(str(self._device))
            except SettingsError as error:
                raise SettingsError(
                    f"Node {node} of the Ray cluster can't train on CUDA: {error.message}",
                    remedy=error.remedy,
                ) from error
        expected.check(self._report, node)

    def _device_for(self, expected: NodeReport) -> torch.device:
        return CPU if expected.arithmetic.device == "cpu" else torch.device("cuda", 0)

    def train(
        self, told: Training, tables: CohortTables, tasks: Tasks, own: Rows
    ) -> TrainedShard | dict[str, Any]:
        """Train some users of a shard, or return the failure.

        Args:
            own: the users' private rows, in the order of the tasks.
        """
        found: TrainedShard | dict[str, Any] = _told(lambda: self._train(told, tables, tasks, own))
        return found

    def _train(self, told: Training, tables: CohortTables, tasks: Tasks, own: Rows) -> TrainedShard:
        # A node that joined later, or this worker's new home after a death, counts, too.
        self._check(told.report)
        algorithm, sums = algorithm_from(told.recipe), told.sums.empty(self._device)
        start = start_from(told.numbers, told.arrays, self._device)
        room = None
        if self._device != CPU and isinstance(algorithm, TrainedAlgorithm):
            # Chunks have three eighths of a device's memory, and blocks have four (see `UserHalf`).
            room = BlockRoom(algorithm, start, sums, told.memory_bytes // 3 * 4)
        accelerator = accelerator_for(algorithm) if told.accelerated else None
        fit = fit_of(algorithm, start, sums, accelerator, room)
        metrics = np.zeros(4, dtype=np.int64)
        new, end = {name: values.copy() for name, values in own.items()}, 0
        with one_thread():
            for members, n_steps in self._chunks(told, tables, tasks):
                begin, end = end, end + len(members)
                private = {
                    name: torch.from_numpy(rows[begin:end]).to(self._device)
                    for name, rows in new.items()
                }
                result = fit(tables.chunk_of(members, self._device, n_steps=n_steps), private)
                for name, values in result.private.items():
                    new[name][begin:end] = values.cpu().numpy()
                metrics += training_sums(result.loss, result.clipped)
        return TrainedShard(
            parts={name: values.cpu().numpy() for name, values in sums.parts.items()},
            sums_finite=sums.finite,
            n_shrunk=sums.n_shrunk,
            metrics=metrics,
            own=new,
        )

    def _chunks(
        self, told: Training, tables: CohortTables, tasks: Tasks
    ) -> Iterator[tuple[NDArray[np.int64], int]]:
        """Cut tasks into users that fit the memory together."""
        bytes_per_user = algorithm_from(told.recipe).bytes_per_user
        for members, n_steps in tasks:
            each = bytes_per_user(tables.n_items, n_steps)
            at_once = max(1, told.memory_bytes // max(each, 1))
            for begin in range(0, len(members), at_once):
                yield members[begin : begin + at_once], n_steps

    def measure(
        self,
        told: Told,
        measures: Measures,
        tables: CohortTables,
        shard: ShardRanking,
        own: Rows,
    ) -> NDArray[np.int64] | dict[str, Any]:
        """Measure all users of a shard, or return the failure.

        Args:
            own: the users' private rows.
        """
        found: NDArray[np.int64] | dict[str, Any] = _told(
            lambda: self._measure(told, measures, tables, shard, own)
        )
        return found

    def _measure(
        self,
        told: Told,
        measures: Measures,
        tables: CohortTables,
        shard: ShardRanking,
        own: Rows,
    ) -> NDArray[np.int64]:
        self._check(told.report)
        scoring = Scoring(
            algorithm=algorithm_from(told.recipe),
            start=start_from(told.numbers, told.arrays, self._device),
            tables=tables,
            private=PrivateState.of(own),
            on_device=DeviceTables(self._device, None),
        )
        ranking = Ranking(
            shard.histories,
            shard.n_items,
            seed=shard.seed,
            device=self._device,
            drawn=shard.drawn
            and (
                torch.from_numpy(shard.drawn[0]).to(self._device),
                torch.from_numpy(shard.drawn[1]).to(self._device),
            ),
        )
        rows = np.arange(len(tables.user_keys))
        return measures.of(scoring, ranking, rows, told.memory_bytes)


def _told(work: Callable[[], Any]) -> Any:
    """Return the result of some work, or its failure.

    Ray would send the error itself, with its arguments in the text.
    """
    try:
        return work()
    except Exception as error:
        return failure_of(error)
