"""Training one party's users in one round: chunk by chunk into integer sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from fedrec.training.learner import Learner

__all__ = ["LocalRound", "train_locally"]

_MAXIMUM_CLIPPED = 1 << 20
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
    learner: Learner,
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
    cohort = learner.cohort(shared, users)
    private = learner.refreshed(shared, users, private)
    start = replace(
        learner.algorithm.start(shared, cohort.active, number, learner.device),
        party_key=cohort.party_key,
    )
    found = learner.engine.train(
        Job(
            algorithm=learner.algorithm,
            accelerator=learner.accelerator,
            start=start,
            cohort=cohort,
            participating=participating,
            private=private,
            sums=learner.sums_shape(shared),
            memory_bytes=learner.chunk_bytes,
            room=learner.room,
            on_device=learner.on_device,
            block_room=learner.block_room,
        )
    )
    sums, trained = found.sums, found.private
    n_idle_clipped = 0
    if isinstance(learner.algorithm, TrainedAlgorithm):
        n_idle_clipped = sums.settle(
            decaying(learner.algorithm, start), shrinking(learner.algorithm, start)
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
            remedy=learner.algorithm.about.divergence_remedy,
        )
    changes = {
        tensor.name: sums[tensor.name].change.cpu().numpy().reshape(-1, *tensor.shape[1:])
        for tensor in learner.layout.tensors
    }
    counts = np.zeros(len(cohort.active), dtype=np.int64)
    if learner.layout.mechanism is not None:
        # Clipped is who was shortened as a whole.
        metrics[3] = sums.n_shrunk
        return LocalRound(changes=changes, counts=counts, private=trained, metrics=metrics)
    counts = sums.counts.cpu().numpy()
    changes, n_clipped = learner.algorithm.compress(changes, counts)
    n_clipped += n_idle_clipped
    changes |= learner.graded(shared, users, private)
    metrics[2] = min(metrics[2] + n_clipped, n_trained * MAXIMUM_CLIPPED)
    return LocalRound(changes=changes, counts=counts, private=trained, metrics=metrics)
