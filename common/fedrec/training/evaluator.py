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
from fedrec.evaluation.protocols import Protocol, Ranking
from fedrec.model.state import PrivateState, SharedState
from fedrec.training.cohort import Chunk, Cohort
from fedrec.training.samplers import draw_negatives

if TYPE_CHECKING:
    from fedrec.training.learner import Learner

__all__ = ["BYTES_PER_SCORE", "Evaluator", "Segments"]

BYTES_PER_SCORE = 32
"""What a user's score of an item takes while users are ranked: scores, their source and masks, and
those of the block before, as long as somebody looks at it."""

Segments = dict[Protocol, NDArray[np.int64]]
"""A metrics segment for each protocol, summed up in place."""

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
        self._ranking: tuple[UserSplit, Ranking] | None = None

    def measure(
        self,
        shared: SharedState,
        users: UserSplit,
        private: PrivateState,
        *,
        references: bool,
        number: int,
        local: bool = True,
    ) -> NDArray[np.int64]:
        """Return the metrics segment under the plan's protocol; see `measure_all`."""
        protocol = self._learner.plan.evaluation.protocol
        return self.measure_all(
            shared, users, private, references=references, number=number, local=local
        )[protocol]

    def measure_all(
        self,
        shared: SharedState,
        users: UserSplit,
        private: PrivateState,
        *,
        references: bool,
        number: int,
        local: bool = True,
    ) -> Segments:
        """Return the metrics segment with this party's ranking sums, under every protocol.

        Args:
            references: measure what the model is compared with, too.
            number: `SharedState.number`; the know-nothing counter counts the rounds before it.
            local: among the references, train this party's users alone. Where one party holds
                everybody that is the federation once more.
        """
        found: Segments = {
            protocol: np.zeros(len(METRIC_NAMES), dtype=np.int64)
            for protocol in self._learner.protocols
        }
        self._of_model(found, "model", shared, users, private)
        if references:
            learner = self._learner
            start_shared = learner.initial_shared()
            if shared.holders is not None:
                start_shared = start_shared.with_holders(shared.holders)
            start = learner.initial_private(users)
            self._of_model(found, "untrained", start_shared, users, start)
            self._of_popularity(found, shared, users)
            self._of_counter(found, shared, users, number)
            if local:
                self._of_local(found, start_shared, users, start)
        return found

    def gain(self, shared: SharedState, users: UserSplit, private: PrivateState) -> int:
        """Return the sum of users' validation gains under the plan's protocol, as in metrics."""
        evaluation, total = self._learner.plan.evaluation, 0
        active, ranking = self._learner.active_items(shared), self._ranking_of(users)
        for rows, scores in self._learner.active_scores(shared, users, private):
            ranks = ranking.ranks(scores, rows, "validation", evaluation.protocol, active)
            total += int(rank_values(ranks, evaluation.at)[:, 2].sum())
        return total

    def _of_local(
        self, found: Segments, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> None:
        """Measure the model that this party's users reach without the others.

        Few users can diverge where many do not; then the row stays empty, because a reference
        must not cost the federation its last round.
        """
        learner = self._learner
        try:
            shared, private = learner.train_alone(shared, users, private)
        except TrainingError:
            return
        self._of_model(found, "local", shared, users, private)

    def _of_model(
        self,
        found: Segments,
        name: Scorer,
        shared: SharedState,
        users: UserSplit,
        private: PrivateState,
    ) -> None:
        active = self._learner.active_items(shared)
        for rows, scores in self._learner.active_scores(shared, users, private):
            self._add(found, name, scores, users, rows, active)

    def _of_popularity(self, found: Segments, shared: SharedState, users: UserSplit) -> None:
        # Under noise nobody counted; then all items have one number that says nothing.
        if shared.holders is None or self._learner.layout.mechanism is not None:
            return
        holders = torch.from_numpy(shared.holders.astype(np.float64)).to(self._learner.device)
        for rows in self._parts(np.arange(len(users))):
            self._add(found, "popularity", holders.expand(len(rows), -1), users, rows)

    def _parts(self, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Cut user positions into parts whose scores fit the memory that training may take."""
        learner = self._learner
        at_once = max(16, learner.chunk_bytes // (BYTES_PER_SCORE * max(learner.n_items, 1)))
        for start in range(0, len(rows), at_once):
            yield rows[start : start + at_once]

    def _of_counter(
        self, found: Segments, shared: SharedState, users: UserSplit, number: int
    ) -> None:
        """Score an item by minus the number of times that it was drawn as a negative."""
        learner = self._learner
        cohort = learner.cohort(shared, users)
        untrained = np.ones(len(users), dtype=np.bool_)
        if not learner.algorithm.negatives_per_positive:
            return
        for chunk in cohort.chunks(
            participating=None,
            steps=learner.algorithm.steps,
            bytes_per_user=lambda n_active, n_steps: BYTES_PER_SCORE * learner.n_items,
            memory_bytes=learner.chunk_bytes,
            device=learner.device,
        ):
            rows = chunk.user_index.cpu().numpy()
            untrained[rows] = False
            drawn = self._times_drawn(chunk, number)
            self._of_draws(found, cohort, drawn, users, rows)
        # Users who never train have no negatives, but count like everybody else.
        for rows in self._parts(np.nonzero(untrained)[0]):
            drawn = torch.zeros((len(rows), len(cohort.active)), device=learner.device)
            self._of_draws(found, cohort, drawn, users, rows)

    def _times_drawn(self, chunk: Chunk, number: int) -> torch.Tensor:
        """Return how often each active item was a user's negative, (n_users, n_active)."""
        plan = self._learner.plan
        drawn = torch.zeros((chunk.n_users, chunk.n_items), device=self._learner.device)
        for earlier in range(max(1, number - _COUNTED_ROUNDS), number):
            user, item = draw_negatives(
                chunk,
                seed=plan.federation.seed,
                round_id=earlier,
                per_positive=self._learner.algorithm.negatives_per_positive,
            )
            drawn.index_put_((user, item), torch.ones_like(drawn[0, :1]), accumulate=True)
        return drawn

    def _of_draws(
        self,
        found: Segments,
        cohort: Cohort,
        drawn: torch.Tensor,
        users: UserSplit,
        rows: NDArray[np.int64],
    ) -> None:
        self._add(found, "know_nothing", -drawn, users, rows, cohort.active)

    def _add(
        self,
        found: Segments,
        name: Scorer,
        scores: torch.Tensor,
        users: UserSplit,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64] | None = None,
    ) -> None:
        """Add what some users' scores are worth under each protocol; see `Ranking.ranks`."""
        at, ranking = self._learner.plan.evaluation.at, self._ranking_of(users)
        for protocol, metrics in found.items():
            for split in SPLITS:
                ranks = ranking.ranks(scores, rows, split, protocol, columns)
                first = METRIC_NAMES.index(f"{name}.{split}.users")
                metrics[first : first + 4] += rank_values(ranks, at).sum(0)

    def _ranking_of(self, users: UserSplit) -> Ranking:
        if self._ranking is None or self._ranking[0] is not users:
            learner = self._learner
            seed = learner.plan.federation.seed
            ranking = Ranking(users, learner.n_items, seed=seed, device=learner.device)
            self._ranking = (users, ranking)
        return self._ranking[1]
