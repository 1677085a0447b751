"""What a plan means for one party's users: their tables, memory and scores, and a round's training.

Measuring (`evaluator`) stands on it; `Learner` composes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms.algorithm import RoundStart
from fedrec.algorithms.cohort import Chunk, Cohort
from fedrec.algorithms.grid import RoundSums, SumsShape
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.algorithms.whole_decay import decaying, most_steps, shrinking
from fedrec.data.splits import UserSplit
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import LOSS_BITS, MAXIMUM_LOSS, METRIC_NAMES, Protocol
from fedrec.model.state import PrivateState, SharedState
from fedrec.model.tables import array_of, room_in, table_bytes
from fedrec.plan.algorithm import accelerator_of
from fedrec.plan.travelling_rows import OwnRows
from fedrec.settings.schema import ClientSettings
from fedrec.tensor_products import on_threads
from fedrec.training.device import DeviceTables, choose_device, memory_on, open_tables
from fedrec.training.executors.choosing import Workers, executor_of
from fedrec.training.executors.executor import Executor, Job
from fedrec.training.fitting import MAXIMUM_CLIPPED
from fedrec.training.server_half import ServerHalf
from fedrec.training.trainer import BlockRoom

BYTES_PER_SCORE = 32
"""What a user's score of an item takes while users are ranked: scores, their source and masks, and
those of the block before, as long as somebody looks at it."""

_PARTS_OF_INITIAL_TABLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What training may take of this machine.

    Attributes:
        memory_mib: memory that a chunk of users may take while it trains on a processor; private
            tables that take more lie in files.
        threads: CPU threads, 0 for as many as torch has.
        scratch: folder for files, private tables in its `blocks`; None for temporary ones.
        table_bytes: private tables that take more lie in files; 0 for all of `memory_mib`.
        workers: processes that train, or the executor that learners share. Their owner closes it.
        device_memory_mib: memory of a CUDA device that training may take; 0 for a share of what
            is free there.
        beside: learners of this process that keep tables on the device, this one included.
    """

    memory_mib: int = 2048
    threads: int = 0
    scratch: Path | None = None
    table_bytes: int = 0
    workers: Workers | Executor = 1
    device_memory_mib: int = 0
    beside: int = 1

    @classmethod
    def of(cls, client: ClientSettings) -> Resources:
        """Return what a machine's settings allow, but for workers and files."""
        return cls(
            memory_mib=client.memory_mib,
            threads=client.threads,
            device_memory_mib=client.device_memory_mib,
        )


