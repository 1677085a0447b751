"""Everything that a plan means for one party's users: initial state, contribution, next version.

`Learner` composes algorithm, update structure and evaluation. It is used alike by client
processes, by the in-process federation and by key holders who only apply aggregates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms import ALGORITHMS
from fedrec.config.schema import Plan
from fedrec.data.splits import UserSplit, leave_one_out
from fedrec.data.synthetic import generate
from fedrec.errors import SettingsError, TrainingError
from fedrec.evaluation.metrics import LOSS_BITS, MAXIMUM_LOSS, METRIC_NAMES, MetricSums
from fedrec.training.cohort import Cohort
from fedrec.training.evaluator import Evaluator
from fedrec.training.grid import GridSum
from fedrec.training.layout import Layout
from fedrec.training.state import PrivateState, SharedState
from fedrec.updates import UPDATES
from fedrec.wire.messages import RoundKind

__all__ = ["Contribution", "Learner", "choose_device"]

_MAXIMUM_CLIPPED = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one party adds to a round.

    Attributes:
        vector: int64 (layout.length,), the sum over the party's participating users.
        private: the users' private parameters, to be kept if the round is published.
        n_clipped: values that had to be clipped to the public range.
    """

    vector: NDArray[np.int64]
    private: PrivateState
    n_clipped: int


