"""Measure the model and its references on one party's users, as sums."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms.cohort import Chunk, Cohort
from fedrec.algorithms.declarations import GRADES
from fedrec.algorithms.exact import ExactAlgorithm
from fedrec.data.splits import UserSplit
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import (
    METRIC_NAMES,
    RANK_FIELDS,
    SPLITS,
    Protocol,
    Scorer,
    rank_values,
)
from fedrec.evaluation.protocols import Ranking
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.schema import PrivacySettings
from fedrec.training.executors.executor import BYTES_PER_SCORE, Measures
from fedrec.training.local_round import train_locally
from fedrec.training.samples import draw_negatives
from fedrec.training.server_half import ServerHalf
from fedrec.training.user_half import Resources, UserHalf

Segments = dict[Protocol, NDArray[np.int64]]
"""A metrics segment for each protocol, summed in place."""

_COUNTED_ROUNDS = 30
"""The number of rounds whose negatives the know-nothing counter uses.

More rounds only sharpen the leak of `paper` for users with few interactions, and take time."""


class Evaluator:
    """Rank held-out items with a party's model and with the references to compare it with.

    The references need no data that leaves the client. Popularity comes from the protected item
    counts, and `untrained` from the public seed. `local` trains on this party's users alone.
    `know_nothing` counts the items that were drawn as negatives.
    """

    def __init__(self, half: UserHalf) -> None:
        self._half = half
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
        """Return the metrics segment under the plan's protocol (see `measure_all`)."""
        protocol = self._half.server.plan.evaluation.protocol
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
            references: also measure the references.
            number: `SharedState.number`. The know-nothing counter counts the rounds before it.
            local: include the reference that trains this party's users alone. If one party has all
                users, that only repeats the federation.
        """
        found: Segments = {
            protocol: np.zeros(len(METRIC_NAMES), dtype=np.int64)
            for protocol in self._half.protocols
        }
        self._of_model(found, "model", shared, users, private)
        if references:
            half = self._half
            start_shared = half.server.initial_shared()
            if shared.holders is not None:
                start_shared = start_shared.with_holders(shared.holders)
            start = half.initial_private(users)
            self._of_model(found, "untrained", start_shared, users, start)
            self._of_popularity(found, shared, users)
            self._of_counter(found, shared, users, number)
            if local:
                self._of_local(found, start_shared, users, start)
        return found

    def graded(
        self, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> dict[str, NDArray[np.int64]]:
        """Return how users' validation items rate a version's candidates.

        The result is a tensor of the update. It is empty if there is nothing to choose, or if sums
        carry noise.
        """
        algorithm = self._half.server.algorithm
        noisy = self._half.server.layout.mechanism is not None
        if noisy or not isinstance(algorithm, ExactAlgorithm):
            return {}
        gains = [
            self._gain(candidate, users, private) for candidate in algorithm.candidates(shared)
        ]
        return {GRADES: np.array(gains, dtype=np.int64)} if gains else {}

    def train_alone(
        self, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> tuple[SharedState, PrivateState]:
        """Return the states after all rounds, as if these users were the whole federation.

        Nothing of it is released, so it needs no noise.

        Raises:
            TrainingError: training diverges.
        """
        half = self._half
        if half.server.layout.mechanism is not None:
            plan = half.server.plan.model_copy(update={"privacy": PrivacySettings()})
            exact = UserHalf(
                ServerHalf(plan, half.server.n_items),
                device=str(half.device),
                resources=Resources(
                    device_memory_mib=half.device_bytes >> 20, workers=half.executor
                ),
            )
            return Evaluator(exact).train_alone(shared, users, private)
        metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        own = users.item_counts(half.server.n_items)[half.server.active_items(shared)]
        for number in range(1, half.server.plan.rounds.total + 1):
            found = train_locally(half, number, shared, users, private)
            changes = found.changes | self.graded(shared, users, private)
            aggregate = half.server.travelling.pack("train", shared, changes, found.counts, metrics)
            # The published counts cover all users of the federation.
            counts = found.counts if half.server.algorithm.derived.counts_rows else own
            change = half.server.travelling.change("train", shared, aggregate)
            shared = half.server.moved(number, shared, change, counts)
            private = found.private
        return shared, private

    def _gain(self, shared: SharedState, users: UserSplit, private: PrivateState) -> int:
        """Return the sum of users' validation gains under the plan's protocol, as in metrics."""
        evaluation = self._half.server.plan.evaluation
        measures = Measures((evaluation.protocol,), ("validation",), evaluation.at)
        ranking = self._ranking_of(users)
        sums = self._half.measured(shared, users, private, ranking, measures)
        return int(sums[0, 0, RANK_FIELDS.index("gain")])

    def _of_local(
        self, found: Segments, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> None:
        """Measure the model that this party's users reach without the others.

        Training on few users can diverge although training on many doesn't. The row then stays
        empty, because a reference must not cost the federation its last round.
        """
        try:
            shared, private = self.train_alone(shared, users, private)
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
        measures = Measures(tuple(found), SPLITS, self._half.server.plan.evaluation.at)
        ranking = self._ranking_of(users)
        sums = self._half.measured(shared, users, private, ranking, measures)
        for metrics, own in zip(found.values(), sums, strict=True):
            first = METRIC_NAMES.index(f"{name}.{SPLITS[0]}.users")
            # Splits and their fields are in the order of the metrics' names.
            metrics[first : first + own.size] += own.ravel()

    def _of_popularity(self, found: Segments, shared: SharedState, users: UserSplit) -> None:
        # Under noise, holders aren't counted. All items then have one meaningless number.
        if shared.holders is None or self._half.server.layout.mechanism is not None:
            return
        holders = torch.from_numpy(shared.holders.astype(np.float64)).to(self._half.device)
        for rows in self._parts(np.arange(len(users))):
            self._add(found, "popularity", holders.expand(len(rows), -1), users, rows)

    def _parts(self, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Cut user positions into parts whose scores fit the memory that training may use."""
        half = self._half
        at_once = max(16, half.chunk_bytes // (BYTES_PER_SCORE * max(half.server.n_items, 1)))
        for start in range(0, len(rows), at_once):
            yield rows[start : start + at_once]

    def _of_counter(
        self, found: Segments, shared: SharedState, users: UserSplit, number: int
    ) -> None:
        """Score an item by minus the number of times that it was drawn as a negative."""
        half = self._half
        cohort = half.cohort(shared, users)
        untrained = np.ones(len(users), dtype=np.bool_)
        if not half.server.algorithm.derived.negatives_per_positive:
            return
        for chunk in cohort.chunks(
            participating=None,
            steps=half.server.algorithm.steps,
            bytes_per_user=lambda n_active, n_steps: BYTES_PER_SCORE * half.server.n_items,
            memory_bytes=half.chunk_bytes,
            device=half.device,
        ):
            rows = chunk.user_index.cpu().numpy()
            untrained[rows] = False
            drawn = self._times_drawn(chunk, number)
            self._of_draws(found, cohort, drawn, users, rows)
        # Users that never train have no negatives, but count like all others.
        for rows in self._parts(np.nonzero(untrained)[0]):
            drawn = torch.zeros((len(rows), len(cohort.active)), device=half.device)
            self._of_draws(found, cohort, drawn, users, rows)

    def _times_drawn(self, chunk: Chunk, number: int) -> torch.Tensor:
        """Return how often each active item was a user's negative, (n_users, n_active)."""
        plan = self._half.server.plan
        drawn = torch.zeros((chunk.n_users, chunk.n_items), device=self._half.device)
        for earlier in range(max(1, number - _COUNTED_ROUNDS), number):
            user, item = draw_negatives(
                chunk,
                seed=plan.federation.seed,
                round_id=earlier,
                per_positive=self._half.server.algorithm.derived.negatives_per_positive,
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
        """Add the metrics of some users' scores under each protocol (see `Ranking.ranks`)."""
        at, ranking = self._half.server.plan.evaluation.at, self._ranking_of(users)
        for protocol, metrics in found.items():
            for split in SPLITS:
                ranks = ranking.ranks(scores, rows, split, protocol, columns)
                first = METRIC_NAMES.index(f"{name}.{split}.users")
                metrics[first : first + len(RANK_FIELDS)] += rank_values(ranks, at).sum(0)

    def _ranking_of(self, users: UserSplit) -> Ranking:
        if self._ranking is None or self._ranking[0] is not users:
            half = self._half
            seed = half.server.plan.federation.seed
            ranking = Ranking(users, half.server.n_items, seed=seed, device=half.device)
            self._ranking = (users, ranking)
        return self._ranking[1]