class UserHalf:
    """A plan for one party's users.

    Args:
        server: the same plan for the shared model.
        device: auto, cpu, cuda or cuda:N.
        also: protocols to measure under besides the plan's, where one process holds everybody.
        measure_withheld: measure also what is not released, where one process holds everybody.

    Attributes:
        executor: what trains.
        protocols: under which the model is measured, the plan's first.
        measures: whether it is measured at all.
        device_bytes: memory of the device that training may take; 0 on a processor. Half of it is
            for blocks of users while they train, with what all of them start from; three eighths
            are for the samples and private rows of their chunk, an eighth is for private tables
            that stay there.
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
        share = self.device_bytes // 8 // resources.beside if self.device_bytes else None
        self.on_device = DeviceTables(self.device, share)
        self._block_room: BlockRoom | None = None
        # One for measuring and one for training, where a client's own floor sets them apart.
        self._cohorts: dict[bool, tuple[UserSplit, SharedState, OwnRows, Cohort]] = {}
        self._fresh: dict[bool, tuple[SharedState, UserSplit, OwnRows, PrivateState]] = {}
        workers = resources.workers
        self.executor = (
            workers
            if isinstance(workers, Executor)
            else executor_of(workers, threads=resources.threads, folder=resources.scratch)
        )

    def on_its_threads(self) -> AbstractContextManager[None]:
        """Let torch compute on the threads of this learner, which no other one inherits."""
        return on_threads(self._threads)

    def close(self) -> None:
        """End worker processes, if there are any."""
        self.executor.close()

    def initial_private(self, users: UserSplit) -> PrivateState:
        """Return private parameters of users who have never trained."""
        keys = users.user_keys()
        widths = self._algorithm.private_widths
        if self.room.is_enough_for(len(keys), widths):
            return self._algorithm.initial_private(keys)
        tables = self.room.new(len(keys), widths)
        part_bytes = self.room.memory_bytes // _PARTS_OF_INITIAL_TABLES
        at_once = max(1, part_bytes // max(1, table_bytes(1, widths)))
        for begin in range(0, len(keys), at_once):
            part = self._algorithm.initial_private(keys[begin : begin + at_once])
            for name, values in part.tensors.items():
                tables[name].write(begin + np.arange(len(values)), array_of(values))
        return PrivateState.of({name: table.finish() for name, table in tables.items()})

    def sums_shape(self, shared: SharedState) -> SumsShape:
        """Return what the sums of a round are of that starts from a version."""
        mechanism = self.server.layout.mechanism
        return SumsShape(
            tensors=self.server.travelling.layout("train", shared).tensors,
            n_items=len(self.server.active_items(shared)),
            maximum_users=self.server.layout.maximum_users,
            counts_rows=self._algorithm.counts_rows,
            longest=None if mechanism is None else mechanism.bound,
            most_steps=most_steps(self._algorithm)
            if isinstance(self._algorithm, TrainedAlgorithm)
            else 0,
        )

    def chunks(
        self, cohort: Cohort, participating: NDArray[np.bool_] | None = None
    ) -> Iterator[Chunk]:
        """Yield the users who train, in chunks that fit the memory that training may take."""
        return cohort.chunks(
            participating=participating,
            steps=self._algorithm.steps,
            bytes_per_user=self._algorithm.bytes_per_user,
            memory_bytes=self.chunk_bytes,
            device=self.device,
        )

    @property
    def chunk_bytes(self) -> int:
        """Memory that a chunk's samples, private rows or scores may take where they are."""
        return 3 * self.device_bytes // 8 if self.device_bytes else self.memory_bytes

    def block_room(self, start: RoundStart, sums: RoundSums) -> BlockRoom | None:
        """Return how many users train on the device at once; None on a processor."""
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
        """Return private parameters that belong to this version; see `Algorithm.refresh`.

        Args:
            own_rows: that they may follow from.

        Raises:
            TrainingError: a user's parameters do not follow from this version.
        """
        if not self._algorithm.refreshes:
            return private
        if isinstance(self._algorithm, TrainedAlgorithm):
            # Scores of all items with what was trained: no row that is left out is in them.
            own_rows = None
        known = self._fresh.get(own_rows is None)
        if known is not None and known[0] is shared and known[1] is users and known[2] is own_rows:
            return known[3]
        cohort = self.cohort(shared, users, own_rows)
        start = self._algorithm.start(shared, cohort.active, 0, self.device)
        tables = open_tables(private, self.room, self.on_device)
        with self.on_its_threads():
            for chunk in self.chunks(cohort):
                own = tables.take(chunk.user_index)
                tables.put(chunk.user_index, self._algorithm.refresh(chunk, start, own))
        fresh = tables.finish()
        if not tables.finite:
            raise TrainingError(
                f"The private parameters of {len(users)} users cannot be solved: a system is "
                "singular, or a value of the published model is not finite.",
                remedy=self._algorithm.about.divergence_remedy,
            )
        self._fresh[own_rows is None] = (shared, users, own_rows, fresh)
        return fresh

    def cohort(self, shared: SharedState, users: UserSplit, own_rows: OwnRows = None) -> Cohort:
        """Return the users' training tables for the active items, made once.

        Args:
            own_rows: that the users' sums may be about. An algorithm that trains works on these
                rows alone, so that none of the others is drawn as a negative or shrinks; one whose
                sums couple all rows works on all, as if nobody held an item of the others.
        """
        counted = shared.last_counted
        found = self._cohorts.get(own_rows is None)
        if found is not None:
            known, version, rows, cohort = found
            if known is users and version.last_counted is counted and rows is own_rows:
                return cohort
        active = self.server.active_items(shared)
        scarce = None
        if own_rows is not None and isinstance(self._algorithm, TrainedAlgorithm):
            active = active[own_rows[active]]
        elif own_rows is not None:
            scarce = ~own_rows[active]
        if shared.recounted is not None and not self._algorithm.counts_rows:
            # Their rows would be about fewer than an opened row may be about.
            few = shared.recounted[active] < self.server.plan.federation.minimum_item_users
            scarce = few if scarce is None else few | scarce
        cohort = Cohort(
            users,
            active=active,
            n_items=self.server.n_items,
            exclude_held_out=self.server.plan.evaluation.protocol == "paper",
            needs_negatives=self._algorithm.negatives_per_positive > 0,
            left_out=scarce,
        )
        self._cohorts[own_rows is None] = (users, shared, own_rows, cohort)
        return cohort

    def score_blocks(
        self, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
        """Yield (user positions, scores over the whole catalogue), -inf where inactive."""
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
            n_columns: scores of a user that have to fit into memory; the active ones by default.
        """
        private = self.refreshed(shared, users, private)
        cohort = self.cohort(shared, users)
        start = self._algorithm.start(shared, cohort.active, 0, self.device)
        n_columns = n_columns or len(cohort.active)
        widths = private.widths()
        wanted = {name: widths[name] for name in self._algorithm.scoring if name in widths}
        # A user's own rows as they are read, as they are taken to the device, and a copy in work.
        per_user = BYTES_PER_SCORE * max(n_columns, 1) + 3 * table_bytes(1, wanted)
        at_once = max(16, self.chunk_bytes // per_user)
        for begin in range(0, len(users), at_once):
            rows = np.arange(begin, min(len(users), begin + at_once))
            own = self.on_device.rows(private, rows, self._algorithm.scoring)
            chunk = cohort.chunk_of(rows, self.device)
            with self.on_its_threads():
                scores = self._algorithm.scores(chunk, start, own)
            yield rows, scores

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

        A user whose history stands in for a vector is answered from all of it, the held-out
        items included.
        """
        rows = np.array([user_index])
        whole = users.select(rows).whole()
        own = users.select(rows) if self._algorithm.keeps_vectors else whole
        one = private.rows(rows)
        ((_, scores),) = self.score_blocks(shared, own, one)
        row = scores[0].cpu().numpy()
        if exclude_seen:
            row[whole.train_items] = -np.inf
        best = np.argsort(-row, kind="stable")[: min(n, int(np.isfinite(row).sum()))]
        return best, row[best]


_N_TRAINING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRound:
    """What training left behind.

    Attributes:
        changes: the update's tensors by name, summed over the users who trained, in grid steps;
            those per item have a row for each active one.
        counts: users who touched each active item, int64 (n_active,).
        private: the users' new private parameters.
        metrics: a metrics segment with what training adds to it, int64 (len(METRIC_NAMES),).
    """

    changes: dict[str, NDArray[np.int64]]
    counts: NDArray[np.int64]
    private: PrivateState
    metrics: NDArray[np.int64]


def train_locally(
    half: UserHalf,
    number: int,
    shared: SharedState,
    users: UserSplit,
    private: PrivateState,
    participating: NDArray[np.bool_] | None = None,
    own_rows: OwnRows = None,
) -> LocalRound:
    """Train the participating users, all of them by default, bool (n_users,).

    Args:
        number: what everything that is drawn is drawn from; see `SharedState.number`.
        own_rows: that the sums may be about; the others' are zero.

    Raises:
        TrainingError: when values are no longer finite, or every user's loss exploded.
    """
    cohort = half.cohort(shared, users, own_rows)
    private = half.refreshed(shared, users, private, own_rows)
    start = replace(
        half.server.algorithm.start(shared, cohort.active, number, half.device),
        party_key=cohort.party_key,
    )
    found = half.executor.train(
        Job(
            algorithm=half.server.algorithm,
            accelerator=half.accelerator,
            start=start,
            cohort=cohort,
            participating=participating,
            private=private,
            sums=replace(half.sums_shape(shared), n_items=len(cohort.active)),
            memory_bytes=half.chunk_bytes,
            room=half.room,
            on_device=half.on_device,
            block_room=half.block_room,
        )
    )
    sums, trained = found.sums, found.private
    n_idle_clipped = 0
    if isinstance(half.server.algorithm, TrainedAlgorithm):
        n_idle_clipped = sums.settle(
            decaying(half.server.algorithm, start), shrinking(half.server.algorithm, start)
        )
    metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
    metrics[:_N_TRAINING] = found.metrics
    n_trained, loss = int(metrics[0]), int(metrics[1])
    wrong = ""
    if not sums.finite or not found.finite:
        wrong = "a value is no longer finite"
    elif n_trained and loss >= n_trained * int(MAXIMUM_LOSS * (1 << LOSS_BITS)):
        wrong = f"every user's loss has exploded to {MAXIMUM_LOSS:g} or more"
    if wrong:
        raise TrainingError(
            f"Training diverged in training round {shared.trained + 1} with {len(users)} users: "
            f"{wrong}. The version before this round is intact.",
            remedy=half.server.algorithm.about.divergence_remedy,
        )
    changes = {
        tensor.name: sums[tensor.name].change.cpu().numpy().reshape(-1, *tensor.shape[1:])
        for tensor in half.server.layout.tensors
    }
    counts = np.zeros(len(cohort.active), dtype=np.int64)
    if half.server.layout.mechanism is not None:
        # Clipped is who was shortened as a whole.
        metrics[3] = sums.n_shrunk
    else:
        counts = sums.counts.cpu().numpy()
        changes, n_clipped = half.server.algorithm.compress(changes, counts)
        n_clipped += n_idle_clipped
        metrics[2] = min(metrics[2] + n_clipped, n_trained * MAXIMUM_CLIPPED)
    active = half.server.active_items(shared)
    if len(cohort.active) < len(active):
        place = np.searchsorted(active, cohort.active)
        per_item = {tensor.name for tensor in half.server.layout.tensors if tensor.per_item}
        changes = {
            name: _among(values, place, len(active)) if name in per_item else values
            for name, values in changes.items()
        }
        counts = _among(counts, place, len(active))
        if half.server.algorithm.kept_scores:
            left_out = np.delete(active, place)
            chunks = half.chunks(cohort, participating)
            trained = _scored_at_home(half, shared, left_out, chunks, trained)
    return LocalRound(changes=changes, counts=counts, private=trained, metrics=metrics)


def _among(rows: NDArray[np.int64], place: NDArray[np.int64], n_rows: int) -> NDArray[np.int64]:
    """Return rows at their places among all active ones, the others zero."""
    found = np.zeros((n_rows, *rows.shape[1:]), dtype=rows.dtype)
    found[place] = rows
    return found


def _scored_at_home(
    half: UserHalf,
    shared: SharedState,
    left_out: NDArray[np.int64],
    chunks: Iterator[Chunk],
    trained: PrivateState,
) -> PrivateState:
    """Return users' tables with their scores of items that they trained no row of.

    Nothing of these items leaves the client, but its users may be recommended them: with the
    published row and all that a user trained, as any other item that a user did not touch.

    Args:
        left_out: rows of these items in the catalogue, ascending.
        chunks: the users who trained.
    """
    algorithm = half.server.algorithm
    assert isinstance(algorithm, TrainedAlgorithm)
    start = algorithm.start(shared, left_out, 0, half.device)
    tables = open_tables(trained, half.room, half.on_device)
    for chunk in chunks:
        own = tables.take(chunk.user_index)
        scores = algorithm.untouched_scores(chunk.n_users, start, own)
        own[algorithm.kept_scores][:, start.active] = scores
        tables.put(chunk.user_index, own)
    return tables.finish()
