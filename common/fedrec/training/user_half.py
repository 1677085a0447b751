"""Apply a plan to one party's users: their tables, memory, scores and training.

Measuring (`evaluator`) builds on it. `Learner` composes the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms.algorithm import RoundStart
from fedrec.algorithms.cohort import Chunk, Cohort
from fedrec.algorithms.grid import RoundSums, SumsShape
from fedrec.algorithms.trained import TrainedAlgorithm, first_scores
from fedrec.algorithms.whole_decay import most_steps
from fedrec.data.splits import UserSplit
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import Protocol
from fedrec.evaluation.protocols import Ranking
from fedrec.model.state import PrivateState, SharedState
from fedrec.model.tables import array_of, room_in, table_bytes
from fedrec.plan.algorithm import accelerator_of
from fedrec.plan.travelling_rows import OwnRows
from fedrec.settings.schema import ClientSettings
from fedrec.tensor_products import on_threads
from fedrec.training.device import DeviceTables, choose_device, memory_on, open_tables
from fedrec.training.executors.executor import (
    Executor,
    MeasureJob,
    Measures,
    Scoring,
)
from fedrec.training.executors.processes import Workers, executor_of
from fedrec.training.server_half import ServerHalf
from fedrec.training.trainer import BlockRoom

_PARTS_OF_INITIAL_TABLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources of this machine that training may use.

    Attributes:
        memory_mib: the memory for a chunk of users in training on a processor. Larger private
            tables are kept in files.
        threads: the number of CPU threads, or 0 for torch's own number.
        scratch: the folder for files, with private tables in its `blocks`, or None for temporary
            files.
        table_bytes: the memory for private tables. Larger ones are kept in files. 0 for all of
            `memory_mib`.
        workers: the number of processes, or the executor that learners share. Its owner closes it.
        device_memory_mib: the memory of a CUDA device for training, or 0 for a share of its free
            memory.
        n_learners: the number of learners in this process that keep tables on the device, including
            this one.
    """

    memory_mib: int = 2048
    threads: int = 0
    scratch: Path | None = None
    table_bytes: int = 0
    workers: Workers | Executor = 1
    device_memory_mib: int = 0
    n_learners: int = 1

    @classmethod
    def of(cls, client: ClientSettings) -> Resources:
        """Return the limits of a machine's settings, except for workers and files."""
        return cls(
            memory_mib=client.memory_mib,
            threads=client.threads,
            device_memory_mib=client.device_memory_mib,
        )


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made(Generic[T]):
    """A value that is kept, and the very objects that it was made from."""

    source: tuple[object, ...]
    value: T

    def is_from(self, *source: object) -> bool:
        """Return whether the value was made from these objects, compared by identity."""
        return all(one is other for one, other in zip(self.source, source, strict=True))


