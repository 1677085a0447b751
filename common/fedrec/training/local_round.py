"""Training one party's users in one round: chunk by chunk into integer sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.algorithms.whole_decay import decaying, shrinking
from fedrec.data.splits import UserSplit
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import LOSS_BITS, MAXIMUM_LOSS, METRIC_NAMES
from fedrec.model.state import PrivateState, SharedState
from fedrec.training.engines.chunk_metrics import MAXIMUM_CLIPPED
from fedrec.training.engines.engine import Job
from fedrec.training.user_half import UserHalf

__all__ = ["LocalRound", "train_locally"]

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
) -> LocalRound:
    """Train the participating users, all of them by default, bool (n_users,).

    Args:
        number: what everything that is drawn is drawn from; see `SharedState.number`.

    Raises:
        TrainingError: when values are no longer finite, or every user's loss exploded.
    """
    cohort = half.cohort(shared, users)
    private = half.refreshed(shared, users, private)
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
            sums=half.sums_shape(shared),
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
        return LocalRound(changes=changes, counts=counts, private=trained, metrics=metrics)
    counts = sums.counts.cpu().numpy()
    changes, n_clipped = half.algorithm.compress(changes, counts)
    n_clipped += n_idle_clipped
    metrics[2] = min(metrics[2] + n_clipped, n_trained * MAXIMUM_CLIPPED)
    return LocalRound(changes=changes, counts=counts, private=trained, metrics=metrics)
