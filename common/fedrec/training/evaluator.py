"""Measuring the model and its references on one party's users, as sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import METRIC_NAMES, SPLITS, Scorer, rank_values
from fedrec.evaluation.protocols import held_out_ranks
from fedrec.training.cohort import Chunk, Cohort
from fedrec.training.samplers import draw_negatives
from fedrec.training.state import PrivateState, SharedState

if TYPE_CHECKING:
    from fedrec.training.learner import Learner

__all__ = ["BYTES_PER_SCORE", "Evaluator"]

BYTES_PER_SCORE = 32
"""What a user's score of an item takes while users are ranked: scores, their source and masks, and
those of the block before, as long as somebody looks at it."""

_COUNTED_ROUNDS = 30
"""Rounds whose negatives the know-nothing counter looks at. More make the leak of `paper` only
sharper for users with few interactions, and cost time."""


class Evaluator:
    """Ranks held-out items for a `Learner`'s model and for what it is compared with.

    The references need nothing that leaves the client: popularity comes from the protected item
    counts, `untrained` from the public seed, `local` from training on this party's users alone,
    `know_nothing` from counting which items were drawn as negatives.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def measure(
        self,
        shared: SharedState,
        users: UserSplit,
        private: PrivateState,
        *,
        references: bool,
        round_id: int,
        local: bool = True,
    ) -> NDArray[np.int64]:
        """Return the metrics segment with this party's ranking sums.

        Args:
            references: measure what the model is compared with, too.
            round_id: the round that asks; the know-nothing counter counts the ones before it.
            local: among the references, train this party's users alone. Where one party holds
                everybody that is the federation once more.
        """
        metrics = self._of_model("model", shared, users, private)
        if references:
            learner = self._learner
            start_shared = learner.initial_shared()
            if shared.holders is not None:
                start_shared = start_shared.with_holders(shared.holders)
            start = learner.initial_private(users)
            metrics += self._of_model("untrained", start_shared, users, start)
            metrics += self._of_popularity(shared, users)
            metrics += self._of_counter(shared, users, round_id)
            if local:
                metrics += self._of_local(start_shared, users, start)
        return metrics

    def _of_local(
        self, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> NDArray[np.int64]:
        """Measure the model that this party's users reach without the others.

        Few users can diverge where many do not; then the row stays empty, because a reference
        must not cost the federation its last round.
        """
        learner = self._learner
        try:
            for round_id in range(1, learner.plan.rounds.total + 1):
                shared, private = learner.train_alone(round_id, shared, users, private)
        except TrainingError:
            return np.zeros(len(METRIC_NAMES), dtype=np.int64)
        return self._of_model("local", shared, users, private)

    def _of_model(
        self, name: Scorer, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> NDArray[np.int64]:
        metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        for rows, scores in self._learner.score_blocks(shared, users, private):
            metrics += self._sums(name, scores, users.select(rows))
        return metrics

    def _of_popularity(self, shared: SharedState, users: UserSplit) -> NDArray[np.int64]:
        metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        if shared.holders is None:
            return metrics
        holders = torch.from_numpy(shared.holders.astype(np.float64)).to(self._learner.device)
        for rows in self._parts(np.arange(len(users))):
            metrics += self._sums("popularity", holders.expand(len(rows), -1), users.select(rows))
        return metrics

    def _parts(self, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Cut user positions into parts whose scores fit the memory that training may take."""
        learner = self._learner
        at_once = max(16, learner.memory_bytes // (BYTES_PER_SCORE * max(learner.n_items, 1)))
        for start in range(0, len(rows), at_once):
            yield rows[start : start + at_once]

    def _of_counter(
        self, shared: SharedState, users: UserSplit, round_id: int
    ) -> NDArray[np.int64]:
        """Score an item by minus the number of times that it was drawn as a negative."""
        learner = self._learner
        cohort = learner.cohort(shared, users)
        metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        untrained = np.ones(len(users), dtype=np.bool_)
        if not learner.algorithm.negatives_per_positive:
            return metrics
        for chunk in cohort.chunks(
            participating=None,
            steps=learner.algorithm.steps,
            bytes_per_user=lambda n_active, n_steps: BYTES_PER_SCORE * learner.n_items,
            memory_bytes=learner.memory_bytes,
            device=learner.device,
        ):
            rows = chunk.user_index.cpu().numpy()
            untrained[rows] = False
            drawn = self._times_drawn(chunk, round_id)
            metrics += self._of_draws(cohort, drawn, users.select(rows))
        # Users who never train have no negatives, but count like everybody else.
        for rows in self._parts(np.nonzero(untrained)[0]):
            drawn = torch.zeros((len(rows), len(cohort.active)), device=learner.device)
            metrics += self._of_draws(cohort, drawn, users.select(rows))
        return metrics

    def _times_drawn(self, chunk: Chunk, round_id: int) -> torch.Tensor:
        """Return how often each active item was a user's negative, (n_users, n_active)."""
        plan = self._learner.plan
        drawn = torch.zeros((chunk.n_users, chunk.n_items), device=self._learner.device)
        for earlier in range(max(1, round_id - _COUNTED_ROUNDS), round_id):
            user, item = draw_negatives(
                chunk,
                seed=plan.federation.seed,
                round_id=earlier,
                per_positive=self._learner.algorithm.negatives_per_positive,
            )
            drawn.index_put_((user, item), torch.ones_like(drawn[0, :1]), accumulate=True)
        return drawn

    def _of_draws(self, cohort: Cohort, drawn: torch.Tensor, users: UserSplit) -> NDArray[np.int64]:
        n_items = self._learner.n_items
        scores = torch.full((len(users), n_items), -torch.inf, device=drawn.device)
        scores[:, torch.from_numpy(cohort.active).to(drawn.device)] = -drawn
        return self._sums("know_nothing", scores, users)

    def _sums(self, name: Scorer, scores: torch.Tensor, users: UserSplit) -> NDArray[np.int64]:
        plan = self._learner.plan
        metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        for split in SPLITS:
            ranks = held_out_ranks(
                scores,
                users,
                split,
                protocol=plan.evaluation.protocol,
                seed=plan.federation.seed,
            )
            values = rank_values(ranks, plan.evaluation.at).sum(0)
            first = METRIC_NAMES.index(f"{name}.{split}.users")
            metrics[first : first + 4] = values
        return metrics