class UserHalf:
    """Apply a plan to one party's users.

    Args:
        server: the same plan for the shared model.
        device: auto, cpu, cuda or cuda:N.
        also: further protocols to measure under, if one process has all users.
        measure_withheld: also measure metrics that aren't released, if one process has all users.

    Attributes:
        executor: the executor of training.
        protocols: the protocols to measure under, the plan's first.
        measures: whether the model is measured at all.
        device_bytes: the memory of the device for training, or 0 on a processor. Half of it is for
            blocks of users in training, with the model. Three eighths are for the samples and
            private rows of their chunk, and one eighth for private tables that stay there.
    """

    def __init__(
        self,
        server: ServerHalf,
        *,
        device: str,
        resources: Resources,
        also: Sequence[Protocol] = (),
        measure_withheld: bool = False,
    ) -> None:
        self.server, plan = server, server.plan
        self._algorithm = server.algorithm
        self.protocols = tuple(dict.fromkeys((plan.evaluation.protocol, *also)))
        self.measures = measure_withheld or server.layout.mechanism is None
        self.device = choose_device(device)
        self.accelerator = accelerator_of(plan)
        self._threads = resources.threads
        self.memory_bytes = resources.memory_mib << 20
        self.room = room_in(resources.scratch, resources.table_bytes or self.memory_bytes)
        self.device_bytes = memory_on(self.device, resources.device_memory_mib)
        share = self.device_bytes // 8 // resources.n_learners if self.device_bytes else None
        self.on_device = DeviceTables(self.device, share)
        self._block_room: BlockRoom | None = None
        # One for measuring and one for training, if a client's own floor makes them differ.
        self._cohorts: dict[bool, _Made[Cohort]] = {}
        self._fresh: dict[bool, _Made[PrivateState]] = {}
        workers = resources.workers
        self.executor = (
            workers
            if isinstance(workers, Executor)
            else executor_of(workers, threads=resources.threads, folder=resources.scratch)
        )

    def on_its_threads(self) -> AbstractContextManager[None]:
        """Let torch compute on this learner's threads, without affecting other learners."""
        return on_threads(self._threads)

    def close(self) -> None:
        """End worker processes, if there are any."""
        self.executor.close()

    def initial_private(self, users: UserSplit) -> PrivateState:
        """Return private parameters of users that have never trained."""
        keys = users.user_keys()
        widths = self._algorithm.derived.private_widths
        if self.room.is_enough_for(len(keys), widths):
            return self._begun(keys)
        tables = self.room.new(len(keys), widths)
        part_bytes = self.room.memory_bytes // _PARTS_OF_INITIAL_TABLES
        at_once = max(1, part_bytes // max(1, table_bytes(1, widths)))
        for begin in range(0, len(keys), at_once):
            part = self._begun(keys[begin : begin + at_once])
            for name, values in part.tensors.items():
                tables[name].write(begin + np.arange(len(values)), array_of(values))
        return PrivateState.of({name: table.finish() for name, table in tables.items()})

    def _begun(self, keys: NDArray[np.int64]) -> PrivateState:
        """Return the private parameters of some users, with their first scores."""
        algorithm = self._algorithm
        begun = algorithm.derived.initial_private(keys)
        if algorithm.kept_scores and len(keys):
            assert isinstance(algorithm, TrainedAlgorithm)
            tensors = begun.arrays()
            tensors[algorithm.kept_scores][:] = first_scores(algorithm, tensors)
        return begun

    def sums_shape(self, shared: SharedState) -> SumsShape:
        """Return the shape of the sums of a round that starts from a version."""
        mechanism = self.server.layout.mechanism
        return SumsShape(
            tensors=self.server.travelling.layout("train", shared).tensors,
            n_items=len(self.server.active_items(shared)),
            maximum_users=self.server.layout.maximum_users,
            counts_rows=self._algorithm.derived.counts_rows,
            longest=None if mechanism is None else mechanism.bound,
            most_steps=most_steps(self._algorithm)
            if isinstance(self._algorithm, TrainedAlgorithm)
            else 0,
        )

    def chunks(
        self, cohort: Cohort, participating: NDArray[np.bool_] | None = None
    ) -> Iterator[Chunk]:
        """Yield the users that train, in chunks that fit the memory for training."""
        return cohort.chunks(
            participating=participating,
            steps=self._algorithm.steps,
            bytes_per_user=self._algorithm.bytes_per_user,
            memory_bytes=self.chunk_bytes,
            device=self.device,
        )

    @property
    def chunk_bytes(self) -> int:
        """The memory for a chunk's samples, private rows or scores, on their device."""
        return 3 * self.device_bytes // 8 if self.device_bytes else self.memory_bytes

    def block_room(self, start: RoundStart, sums: RoundSums) -> BlockRoom | None:
        """Return how many users train on the device at once, or None on a processor."""
        if not self.device_bytes or not isinstance(self._algorithm, TrainedAlgorithm):
            return None
        room = self._block_room
        if room is None or room.n_items != len(start.active):
            room = BlockRoom(self._algorithm, start, sums, self.device_bytes // 2)
            self._block_room = room
        return room

    def refreshed(
        self,
        shared: SharedState,
        users: UserSplit,
        private: PrivateState,
        own_rows: OwnRows = None,
    ) -> PrivateState:
        """Return private parameters that belong to this version (see `Algorithm.refresh`).

        Args:
            own_rows: the rows that they may depend on.

        Raises:
            TrainingError: a user's parameters can't be computed from this version.
        """
        if not self._algorithm.refreshes:
            return private
        if isinstance(self._algorithm, TrainedAlgorithm):
            # These score all items from trained rows, and contain no row that is left out.
            own_rows = None
        known = self._fresh.get(own_rows is None)
        if known is not None and known.is_from(users, shared, own_rows):
            return known.value
        cohort = self.cohort(shared, users, own_rows)
        start = self._algorithm.derived.start(shared, cohort.active, 0, self.device)
        tables = open_tables(private, self.room, self.on_device)
        with self.on_its_threads():
            for chunk in self.chunks(cohort):
                own = tables.take(chunk.user_index)
                tables.put(chunk.user_index, self._algorithm.refresh(chunk, start, own))
        fresh = tables.finish()
        if not tables.finite:
            raise TrainingError(
                f"The private parameters of {len(users)} users cannot be solved. A system is "
                "singular, or a value of the published model isn't finite.",
                remedy=self._algorithm.about.advice.divergence_remedy,
            )
        self._fresh[own_rows is None] = _Made(source=(users, shared, own_rows), value=fresh)
        return fresh

    def cohort(self, shared: SharedState, users: UserSplit, own_rows: OwnRows = None) -> Cohort:
        """Return the users' training tables for the active items, made once.

        Args:
            own_rows: the rows that the users' sums may cover. An algorithm that trains uses only
                these rows, so no other row is drawn as a negative or shrinks. An algorithm whose
                sums couple all rows uses all of them, as if the other items had no holders.
        """
        source = (users, shared.last_counted, own_rows)
        known = self._cohorts.get(own_rows is None)
        if known is not None and known.is_from(*source):
            return known.value
        active = self.server.active_items(shared)
        scarce = None
        if own_rows is not None and isinstance(self._algorithm, TrainedAlgorithm):
            active = active[own_rows[active]]
        elif own_rows is not None:
            scarce = ~own_rows[active]
        if shared.recounted is not None and not self._algorithm.derived.counts_rows:
            # Their rows would cover fewer users than an opened row may cover.
            few = shared.recounted[active] < self.server.plan.federation.minimum_item_users
            scarce = few if scarce is None else few | scarce
        cohort = Cohort(
            users,
            active=active,
            n_items=self.server.n_items,
            exclude_held_out=self.server.plan.evaluation.protocol == "paper",
            needs_negatives=self._algorithm.derived.negatives_per_positive > 0,
            left_out=scarce,
        )
        self._cohorts[own_rows is None] = _Made(source=source, value=cohort)
        return cohort

    def score_blocks(
        self, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
        """Yield (user positions, scores over the whole catalogue), with -inf for inactive items."""
        active = torch.from_numpy(self.server.active_items(shared)).to(self.device)
        for rows, found in self.active_scores(
            shared, users, private, n_columns=self.server.n_items
        ):
            scores = torch.full((len(rows), self.server.n_items), -torch.inf, device=self.device)
            scores[:, active] = found
            yield rows, scores

    def active_scores(
        self,
        shared: SharedState,
        users: UserSplit,
        private: PrivateState,
        *,
        n_columns: int = 0,
    ) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
        """Yield (user positions, scores of the active items, float32 (n_rows, n_active)).

        Args:
            n_columns: the number of a user's scores that must fit into memory, by default the
                active ones.
        """
        scoring = self._scoring(shared, users, private)
        for rows in scoring.parts(np.arange(len(users)), self.chunk_bytes, n_columns=n_columns):
            with self.on_its_threads():
                scores = scoring.scores(rows)
            yield rows, scores

    def measured(
        self,
        shared: SharedState,
        users: UserSplit,
        private: PrivateState,
        ranking: Ranking,
        measures: Measures,
    ) -> NDArray[np.int64]:
        """Return the users' sums in the form of `Measures.empty`."""
        job = MeasureJob(
            scoring=self._scoring(shared, users, private),
            cohort=self.cohort(shared, users),
            ranking=ranking,
            measures=measures,
            memory_bytes=self.chunk_bytes,
        )
        with self.on_its_threads():
            return self.executor.measure(job)

    def _scoring(self, shared: SharedState, users: UserSplit, private: PrivateState) -> Scoring:
        cohort = self.cohort(shared, users)
        return Scoring(
            algorithm=self._algorithm,
            start=self._algorithm.derived.start(shared, cohort.active, 0, self.device),
            tables=cohort.tables,
            private=self.refreshed(shared, users, private),
            on_device=self.on_device,
        )

    def recommend(
        self,
        shared: SharedState,
        users: UserSplit,
        private: PrivateState,
        user_index: int,
        n: int,
        *,
        exclude_seen: bool = True,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the n best item rows for a user, best first, and their scores.

        If a user's vector is computed from its history, the whole history is used, including
        held-out items.
        """
        rows = np.array([user_index])
        whole = users.select(rows).whole()
        own = users.select(rows) if self._algorithm.derived.keeps_vectors else whole
        one = private.rows(rows)
        ((_, scores),) = self.score_blocks(shared, own, one)
        row = scores[0].cpu().numpy()
        if exclude_seen:
            row[whole.train_items] = -np.inf
        best = np.argsort(-row, kind="stable")[: min(n, int(np.isfinite(row).sum()))]
        return best, row[best]