def choose_device(name: str) -> torch.device:
    """Return the device that `client.device` names.

    Raises:
        SettingsError: when CUDA is asked for and there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(
            f'client.device is "{name}".', remedy="Use auto, cpu, cuda or cuda:N."
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(
            f'client.device is "{name}", but torch finds no CUDA device.',
            remedy='Set client.device = "auto" or install a CUDA build of torch.',
        )
    return device


class Learner:
    """A plan, made executable for a catalogue of `n_items` items.

    Args:
        plan: what the federation agreed on.
        n_items: items in the catalogue.
        device: auto, cpu, cuda or cuda:N.
        memory_mib: memory that a chunk of users may take while it trains.
        threads: CPU threads, 0 for torch's own choice.
    """

    def __init__(
        self,
        plan: Plan,
        n_items: int,
        *,
        device: str = "auto",
        memory_mib: int = 2048,
        threads: int = 0,
    ) -> None:
        if threads:
            torch.set_num_threads(threads)
        self.plan = plan
        self.n_items = n_items
        self.layout = Layout.of(plan, n_items)
        self.device = choose_device(device)
        self._structure = UPDATES[plan.update.structure](plan.update, plan.algorithm.dim)
        self._algorithm = ALGORITHMS[plan.algorithm.name](plan, self._structure, n_items)
        self.memory_bytes = memory_mib << 20
        self._cohort: tuple[UserSplit, SharedState, Cohort] | None = None
        self._evaluator = Evaluator(self)

    def warm_up(self) -> None:
        """Compile what training compiles, so that no round waits for it.

        The first time on a machine this takes some ten seconds, then a moment: compiled code is
        kept in the user's cache.
        """
        data = generate(n_users=4, n_items=12, n_clusters=2, interactions_per_user=4)
        users = leave_one_out(data.interactions, data.catalogue)
        small = Learner(self.plan, len(data.catalogue), device=str(self.device))
        small.contribute("train", 1, small.initial_shared(), users, small.initial_private(users))

    def initial_shared(self) -> SharedState:
        """Return the model that every party starts from."""
        return self._algorithm.initial_shared()

    def initial_private(self, users: UserSplit) -> PrivateState:
        """Return private parameters of users who have never trained."""
        return self._algorithm.initial_private(users.user_keys())

    def active_items(self, shared: SharedState) -> NDArray[np.int64]:
        """Return the rows of items that enough users hold (all, before they were counted)."""
        if shared.holders is None:
            return np.arange(self.n_items, dtype=np.int64)
        enough = shared.holders >= self.plan.federation.minimum_item_users
        return np.nonzero(enough)[0].astype(np.int64)

    def contribute(
        self,
        kind: RoundKind,
        round_id: int,
        shared: SharedState,
        users: UserSplit,
        private: PrivateState,
        participating: NDArray[np.bool_] | None = None,
    ) -> Contribution:
        """Return these users' part of a round.

        Args:
            kind: "count" sums item holders, "train" trains and measures the model of the base
                version, "evaluate" only measures, with all references.
            participating: which users train, bool (n_users,); None means all. Every user is
                measured.

        Raises:
            TrainingError: when values are no longer finite.
        """
        if len(users) > self.layout.maximum_users:
            raise SettingsError(
                f"This client has {len(users)} users, but federation.maximum_users is "
                f"{self.layout.maximum_users}.",
                remedy="Raise federation.maximum_users; overflow bounds are proven for it.",
            )
        change = np.zeros((self.n_items, self.layout.width), dtype=np.int64)
        counts = np.zeros(self.n_items, dtype=np.int64)
        metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        n_clipped = 0
        if kind == "count":
            counts = np.bincount(users.train_items, minlength=self.n_items).astype(np.int64)
        else:
            measure = kind == "evaluate" or (round_id % self.plan.evaluation.every_rounds == 0)
            if measure:
                metrics += self._evaluator.measure(
                    shared, users, private, references=kind == "evaluate", round_id=round_id
                )
        if kind == "train":
            change, counts, private, training = self._train(
                round_id, shared, users, private, participating
            )
            metrics += training
            n_clipped = MetricSums(training).sum_of("clipped_values")
        return Contribution(
            vector=self.layout.pack(change, counts, metrics), private=private, n_clipped=n_clipped
        )

    def _train(
        self,
        round_id: int,
        shared: SharedState,
        users: UserSplit,
        private: PrivateState,
        participating: NDArray[np.bool_] | None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], PrivateState, NDArray[np.int64]]:
        cohort = self.cohort(shared, users)
        layout, settings = self.layout, self.plan.algorithm
        total = GridSum(
            len(cohort.active),
            layout.width,
            step=layout.step,
            bound=1 << layout.fraction_bits,
            device=self.device,
        )
        tensors = {
            name: torch.from_numpy(values.copy()).to(self.device)
            for name, values in private.tensors.items()
        }
        items, basis = self.item_rows(shared, cohort.active), self._basis(round_id)
        metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        for chunk in cohort.chunks(
            participating=participating,
            samples_per_positive=1 + settings.negatives_per_positive,
            batch_size=settings.batch_size,
            bytes_per_user=self._algorithm.bytes_per_user(len(cohort.active)),
            memory_bytes=self.memory_bytes,
            device=self.device,
        ):
            own = {name: values[chunk.user_index] for name, values in tensors.items()}
            result = self._algorithm.fit(chunk, items, basis, own, total, round_id)
            for name, values in result.private.items():
                tensors[name][chunk.user_index] = values
            metrics[:4] += self._training_sums(result.loss, result.clipped)
        trained = {name: values.cpu().numpy() for name, values in tensors.items()}
        if not bool(total.finite) or not all(np.isfinite(v).all() for v in trained.values()):
            raise TrainingError(
                f"Training diverged in round {round_id}: a value of {len(users)} users is no "
                f"longer finite with algorithm.learning_rate = {settings.learning_rate}.",
                remedy="Lower algorithm.learning_rate or raise algorithm.regularisation.",
            )
        change = np.zeros((self.n_items, layout.width), dtype=np.int64)
        counts = np.zeros(self.n_items, dtype=np.int64)
        change[cohort.active] = total.change.cpu().numpy()
        counts[cohort.active] = total.counts.cpu().numpy()
        return change, counts, PrivateState(MappingProxyType(trained)), metrics

    def train_alone(
        self, round_id: int, shared: SharedState, users: UserSplit, private: PrivateState
    ) -> tuple[SharedState, PrivateState]:
        """Return the states after a round in which these users are the whole federation."""
        change, counts, private, _ = self._train(round_id, shared, users, private, None)
        metrics = np.zeros(len(METRIC_NAMES), dtype=np.int64)
        aggregate = self.layout.pack(change, counts, metrics)
        return self.apply("train", round_id, shared, aggregate), private

    @staticmethod
    def _training_sums(loss: torch.Tensor, clipped: torch.Tensor) -> NDArray[np.int64]:
        """Return (participants, loss, clipped values, clipped users) of a chunk, as integers."""
        bounded = torch.nan_to_num(loss.clamp(0.0, MAXIMUM_LOSS), nan=MAXIMUM_LOSS)
        units = torch.round(bounded * (1 << LOSS_BITS)).to(torch.int64)
        parts = (
            torch.ones_like(units),
            units,
            clipped.clamp(max=_MAXIMUM_CLIPPED),
            (clipped > 0).to(torch.int64),
        )
        return torch.stack([part.sum() for part in parts]).cpu().numpy().astype(np.int64)

    def _basis(self, round_id: int) -> torch.Tensor | None:
        basis = self._structure.basis(self.plan.federation.seed, round_id)
        if basis is None:
            return None
        return torch.from_numpy(basis.astype(np.float32)).to(self.device)

    def item_rows(self, shared: SharedState, active: NDArray[np.int64]) -> torch.Tensor:
        """Return the shared table's active rows on the device, float32."""
        rows = shared.tensors["item_embedding"][active].astype(np.float32)
        return torch.from_numpy(rows).to(self.device)

    def cohort(self, shared: SharedState, users: UserSplit) -> Cohort:
        """Return the users' training tables for the active items, made once."""
        if self._cohort is not None:
            known, holders, cohort = self._cohort[0], self._cohort[1].holders, self._cohort[2]
            if known is users and holders is shared.holders:
                return cohort
        cohort = Cohort(
            users,
            active=self.active_items(shared),
            n_items=self.n_items,
            exclude_held_out=self.plan.evaluation.protocol == "paper",
        )
        self._cohort = (users, shared, cohort)
        return cohort

    def score_blocks(
        self, shared: SharedState, private: PrivateState, n_users: int
    ) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
        """Yield (user positions, scores over the whole catalogue), -inf where inactive."""
        active = self.active_items(shared)
        items = self.item_rows(shared, active)
        where = torch.from_numpy(active).to(self.device)
        at_once = max(16, self.memory_bytes // (16 * max(self.n_items, 1)))
        for start in range(0, n_users, at_once):
            rows = np.arange(start, min(n_users, start + at_once))
            own = {
                name: torch.from_numpy(values[rows]).to(self.device)
                for name, values in private.tensors.items()
            }
            scores = torch.full((len(rows), self.n_items), -torch.inf, device=self.device)
            scores[:, where] = self._algorithm.scores(items, own)
            yield rows, scores

    def apply(
        self, kind: RoundKind, round_id: int, shared: SharedState, aggregate: NDArray[np.int64]
    ) -> SharedState:
        """Return the model after a published round: pure numpy, the same bits everywhere."""
        counts = aggregate[self.layout.count_slice]
        if kind == "count":
            return shared.with_holders(counts.copy())
        if kind == "evaluate":
            return shared
        change = self.layout.change_of(aggregate).astype(np.float64) * self.layout.step
        basis = self._structure.basis(self.plan.federation.seed, round_id)
        return self._algorithm.apply(shared, change, counts, basis)

    def metrics(self, aggregate: NDArray[np.int64]) -> MetricSums:
        """Return the metric sums of an aggregate."""
        return MetricSums(aggregate[self.layout.metrics_slice].copy())

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
        """Return the n best item rows for a user, best first, and their scores."""
        one = PrivateState(
            MappingProxyType(
                {
                    name: values[user_index : user_index + 1]
                    for name, values in private.tensors.items()
                }
            )
        )
        ((_, scores),) = self.score_blocks(shared, one, 1)
        row = scores[0].cpu().numpy()
        if exclude_seen:
            row[users.train_of(user_index)] = -np.inf
            for held in (users.validation_items[user_index], users.test_items[user_index]):
                if held >= 0:
                    row[held] = -np.inf
        best = np.argsort(-row, kind="stable")[: min(n, int(np.isfinite(row).sum()))]
        return best, row[best]
