"""FedNCF: "Federated Neural Collaborative Filtering" (Perifanis and Efraimidis 2022).

Model: x = [p; q_i] of a private user vector p (dim) and an item row q_i (dim); three layers of 32,
16 and 8 units with ReLU; score s = <w, h> + b of the last layer's units h. Loss: mean binary
cross-entropy of a minibatch, negatives sampled. Private: p. Shared: item table Q and network.

The paper's code was not found; network, sizes and rates are those of GPFedRec, which measures
FedNCF as a baseline. Client, for every minibatch of b samples one simultaneous step by the
gradient of the mean loss, by default plain SGD, no momentum and no decay:

    network by eta,    p by eta `user_rate_scale`,    q_i by eta N `item_rate_scale`,

where eta is `learning_rate` and N the number of items of the whole catalogue, those included that
too few users hold to be trained. With `optimiser = "adam"` everything moves by Adam at eta, with
moments that begin afresh in every round. `weight_decay` is L2 on the network, p and the rows that a
user touches in the round, in each of its minibatches, as a dense optimiser's would be; rows that it
does not touch are not handed over, so that their decay would change nothing. Under `plain` it would
change every row of every user, and is refused.

Server, `aggregation = "mf_secavg"` (the paper): row i of Q moves by the mean change of the users
who touched it; the network by the mean weighted with each user's number of training items. Here
a user counts for at most 4096 of them, so that what it adds has a public bound.
`aggregation = "plain"` (as later papers measure it): the uniform mean of everything over all
participants, untouched rows included.

A user trains a network of its own in a round, and a copy of the rows that it touches: rows behind
a ReLU have no low-rank form. Gradients are written out: on a processor compiled code trains one
user after the other (`fedrec.algorithms.accelerators.fedncf`), elsewhere and with Adam all users
of a chunk run as batched products (`fedrec.algorithms.fedncf_lockstep`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.declarations import AlgorithmSettings, Parameter, UpdateTensor
from fedrec.algorithms.fedncf_network import (
    UNITS,
    initial_network,
    network_preferences,
    network_scores,
    network_shapes,
)
from fedrec.algorithms.fedncf_settings import FedNCFSettings, problem_of, warnings_of
from fedrec.algorithms.sampled import SampledAlgorithm
from fedrec.errors import SettingsError
from fedrec.streams import Purpose, normal, stream_key, user_stream
from fedrec.training.state import PrivateState, SharedState

if TYPE_CHECKING:
    import torch

    from fedrec.config.schema import Plan
    from fedrec.training.cohort import Chunk
    from fedrec.training.grid import RoundSums

__all__ = ["FedNCF", "FedNCFSettings"]

WEIGHT_BITS = 12
"""A user's weight is its number of training items, at most 2^12. It multiplies what was rounded."""


