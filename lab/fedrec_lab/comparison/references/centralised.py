"""Centralised training, and CentRAP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.algorithms import (
    AlgorithmSettings,
    Batch,
    FedMFSettings,
    FedNCFSettings,
    FedRAP,
    FedRAPSettings,
    Sgd,
    Values,
)
from fedrec.algorithms.sent import MOST_SAMPLES
from fedrec.errors import TrainingError
from fedrec.evaluation.metrics import Protocol, Rates, Split, rates_of_ranks
from fedrec.evaluation.protocols import Ranking
from fedrec.protection import ProtectionSettings
from fedrec.settings.schema import Settings
from fedrec.settings.starter import TUNED
from fedrec.tensor_products import one_thread
from fedrec.training.learner import Learner
from fedrec.training.samples import draw_samples
from fedrec.updates.update import UpdateSettings
from fedrec_lab.comparison.measurement import (
    Blocks,
    Measurement,
    MeasurementStopped,
    MethodTask,
    kept_ranks,
    measurements_of,
    scores_of,
    train,
)
from fedrec_lab.comparison.references.reference import Reference

ROUNDS_BESIDE = TUNED["fedmf"].rounds.total
"""The number of rounds if the run has a different algorithm."""
_WIDE_CLIP = 64.0
_SUM_BITS = 61
"""Sums of all users' values stay inside signed words of 64 bits."""
_MOST_FRACTION_BITS = 40


def centralised(settings: Settings, algorithm: AlgorithmSettings, *, rounds: int) -> Settings:
    """Return a run's settings with a different algorithm and all data in one place."""
    # Weighted users count as often as their weight.
    room = settings.federation.maximum_users * MOST_SAMPLES
    bits = min(_MOST_FRACTION_BITS, _SUM_BITS - room.bit_length())
    update = UpdateSettings(structure="dense", clip=_WIDE_CLIP, fraction_bits=bits)
    return settings.model_copy(
        update={
            "algorithm": algorithm,
            "update": update,
            "protection": ProtectionSettings(name="none"),
            "rounds": settings.rounds.model_copy(update={"total": rounds, "user_fraction": 1.0}),
        }
    )


class _Centralised(Reference):
    """Trains like a federation of one party."""

    job_for_each_seed: ClassVar[bool] = True
    draws_negatives: ClassVar[bool] = True
    settings_type: ClassVar[type[AlgorithmSettings]]

    def settings(self, run: Settings) -> Settings:
        """Return the settings to train: the run's own hyperparameters if it has this algorithm."""
        if isinstance(run.algorithm, self.settings_type):
            return centralised(run, self.unbounded(run.algorithm), rounds=run.rounds.total)
        return centralised(run, self.unbounded(self.default()), rounds=ROUNDS_BESIDE)

    @staticmethod
    def unbounded(algorithm: AlgorithmSettings) -> AlgorithmSettings:
        """Return an algorithm's settings without public ranges of its own."""
        return algorithm

    @classmethod
    def default(cls) -> AlgorithmSettings:
        """Return the settings to train for a run with another algorithm."""
        return cls.settings_type.model_validate({})

    def measure(self, task: MethodTask) -> list[Measurement]:
        """Train once for each seed. See `Reference.measure`."""
        settings = self.settings(task.settings)
        found: list[Measurement] = []
        for seed in task.seeds:
            result = train(replace(task, n_clients=1, cells=()), settings, seed)
            found += measurements_of(result, method=self.name, label=self.label)
            if task.add_lists is not None:
                task.add_lists(self.name, seed, scores_of(result))
        return found


class CentralisedMF(_Centralised):
    """FedMF's rule without what federation costs."""

    name: ClassVar[str] = "centralised-mf"
    label: ClassVar[str] = "MF, centralised"
    settings_type: ClassVar[type[AlgorithmSettings]] = FedMFSettings

    @classmethod
    def default(cls) -> AlgorithmSettings:
        """Return the settings that were tuned on MovieLens-100K's validation items."""
        return TUNED["fedmf"].algorithm


class CentralisedNCF(_Centralised):
    """FedNCF's rule without what federation costs."""

    name: ClassVar[str] = "centralised-ncf"
    label: ClassVar[str] = "NCF, centralised"
    settings_type: ClassVar[type[AlgorithmSettings]] = FedNCFSettings

    @staticmethod
    def unbounded(algorithm: AlgorithmSettings) -> AlgorithmSettings:
        """Return the settings with a wide range for the network, too."""
        return algorithm.model_copy(update={"network_clip": _WIDE_CLIP})


_NOISE = {"noise_where", "noise_clip", "noise_multiplier"}
_SMALLEST_SCALE = 1e-3
_USERS_SCORED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """All users' samples of a round, int64 and float32 (n_samples,).

    Attributes:
        user, item: positions of users and of active items.
    """

    user: torch.Tensor
    item: torch.Tensor
    label: torch.Tensor


