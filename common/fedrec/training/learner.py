"""Apply a plan to one party's users: initial state, contribution and next version.

`Learner` composes the plan's two halves and evaluation. Client processes and the in-process
federation use it alike. A party that only applies aggregates needs the server's half alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.splits import UserSplit, leave_one_out
from fedrec.data.synthetic import generate
from fedrec.errors import SettingsError, TrainingError
from fedrec.evaluation.metrics import METRIC_NAMES, MetricSums, Protocol
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import OwnRows
from fedrec.settings.schema import ClientSettings
from fedrec.training.evaluator import Evaluator, Segments
from fedrec.training.executors.executor import Executor
from fedrec.training.executors.processes import Workers
from fedrec.training.local_round import train_locally
from fedrec.training.server_half import ServerHalf
from fedrec.training.user_half import Resources, UserHalf
from fedrec.wire.messages import RoundKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One party's contribution to a round.

    Attributes:
        vector: the sum over the party's participating users, int64, with the length of the round's
            layout.
        private: the users' new private parameters, to keep if the round is published.
        n_clipped: the number of values that were clipped to the public range.
        abstained: the reason why these users contribute nothing to the round, or empty if they
            contribute.
        also: metrics segments under further protocols. They are in no vector and never travel.
        withheld: the metrics segment of the plan's protocol if sums carry noise. It is exact, so no
            vector contains it. None if the vector contains it.
        trained: the users that trained, bool (n_users,), in a training round. Otherwise None.
    """

    vector: NDArray[np.int64]
    private: PrivateState
    n_clipped: int
    withheld: NDArray[np.int64] | None = None
    abstained: str = ""
    also: Segments = field(default_factory=dict)
    trained: NDArray[np.bool_] | None = None


