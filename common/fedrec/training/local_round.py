"""Training one party's users in one round: chunk by chunk into integer sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.cohort import Chunk
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.algorithms.whole_decay import decaying, shrinking
from fedrec.data.splits import UserSplit
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import LOSS_BITS, MAXIMUM_LOSS, METRIC_NAMES
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.rows import OwnRows
from fedrec.training.engines.chunk_metrics import MAXIMUM_CLIPPED
from fedrec.training.engines.engine import Job
from fedrec.training.user_half import UserHalf
from fedrec.training.user_tables import open_tables

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
        half.algorithm.start(shared, cohort.active, number, half.device),
        party_key=cohort.party_key,
    )
    found = half.engine.train(
        Job(
            algorithm=half.algorithm,
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
    if isinstance(half.algorithm, TrainedAlgorithm):
        n_idle_clipped = sums.settle(
            decaying(half.algorithm, start), shrinking(half.algorithm, start)
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
            remedy=half.algorithm.about.divergence_remedy,
        )
    changes = {
        tensor.name: sums[tensor.name].change.cpu().numpy().reshape(-1, *tensor.shape[1:])
        for tensor in half.layout.tensors
    }
    counts = np.zeros(len(cohort.active), dtype=np.int64)
    if half.layout.mechanism is not None:
        # Clipped is who was shortened as a whole.
        metrics[3] = sums.n_shrunk
    else:
        counts = sums.counts.cpu().numpy()
        changes, n_clipped = half.algorithm.compress(changes, counts)
        n_clipped += n_idle_clipped
        metrics[2] = min(metrics[2] + n_clipped, n_trained * MAXIMUM_CLIPPED)
    active = half.active_items(shared)
    if len(cohort.active) < len(active):
        place = np.searchsorted(active, cohort.active)
        per_item = {tensor.name for tensor in half.layout.tensors if tensor.per_item}
        changes = {
            name: _among(values, place, len(active)) if name in per_item else values
            for name, values in changes.items()
        }
        counts = _among(counts, place, len(active))
        if half.algorithm.kept_scores:
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
    algorithm = half.algorithm
    assert isinstance(algorithm, TrainedAlgorithm)
    start = algorithm.start(shared, left_out, 0, half.device)
    tables = open_tables(trained, half.room, half.on_device)
    for chunk in chunks:
        own = tables.take(chunk.user_index)
        scores = algorithm.untouched_scores(chunk.n_users, start, own)
        own[algorithm.kept_scores][:, start.active] = scores
        tables.put(chunk.user_index, own)
    return tables.finish()