class PooledModel:
    """FedRAP's tensors for all users, and steps on minibatches of pooled samples.

    Args:
        algorithm: the source of loss and phases.
        shared, private: initial values by name. Own rows are (n_users, n_items, dim).
    """

    def __init__(
        self, algorithm: FedRAP, shared: torch.Tensor, private: dict[str, torch.Tensor]
    ) -> None:
        self._algorithm, self._n_items = algorithm, len(shared)
        self.tensors = {name: values.clone() for name, values in private.items()}
        own = self.tensors.get("own_embedding")
        if own is not None:
            self.tensors["own_embedding"] = own.view(-1, own.shape[-1])
        self.tensors["item_embedding"] = shared.clone()
        # Own rows are the stored ones times this factor, so decay doesn't touch each row.
        self._scale = 1.0

    @property
    def own_embedding(self) -> torch.Tensor:
        """All own rows, (n_users, n_items, dim)."""
        stored = self.tensors["own_embedding"]
        return (stored * self._scale).view(-1, self._n_items, stored.shape[-1])

    def train(self, pool: Pool, published: int, order: torch.Generator) -> float:
        """Take a round's passes. Return the mean loss of all samples that were passed."""
        settings = self._algorithm.settings
        ((step,),) = self._algorithm.phases({"published": float(published)})[0].steps
        assert isinstance(step, Sgd)
        total, seen, last = 0.0, 0, 0.0
        for epoch in range(settings.local_epochs):
            slower = settings.batch_decay**epoch
            shuffled = torch.randperm(len(pool.user), generator=order)
            for begin in range(0, len(shuffled), settings.batch_size):
                part = shuffled[begin : begin + settings.batch_size]
                loss = self._step(pool, part, step, slower, published)
                total, seen = total + loss * len(part), seen + len(part)
            mean = total / max(seen, 1)
            if epoch and abs(mean - last) < settings.tolerance * abs(last):
                break
            last = mean
        return total / max(seen, 1)

    def _step(
        self, pool: Pool, part: torch.Tensor, step: Sgd, slower: float, published: int
    ) -> float:
        """Move everything by the gradient of a minibatch's mean loss. Return that."""
        user, item, label = (values[part] for values in (pool.user, pool.item, pool.label))
        places = {
            "item_embedding": item,
            "own_embedding": user * self._n_items + item,
            "user_embedding": user,
            "user_bias": user,
        }
        read = {}
        for name, stored in self.tensors.items():
            rows = stored[places[name]]
            if name == "own_embedding":
                rows = rows * self._scale
            # For the loss, each sample is a user with a minibatch of one row.
            read[name] = rows[:, None] if name in ("item_embedding", "own_embedding") else rows
        leaves = {name: read[name].requires_grad_() for name in step.rates}
        batch = Batch(label=label[:, None], weight=torch.ones_like(label)[:, None])
        with torch.enable_grad():
            values = read | leaves | {"published": torch.full_like(label, float(published))}
            loss = self._algorithm.loss(self._algorithm.seen(Values(values)), batch).mean()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        for name, gradient in zip(leaves, gradients, strict=True):
            rate = step.rates[name] * slower
            kept, stored = 1.0 - rate * step.decay, self.tensors[name]
            if name == "own_embedding":
                self._scale *= kept
                rate /= self._scale
            elif kept != 1.0:
                stored.mul_(kept)
            moved = gradient.reshape(len(part), *stored.shape[1:])
            stored.index_add_(0, places[name], moved, alpha=-rate)
        if self._scale < _SMALLEST_SCALE:
            self.tensors["own_embedding"].mul_(self._scale)
            self._scale = 1.0
        return float(loss.detach())

    def scores(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """Return some users' scores of all active items, (n_rows, n_items)."""
        users = torch.from_numpy(rows)
        read = {"item_embedding": self.tensors["item_embedding"][None]}
        for name in ("user_embedding", "user_bias"):
            read[name] = self.tensors[name][users]
        if "own_embedding" in self.tensors:
            stored = self.tensors["own_embedding"]
            read["own_embedding"] = (
                stored.view(-1, self._n_items, stored.shape[-1])[users] * self._scale
            )
        with one_thread():
            return self._algorithm.score(self._algorithm.seen(Values(read)))


class CentRAP(Reference):
    """FedRAP's model trained on the pool of all users' samples."""

    name: ClassVar[str] = "centrap"
    label: ClassVar[str] = "CentRAP, centralised"
    job_for_each_seed: ClassVar[bool] = True
    draws_negatives: ClassVar[bool] = True
    only_with: ClassVar[str] = "fedrap"

    def settings(self, run: Settings) -> Settings:
        """Return the settings to train: the run's own hyperparameters if it is FedRAP's.

        Noise is omitted, because nothing is sent.
        """
        if isinstance(run.algorithm, FedRAPSettings):
            values = run.algorithm.model_dump(exclude=_NOISE)
            return centralised(run, FedRAPSettings(**values), rounds=run.rounds.total)
        return centralised(run, FedRAPSettings(), rounds=ROUNDS_BESIDE)

    def measure(self, task: MethodTask) -> list[Measurement]:
        """Train once for each seed. See `Reference.measure`.

        Raises:
            TrainingError: training diverged.
        """
        return [found for seed in task.seeds for found in self._measure(task, seed)]

    def _measure(self, task: MethodTask, seed: int) -> list[Measurement]:
        settings = self.settings(task.settings)
        federation = settings.federation.model_copy(update={"seed": seed})
        evaluation = settings.evaluation.model_copy(update={"protocol": task.protocols[0]})
        plan = settings.model_copy(update={"federation": federation, "evaluation": evaluation}).plan
        learner = Learner(plan, len(task.catalogue), device="cpu")
        run = _Run(learner, task, seed)
        for number in range(plan.rounds.total):
            if task.stop():
                raise MeasurementStopped
            loss = run.train(number)
            if not np.isfinite(loss):
                raise TrainingError(
                    f"CentRAP diverged in round {number + 1} with {len(task.users)} users.",
                    remedy=FedRAP.about.advice.divergence_remedy,
                )
            if (number + 1) % evaluation.every_rounds == 0 or number + 1 == plan.rounds.total:
                run.measure(number + 1, evaluation.at)
            task.tell(f"round {number + 1}/{plan.rounds.total}")
        return [
            Measurement(
                method=self.name,
                label=self.label,
                protocol=protocol,
                seed=seed,
                rates=rates,
                validation=validation,
                chosen=f"round {number}",
                ranks=ranks,
            )
            for protocol, (validation, number, rates, ranks) in run.best.items()
        ]


class _Run:
    """One training, and what it reached so far.

    Attributes:
        best: the NDCG on validation, and the round, rates and ranks on test, for each protocol.
    """

    def __init__(self, learner: Learner, task: MethodTask, seed: int) -> None:
        assert isinstance(learner.server.algorithm, FedRAP)
        self._algorithm, self._task, self._seed = learner.server.algorithm, task, seed
        users = task.users
        begun, private = learner.server.initial_shared(), learner.local.initial_private(users)
        counts = learner.contribute("count", 1, begun, users, private)
        shared = learner.server.apply("count", 1, begun, counts.vector)
        cohort = learner.local.cohort(shared, users)
        self._active = cohort.active
        self._chunk = cohort.chunk_of(np.arange(len(users)), torch.device("cpu"))
        own = {name: torch.from_numpy(values) for name, values in private.tensors.items()}
        if "own_embedding" in own:
            own["own_embedding"] = own["own_embedding"][:, torch.from_numpy(self._active)]
        table = torch.from_numpy(shared.rows("item_embedding", self._active))
        self.model = PooledModel(self._algorithm, table.to(torch.float32), own)
        self._ranking = Ranking(users, len(task.catalogue), seed=seed, device=torch.device("cpu"))
        self.best: dict[Protocol, tuple[Rates, int, Rates, tuple[float, ...]]] = {}

    def train(self, published: int) -> float:
        """Train the next round and return its mean loss."""
        order = torch.Generator().manual_seed(self._seed * 1_000_003 + published)
        return self.model.train(self._pool(published + 1), published, order)

    def _pool(self, round_id: int) -> Pool:
        samples = draw_samples(
            self._chunk,
            seed=self._seed,
            round_id=round_id,
            negatives_per_positive=self._algorithm.derived.negatives_per_positive,
        )
        user = torch.repeat_interleave(samples.pointers.diff())
        row = samples.row_pointers[user] + samples.row
        return Pool(user=user, item=samples.item[row], label=samples.label[row])

    def measure(self, number: int, at: int) -> None:
        """Rank all held-out items, and keep the best version on validation."""
        users = self._task.users
        splits: tuple[Split, Split] = ("validation", "test")
        ranks = {
            (protocol, split): np.full(len(users), -1.0)
            for protocol in self._task.protocols
            for split in splits
        }
        for begin in range(0, len(users), _USERS_SCORED):
            rows = np.arange(begin, min(len(users), begin + _USERS_SCORED))
            scores = self.model.scores(rows)
            for (protocol, split), found in ranks.items():
                found[rows] = self._ranking.ranks(
                    scores, rows, split, protocol, columns=self._active
                )
        for protocol in self._task.protocols:
            known = rates_of_ranks(ranks[protocol, "validation"], at)
            rates = rates_of_ranks(ranks[protocol, "test"], at)
            if known is None or rates is None:
                continue
            if protocol not in self.best or known.ndcg > self.best[protocol][0].ndcg:
                kept = kept_ranks(ranks[protocol, "test"], at)
                self.best[protocol] = (known, number, rates, kept)
                if self._task.add_lists is not None and protocol == self._task.lists_under:
                    # No version is kept. A better one replaces the lists.
                    self._task.add_lists(CentRAP.name, self._seed, self._blocks())

    def _blocks(self) -> Blocks:
        n_users, n_items = len(self._task.users), len(self._task.catalogue)
        for begin in range(0, n_users, _USERS_SCORED):
            rows = np.arange(begin, min(n_users, begin + _USERS_SCORED))
            found = torch.full((len(rows), n_items), -torch.inf)
            found[:, torch.from_numpy(self._active)] = self.model.scores(rows)
            yield rows, found