class Learner:
    """Compute one party's contributions to rounds of any kind under a plan.

    Args:
        plan: the plan of the federation.
        n_items: the number of items in the catalogue.
        device: auto, cpu, cuda or cuda:N.
        also, measure_withheld: the same arguments as those of `UserHalf`.
        initial: returns the initial model, if one process draws it for many parties.

    Attributes:
        server: the plan for the shared model.
        local: the plan for the party's users.
    """

    def __init__(
        self,
        plan: Plan,
        n_items: int,
        *,
        device: str = "auto",
        resources: Resources | None = None,
        also: Sequence[Protocol] = (),
        measure_withheld: bool = False,
        initial: Callable[[], SharedState] | None = None,
    ) -> None:
        self.server = ServerHalf(plan, n_items, initial=initial)
        self.local = UserHalf(
            self.server,
            device=device,
            resources=resources or Resources(),
            also=also,
            measure_withheld=measure_withheld,
        )
        self._evaluator = Evaluator(self.local)

    @classmethod
    def of(
        cls,
        client: ClientSettings,
        plan: Plan,
        n_items: int,
        *,
        scratch: Path | None = None,
        workers: Workers | Executor = 1,
    ) -> Learner:
        """Return a learner within the limits of a machine's settings (see `Resources`)."""
        resources = replace(Resources.of(client), scratch=scratch, workers=workers)
        return cls(plan, n_items, device=client.device, resources=resources)

    def warm_up(self) -> None:
        """Compile the code of training, so that no round waits for it.

        The first time on a machine, this takes about ten seconds. Later it takes a moment, because
        compiled code is kept in the user's cache.
        """
        data = generate(n_users=4, n_items=12, n_clusters=2, interactions_per_user=4)
        users = leave_one_out(data.interactions, data.catalogue)
        small = Learner(
            self.server.plan,
            len(data.catalogue),
            device=str(self.local.device),
            resources=Resources(device_memory_mib=self.local.device_bytes >> 20),
        )
        shared, private = small.server.initial_shared(), small.local.initial_private(users)
        small.contribute("train", 1, shared, users, private)

    def contribute(
        self,
        kind: RoundKind,
        number: int,
        shared: SharedState,
        users: UserSplit,
        private: PrivateState,
        participating: NDArray[np.bool_] | None = None,
        *,
        abstains: bool = False,
        own_rows: OwnRows = None,
    ) -> Contribution:
        """Return these users' contribution to a round.

        Args:
            kind: "count" sums item holders. "train" trains, and measures the model of the base
                version. "evaluate" only measures, with all references.
            number: the number from which samples, shuffles and bases are drawn. In a run, it is the
                version's number (`SharedState.number`), not the round's number.
            participating: the users that train, bool (n_users,), or None for all. Every user is
                measured.
            abstains: if training diverges, contribute only the count of abstaining parties, so that
                one party can't stop the others.
            own_rows: the only rows that the contribution may cover (see `own_rows_of`). Metrics
                still reflect all items that the users hold.

        Raises:
            TrainingError: values are no longer finite, or every user's loss exploded.
        """
        try:
            with self.local.on_its_threads():
                return self._contribution(
                    kind, number, shared, users, private, participating, own_rows
                )
        except TrainingError as error:
            if not abstains or kind != "train":
                raise
            metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
            metrics[METRIC_NAMES.index("abstained")] = 1
            exact = self.server.layout.mechanism is None
            nothing = np.zeros(len(self.server.active_items(shared)), dtype=np.int64)
            return Contribution(
                vector=self.server.travelling.pack(
                    kind, shared, {}, nothing, metrics if exact else metrics * 0
                ),
                private=private,
                n_clipped=0,
                withheld=None if exact else metrics,
                abstained=str(error),
            )

    def _contribution(
        self,
        kind: RoundKind,
        number: int,
        shared: SharedState,
        users: UserSplit,
        private: PrivateState,
        participating: NDArray[np.bool_] | None,
        own_rows: OwnRows,
    ) -> Contribution:
        if len(users) > self.server.layout.maximum_users:
            raise SettingsError(
                f"This client has {len(users)} users, but federation.maximum_users is "
                f"{self.server.layout.maximum_users}.",
                remedy="Raise federation.maximum_users, for which the overflow bounds are proven.",
            )
        changes: dict[str, NDArray[np.int64]] = {}
        counts = np.zeros(len(self.server.travelling.rows(kind, shared).index), dtype=np.int64)
        metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        also: Segments = {}
        n_clipped, trained = 0, None
        exact = self.server.layout.mechanism is None
        if kind == "count" and exact:
            counts = users.item_counts(self.server.n_items)
            if own_rows is not None:
                counts[~own_rows] = 0
        elif kind != "count":
            self.local.refreshed(shared, users, private)
            measure = kind == "evaluate" or (number % self.server.plan.evaluation.every_rounds == 0)
            if measure and self.local.measures:
                also = self._evaluator.measure_all(
                    shared, users, private, references=kind == "evaluate", number=number
                )
                metrics += also.pop(self.server.plan.evaluation.protocol)
        if kind == "train":
            found = train_locally(
                self.local,
                number,
                shared,
                users,
                private,
                participating=participating,
                own_rows=own_rows,
            )
            changes = found.changes | self._evaluator.graded(shared, users, private)
            counts, private, trained = found.counts, found.private, found.trained
            metrics += found.metrics
            n_clipped = MetricSums(found.metrics).sum_of("clipped_values")
        released = metrics if exact else np.zeros_like(metrics)
        return Contribution(
            vector=self.server.travelling.pack(kind, shared, changes, counts, released),
            private=private,
            n_clipped=n_clipped,
            also=also,
            withheld=None if exact else metrics,
            trained=trained,
        )

    def counted(
        self, shared: SharedState, counts: NDArray[np.int64], private: PrivateState
    ) -> Contribution:
        """Return the contribution of a count round from known holders, int64 (n_items,)."""
        nothing = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        vector = self.server.travelling.pack("count", shared, {}, counts, nothing)
        return Contribution(vector=vector, private=private, n_clipped=0)


class OneStep:
    """Train eight users with one minibatch each, under the default plan, with the trainer.

    Args:
        device: a device as in `client.device`.

    Attributes:
        device_name: torch's name of the device.
    """

    def __init__(self, device: str) -> None:
        data = generate(n_users=8, n_items=40, n_clusters=2, interactions_per_user=8)
        plan = Plan.model_validate(
            {
                "federation": {"minimum_item_users": 1},
                "evaluation": {"every_rounds": 1_000_000},
                "training": {"accelerated": False},
            }
        )
        self._users = leave_one_out(data.interactions, data.catalogue)
        self._learner = Learner(plan, len(data.catalogue), device=device)
        self.device_name = str(self._learner.local.device)
        if self._learner.local.device.type == "cuda":
            self.device_name += f" ({torch.cuda.get_device_name(self._learner.local.device)})"

    def train(self) -> None:
        """Train one step, and move the sums to the processor."""
        learner = self._learner
        shared, private = (
            learner.server.initial_shared(),
            learner.local.initial_private(self._users),
        )
        learner.contribute("train", 1, shared, self._users, private)
