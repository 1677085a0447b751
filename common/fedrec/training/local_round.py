"""A round of one party's users: train them, and add up their changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.cohort import Chunk, Cohort
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.algorithms.whole_decay import decaying, shrinking
from fedrec.data.splits import UserSplit
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import LOSS_BITS, MAXIMUM_LOSS, METRIC_NAMES
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.travelling_rows import OwnRows
from fedrec.training.device import open_tables
from fedrec.training.executors.executor import (
    Job,
    JobResult,
)
from fedrec.training.fitting import MAXIMUM_CLIPPED
from fedrec.training.personalising import shown_changes
from fedrec.training.user_half import UserHalf

_N_TRAINING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRound:
    """The result of local training.

    Attributes:
        changes: the update's tensors by name, summed over the trained users, in grid steps. Those
            per item have a row for each active item.
        counts: the number of users that touched each active item, int64 (n_active,).
        private: the users' new private parameters.
        metrics: the metrics segment with the values from training, int64 (len(METRIC_NAMES),).
        trained: the users that trained, bool (n_users,).
    """

    changes: dict[str, NDArray[np.int64]]
    counts: NDArray[np.int64]
    private: PrivateState
    metrics: NDArray[np.int64]
    trained: NDArray[np.bool_]


def train_locally(
    half: UserHalf,
    number: int,
    shared: SharedState,
    users: UserSplit,
    private: PrivateState,
    *,
    participating: NDArray[np.bool_] | None = None,
    own_rows: OwnRows = None,
) -> LocalRound:
    """Train the participating users, bool (n_users,), by default all.

    Args:
        number: the number from which everything is drawn (see `SharedState.number`).
        own_rows: the rows that the sums may cover. Others are zero.

    Raises:
        TrainingError: values are no longer finite, or every user's loss exploded.
    """
    algorithm, layout = half.server.algorithm, half.server.layout
    cohort = half.cohort(shared, users, own_rows)
    private = half.refreshed(shared, users, private, own_rows)
    job = _job(half, number, shared, cohort, private, participating)
    found = half.executor.train(job)
    sums, trained = found.sums, found.private
    n_idle_clipped = 0
    if isinstance(algorithm, TrainedAlgorithm):
        n_idle_clipped = sums.settle(
            decaying(algorithm, job.start), shrinking(algorithm, job.start)
        )
    n_trained, loss, n_clipped, n_clipped_users = map(int, found.metrics)
    _check_converges(half, shared, found, len(users))
    changes = {
        tensor.name: sums[tensor.name].change.cpu().numpy().reshape(-1, *tensor.shape[1:])
        for tensor in layout.tensors
    }
    counts = np.zeros(len(cohort.active), dtype=np.int64)
    if layout.mechanism is not None:
        # Clipped users are those whose change was shortened as a whole.
        n_clipped_users = sums.n_shrunk
    else:
        counts = sums.counts.cpu().numpy()
        n_compressed = 0
        if isinstance(algorithm, TrainedAlgorithm):
            changes, n_compressed = algorithm.sent.compress(changes, counts)
            if algorithm.derived.personalises:
                able = cohort.able(participating)
                changes |= shown_changes(algorithm, users, trained, able, own_rows)
        n_clipped += n_compressed + n_idle_clipped
        n_clipped = min(n_clipped, n_trained * MAXIMUM_CLIPPED)
    metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
    metrics[:_N_TRAINING] = n_trained, loss, n_clipped, n_clipped_users
    active = half.server.active_items(shared)
    if len(cohort.active) < len(active):
        place = np.searchsorted(active, cohort.active)
        per_item = {tensor.name for tensor in layout.tensors if tensor.per_item}
        changes = {
            name: _among(values, place, len(active)) if name in per_item else values
            for name, values in changes.items()
        }
        counts = _among(counts, place, len(active))
        if algorithm.kept_scores:
            left_out = np.delete(active, place)
            chunks = half.chunks(cohort, participating)
            trained = _scored_at_home(half, shared, left_out, chunks, trained)
    return LocalRound(
        changes=changes,
        counts=counts,
        private=trained,
        metrics=metrics,
        trained=cohort.able(participating),
    )


def _job(
    half: UserHalf,
    number: int,
    shared: SharedState,
    cohort: Cohort,
    private: PrivateState,
    participating: NDArray[np.bool_] | None,
) -> Job:
    algorithm = half.server.algorithm
    start = algorithm.derived.start(shared, cohort.active, number, half.device)
    return Job(
        algorithm=algorithm,
        accelerator=half.accelerator,
        start=replace(start, party_key=cohort.party_key),
        cohort=cohort,
        participating=participating,
        private=private,
        sums=replace(half.sums_shape(shared), n_items=len(cohort.active)),
        memory_bytes=half.chunk_bytes,
        room=half.room,
        on_device=half.on_device,
        block_room=half.block_room,
    )


def _check_converges(half: UserHalf, shared: SharedState, found: JobResult, n_users: int) -> None:
    """Raise a `TrainingError` if values are no longer finite, or every user's loss exploded."""
    n_trained, loss = int(found.metrics[0]), int(found.metrics[1])
    if not found.sums.finite or not found.finite:
        wrong = "a value is no longer finite"
    elif n_trained and loss >= n_trained * int(MAXIMUM_LOSS * (1 << LOSS_BITS)):
        wrong = f"every user's loss has exploded to {MAXIMUM_LOSS:g} or more"
    else:
        return
    raise TrainingError(
        f"Training diverged in training round {shared.trained + 1} with {n_users} users: "
        f"{wrong}. The version before this round is intact.",
        remedy=half.server.algorithm.about.advice.divergence_remedy,
    )


def _among(rows: NDArray[np.int64], place: NDArray[np.int64], n_rows: int) -> NDArray[np.int64]:
    """Return rows at their positions among all active ones, with zeros for the others."""
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
    """Return users' tables with their scores of items whose rows they didn't train.

    No data about these items leaves the client, but its users may get them as recommendations. The
    published row is used with all that a user trained, as for any other item that a user didn't
    touch.

    Args:
        left_out: the rows of these items in the catalogue, ascending.
        chunks: the users that trained.
    """
    algorithm = half.server.algorithm
    assert isinstance(algorithm, TrainedAlgorithm)
    start = algorithm.derived.start(shared, left_out, 0, half.device)
    tables = open_tables(trained, half.room, half.on_device)
    for chunk in chunks:
        own = tables.take(chunk.user_index)
        scores = algorithm.untouched_scores(chunk.n_users, start, own)
        own[algorithm.kept_scores][:, start.active] = scores
        tables.put(chunk.user_index, own)
    return tables.finish()
