"""Measuring the model and its references on one party's users, as sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit
from fedrec.evaluation.metrics import METRIC_NAMES, SPLITS, Scorer, rank_values
from fedrec.evaluation.protocols import held_out_ranks
from fedrec.training.samplers import draw_negatives
from fedrec.training.state import PrivateState, SharedState

if TYPE_CHECKING:
    from fedrec.training.learner import Learner

__all__ = ["Evaluator"]

_COUNTED_ROUNDS = 30
"""Rounds whose negatives the know-nothing counter looks at; more change nothing."""


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
    ) -> NDArray[np.int64]:
        """Return the metrics segment with this party's ranking sums."""
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
            metrics += self._of_model("local", *self._train_alone(start_shared, users, start))
        return metrics

    def _train_alone(
        self, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> tuple[SharedState, UserSplit, PrivateState]:
        """Return the model that this party's users reach without the others."""
        learner = self._learner
        for round_id in range(1, learner.plan.rounds.total + 1):
            alone = learner.train_alone(round_id, shared, users, private)
            shared, private = alone
        return shared, users, private

    def _of_model(
        self, name: Scorer, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> NDArray[np.int64]:
        metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        for rows, scores in self._learner.score_blocks(shared, private, len(users)):
            metrics += self._sums(name, scores, users.select(rows))
        return metrics

    def _of_popularity(self, shared: SharedState, users: UserSplit) -> NDArray[np.int64]:
        metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        if shared.holders is None:
            return metrics
        holders = torch.from_numpy(shared.holders.astype(np.float32)).to(self._learner.device)
        for rows in np.array_split(np.arange(len(users)), max(1, len(users) // 1024)):
            metrics += self._sums(
                "popularity", holders.expand(len(rows), -1), users.select(rows)
            )
        return metrics

    def _of_counter(
        self, shared: SharedState, users: UserSplit, round_id: int
    ) -> NDArray[np.int64]:
        """Score an item by minus the number of times that it was drawn as a negative."""
        learner = self._learner
        cohort = learner.cohort(shared, users)
        settings = learner.plan.algorithm
        active = torch.from_numpy(cohort.active).to(learner.device)
        metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        for chunk in cohort.chunks(
            participating=None,
            samples_per_positive=1 + settings.negatives_per_positive,
            batch_size=settings.batch_size,
            bytes_per_user=16 * learner.n_items,
            memory_bytes=learner.memory_bytes,
            device=learner.device,
        ):
            drawn = torch.zeros((chunk.n_users, chunk.n_items), device=learner.device)
            sizes = chunk.pointers[1:] - chunk.pointers[:-1]
            for earlier in range(max(1, round_id - _COUNTED_ROUNDS), round_id):
                user, item = draw_negatives(
                    chunk,
                    seed=learner.plan.federation.seed,
                    round_id=earlier,
                    per_user=sizes * settings.negatives_per_positive,
                )
                ones = torch.ones(len(user), device=learner.device)
                drawn.index_put_((user, item), ones, accumulate=True)
            scores = torch.full((chunk.n_users, learner.n_items), -torch.inf, device=learner.device)
            scores[:, active] = -drawn
            chosen = users.select(chunk.user_index.cpu().numpy())
            metrics += self._sums("know_nothing", scores, chosen)
        return metrics

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