class FedNCF(SampledAlgorithm):
    """A shared network over private users and shared items; see the module's docstring."""

    settings: FedNCFSettings

    not_under_noise: ClassVar[str] = ""
    name: ClassVar[str] = "fedncf"
    settings_type: ClassVar[type[AlgorithmSettings]] = FedNCFSettings
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(name="item_embedding", shape=("n_items", "dim"), scope="shared"),
        Parameter(name="weight_1", shape=("32", "2 dim"), scope="shared"),
        Parameter(name="bias_1", shape=("32",), scope="shared"),
        Parameter(name="weight_2", shape=("16", "32"), scope="shared"),
        Parameter(name="bias_2", shape=("16",), scope="shared"),
        Parameter(name="weight_3", shape=("8", "16"), scope="shared"),
        Parameter(name="bias_3", shape=("8",), scope="shared"),
        Parameter(name="weight_4", shape=("1", "8"), scope="shared"),
        Parameter(name="bias_4", shape=("1",), scope="shared"),
        Parameter(name="user_embedding", shape=("n_users", "dim"), scope="private"),
    )
    updates: ClassVar[tuple[str, ...]] = ("dense",)
    combination_reason: ClassVar[str] = (
        "fedncf sums changes of item rows and of a network, for which no low-rank form is defined."
    )
    divergence_remedy: ClassVar[str] = (
        "Lower algorithm.item_rate_scale, algorithm.user_rate_scale or algorithm.learning_rate."
    )

    def __init__(self, plan: Plan, n_items: int) -> None:
        super().__init__(plan, n_items)
        self._weighted = self.settings.aggregation == "mf_secavg"
        largest, decay = max(self.item_rate, self.user_rate), self.settings.weight_decay
        if self.settings.optimiser == "sgd" and largest * decay > 1.0:
            raise SettingsError(
                f"algorithm.weight_decay is {decay:g}, which at a step size of {largest:g} turns "
                "values round in each minibatch.",
                remedy="Lower algorithm.weight_decay or algorithm.item_rate_scale.",
            )

    @staticmethod
    def problem(plan: Plan) -> tuple[tuple[str, ...], str] | None:
        """Refuse decay where whole tables are averaged."""
        assert isinstance(plan.algorithm, FedNCFSettings)
        return problem_of(plan.algorithm)

    @staticmethod
    def warnings(plan: Plan, n_items: int = 0) -> list[str]:
        """Say what Adam makes no use of, and when its steps are large."""
        assert isinstance(plan.algorithm, FedNCFSettings)
        return warnings_of(plan.algorithm)

    @property
    def item_rate(self) -> float:
        """Step size of item rows."""
        if self.settings.optimiser == "adam":
            return self.settings.learning_rate
        return self.settings.learning_rate * self.n_items * self.settings.item_rate_scale

    @property
    def user_rate(self) -> float:
        """Step size of user vectors."""
        if self.settings.optimiser == "adam":
            return self.settings.learning_rate
        return self.settings.learning_rate * self.settings.user_rate_scale

    @property
    def network(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the network's tensors, first layer first."""
        return network_shapes(self.settings.dim)

    @property
    def _most(self) -> int:
        """What a user's network counts for at most."""
        return 1 << WEIGHT_BITS if self._weighted else 1

    @property
    def tensors(self) -> tuple[UpdateTensor, ...]:
        """The changes of the rows and of the network, and what the latter are divided by."""
        bits, weight_bits = self.plan.update.fraction_bits, WEIGHT_BITS if self._weighted else 0
        items = UpdateTensor(
            name="item_embedding",
            shape=(self.n_items, self.settings.dim),
            limit=self.plan.update.clip,
            fraction_bits=bits,
            per_item=True,
        )
        network = (
            UpdateTensor(
                name=name,
                shape=shape,
                limit=self.settings.network_clip * self._most,
                fraction_bits=bits + weight_bits,
            )
            for name, shape in self.network.items()
        )
        divisor = UpdateTensor(
            name="samples" if self._weighted else "users",
            signed=False,
            shape=(1,),
            limit=float(self._most),
            fraction_bits=weight_bits,
        )
        return (items, *network, divisor)

    def initial_shared(self) -> SharedState:
        """Return Q with entries N(0, 1), and layers uniform in +-1/sqrt(inputs)."""
        seed = self.plan.federation.seed
        key = stream_key(seed, Purpose.ITEM_EMBEDDING)
        tensors = {"item_embedding": normal(key, (self.n_items, self.settings.dim))}
        tensors |= initial_network(seed, self.settings.dim)
        return SharedState(MappingProxyType(tensors))

    def initial_private(self, user_keys: NDArray[np.int64]) -> PrivateState:
        """Return every user's p with entries N(0, 1)."""
        key = stream_key(self.plan.federation.seed, Purpose.USER_EMBEDDING)
        vectors = normal(user_stream(key, user_keys), (len(user_keys), self.settings.dim))
        return PrivateState(MappingProxyType({"user_embedding": vectors.astype(np.float32)}))

    def bytes_per_user(self, n_active: int, n_steps: int) -> int:
        """Return the memory of a user's rows, networks and of one minibatch's layers."""
        dim, batch = self.settings.dim + 8, self.settings.batch_size
        width = min(n_active, n_steps * batch)
        # Adam keeps two moments of everything, and a step makes as much once more.
        copies = 5 if self.settings.optimiser == "adam" else 1
        network = (2 + copies) * sum(math.prod(shape) for shape in self.network.values())
        layers = batch * (4 * dim + 6 * sum(UNITS))
        return (
            24 * n_active
            + 4 * (width * (copies * dim + 8) + network + layers)
            + 80 * n_steps * batch
        )

    @property
    def compiles(self) -> bool:
        """Adam has no compiled form."""
        return self.settings.optimiser == "sgd"

    def fit_compiled(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Train a chunk on the processor by SGD; see `fedrec.algorithms.accelerators.fedncf`."""
        import torch

        from fedrec.algorithms.accelerators.fedncf import CpuRound, CpuUsers, train_users

        settings, rows = self.settings, sums["item_embedding"]
        # The network's tensors have one step and one bound.
        own_networks = sums[next(iter(self.network))]
        found = train_users(
            CpuUsers(
                sampled=self.sampled(chunk, start.round),
                vectors=private["user_embedding"].numpy(),
                weights=self._weights(chunk, sums).numpy(),
            ),
            CpuRound(
                items=start.shared["item_embedding"].numpy(),
                network=torch.cat(
                    [start.shared[name].reshape(-1) for name in self.network]
                ).numpy(),
                rate=settings.learning_rate,
                user_rate=self.user_rate,
                item_rate=self.item_rate,
                decay=settings.weight_decay,
                epochs=settings.local_epochs,
                batch_size=settings.batch_size,
                negatives_per_positive=settings.negatives_per_positive,
                scale=rows.scale,
                bound=rows.bound,
                network_scale=own_networks.scale,
                network_bound=own_networks.bound / self._most,
            ),
            threads=torch.get_num_threads(),
        )
        rows.add_sums(torch.from_numpy(found.change), finite=found.finite)
        if self._weighted:
            sums.add_counts(torch.from_numpy(found.counts))
        ends = np.cumsum([math.prod(shape) for shape in self.network.values()])
        changes = np.split(found.network, ends[:-1])
        for name, change in zip(self.network, changes, strict=True):
            sums[name].add_sums(torch.from_numpy(change), finite=found.finite)
        return ChunkResult(
            private={"user_embedding": torch.from_numpy(found.vectors)},
            loss=torch.from_numpy(found.loss),
            clipped=torch.from_numpy(found.clipped),
        )

    def fit_in_lockstep(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Train a chunk as tensors on any device; see `fedrec.algorithms.fedncf_lockstep`."""
        import torch

        from fedrec.algorithms.fedncf_lockstep import NetworkLockstep
        from fedrec.training.samplers import draw_samples, steps

        settings, seed = self.settings, self.plan.federation.seed
        samples = draw_samples(
            chunk,
            seed=seed,
            round_id=start.round,
            negatives_per_positive=settings.negatives_per_positive,
            batch_size=settings.batch_size,
        )
        training = NetworkLockstep(self, start, private["user_embedding"], samples)
        for epoch in range(settings.local_epochs):
            for step in steps(
                chunk,
                samples,
                seed=seed,
                round_id=start.round,
                epoch=epoch,
                batch_size=settings.batch_size,
            ):
                training.take(step)
        clipped = training.hand_over_rows(sums["item_embedding"])
        if self._weighted:
            sums.count(samples.pair_item.reshape(-1))
        weight = self._weights(chunk, sums)
        for name, change in training.network_changes().items():
            total, change = sums[name], change.reshape(chunk.n_users, -1)
            units, bound = (change * total.scale).round(), total.bound / self._most
            inside = units.clamp(-bound, bound)
            clipped = clipped + (inside != units).sum(1)
            weighted = inside.nan_to_num().to(torch.int64) * weight[:, None]
            total.add_sums(weighted.sum(0), finite=torch.isfinite(units).all())
        seen = (samples.pointers[1:] - samples.pointers[:-1]) * settings.local_epochs
        return ChunkResult(
            private={"user_embedding": training.users}, loss=training.loss / seen, clipped=clipped
        )

    def _weights(self, chunk: Chunk, sums: RoundSums) -> torch.Tensor:
        """Return how many times each user's network counts, int64 (n_users,), and add it up."""
        held = chunk.pointers[1:] - chunk.pointers[:-1]
        weight = held.clamp(max=self._most)
        sums["samples" if self._weighted else "users"].add_whole(weight.float()[:, None])
        return weight

    def scores(
        self, chunk: Chunk, start: RoundStart, private: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the network's scores of all items for all users."""
        return network_scores(start.shared, private["user_embedding"])

    def preferences(
        self, serving: Mapping[str, NDArray[np.float32]], vector: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the network's scores of all items for one user vector."""
        return network_preferences(serving, vector)

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Divide rows and network by what belongs to each, and add them."""
        divisor = float(change["samples" if self._weighted else "users"][0])
        if not divisor:
            return shared
        by_row = np.maximum(counts, 1)[:, None] if self._weighted else divisor
        moved = {name: shared.tensors[name] + change[name] / divisor for name in self.network}
        rows = shared.tensors["item_embedding"] + change["item_embedding"] / by_row
        return shared.with_tensors(item_embedding=rows, **moved)
