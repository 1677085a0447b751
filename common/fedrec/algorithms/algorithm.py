"""The interface of an algorithm: its private and shared tensors, and how shared ones are combined.

An algorithm's settings, its client half (training, `scores`) and its server half
(`apply`) are in one class, because the algorithm is the contract between them.
`apply` is pure numpy in a fixed order, so all parties that hold the plaintext compute the same
bits. Only the client half imports torch, when it trains.

Derive an algorithm that trains on minibatches from `TrainedAlgorithm`. It then consists of its
settings, parameters, phases and score. `fedrec.algorithms.trained` has the rules that hold for all
of them and that no paper has. Derive an algorithm that sums statistics from `ExactAlgorithm`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.declarations import (
    About,
    AlgorithmSettings,
    Parameter,
    Shapes,
    UpdateTensor,
    UploadNoise,
)
from fedrec.errors import SettingsError
from fedrec.model.state import PrivateState, SharedState
from fedrec.random_streams import Purpose, stream_key, user_stream

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.individual import Personal, UserUpdates
    from fedrec.algorithms.sent import Sent


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStart:
    """The values from which all users of a party start a round, on the training device.

    Attributes:
        shared: the shared tensors, or what the algorithm derives from them. Tensors per item have
            only the active rows.
        scalars: the shared scalars, on the host.
        basis: B of the update structure, (width, dim), or None for the identity.
        n_items: items in the whole catalogue.
        party_key: identity of the party for random streams, as `UserSplit.user_keys` are users'.
        active: rows of the active items in the catalogue, ascending int64 (n_active,).
    """

    round: int
    shared: Mapping[str, torch.Tensor]
    n_items: int
    active: torch.Tensor
    scalars: Mapping[str, float] = field(default_factory=dict)
    basis: torch.Tensor | None = None
    party_key: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of training."""
        return next(iter(self.shared.values())).dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """The results of training a chunk locally, except for the summed change.

    Attributes:
        private: new private tensors of the chunk's users, by name, first axis n_users.
        loss: mean training loss of each user, float32 (n_users,).
        clipped: number of clipped values of each user, int64 (n_users,).
    """

    private: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: torch.Tensor
    clipped: torch.Tensor


class Algorithm(ABC):
    """A federated recommender. The module's docstring explains which party runs which method.

    Attributes:
        name: the default of `name` of its settings.
        settings_type: its section of the settings.
        about: its description and its valid combinations.
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[AlgorithmSettings]]
    about: ClassVar[About] = About()

    settings: AlgorithmSettings

    def __init_subclass__(cls, **given: Any) -> None:
        """Take the name from the settings, so that it is the same word in files and in code."""
        super().__init_subclass__(**given)
        if "settings_type" in vars(cls):
            cls.name = cls.settings_type.model_fields["name"].default

    def __init__(self, settings: AlgorithmSettings, shapes: Shapes) -> None:
        self.settings = settings
        self.shapes = shapes

    @cached_property
    def derived(self) -> Derived:
        """Everything that follows from the declarations."""
        own = type(self).personalise is not Algorithm.personalise
        return Derived(self, personalises=own)

    @cached_property
    def sent(self) -> Sent | None:
        """The tensors that users send, if they follow from steps. Otherwise they are declared."""
        return None

    @property
    @abstractmethod
    def parameters(self) -> tuple[Parameter, ...]:
        """The tensors of the model."""

    @cached_property
    def recommending(self) -> tuple[str, ...]:
        """Names of the shared tensors that recommending needs. Only these are exported."""
        return tuple(
            entry.name
            for entry in self.parameters
            if entry.scope in ("rows", "net") and not entry.applied
        )

    @property
    def kept_scores(self) -> str:
        """Name of the private tensor that already holds users' scores of all items.

        It is (n_users, n_items), and recommendations are answered from it. Empty if scores are
        computed.
        """
        return ""

    @cached_property
    def scoring(self) -> tuple[str, ...]:
        """Names of the shared and private tensors that `scores` reads. It receives no others.

        The default is the tensors that recommending needs and a user's private ones, without an
        optimiser's moments.
        """
        entries = (entry for entry in self.parameters if entry.private and not entry.applied)
        return (*self.recommending, *(entry.name for entry in entries))

    @property
    @abstractmethod
    def tensors(self) -> tuple[UpdateTensor, ...]:
        """The tensors of an update, in the order in which they travel."""

    @property
    def upload_noise(self) -> UploadNoise | None:
        """Noise that a paper puts on every user's upload, or None."""
        return None

    def steps(self, n_positives: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the size of each user's work. Users of similar size are trained together."""
        return n_positives

    @abstractmethod
    def bytes_per_user(self, n_active: int, n_steps: int) -> int:
        """Return the memory that training needs per user of a chunk with this number of steps."""

    def read(
        self, shared: SharedState, active: NDArray[np.int64], round_id: int
    ) -> dict[str, NDArray[Any]]:
        """Return the tensors that a round reads: by default tables (active rows only) and nets."""
        return {
            entry.name: shared.rows(entry.name, active)
            if entry.scope == "rows"
            else shared.kept[entry.name]
            for entry in self.parameters
            if entry.scope in ("rows", "net") and not entry.applied
        }

    def refresh(
        self, chunk: Chunk, start: RoundStart, private: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the private parameters that follow from a version and the users' data alone.

        Most algorithms keep the results of the last training. An algorithm that solves its users
        exactly returns the solution, so a version is measured with vectors that belong to it.
        """
        return private

    @property
    def refreshes(self) -> bool:
        """Whether `refresh` changes anything."""
        return type(self).refresh is not Algorithm.refresh

    def personalise(self, updates: UserUpdates) -> Personal:
        """Return one model for each user of a round, from their updates one by one.

        An algorithm that overrides this needs a server that reads each client's update. It is
        refused under every protection. The sums of the same updates were applied before.
        """
        raise NotImplementedError(f"{self.name} has one model for all users")

    def scores(
        self, chunk: Chunk, start: RoundStart, private: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the preference of a chunk's users for items, float32 (n_users, n_active).

        By default <p, q_i> of `user_embedding` and `item_embedding`.

        Args:
            chunk: the users with their training items, including users that cannot train.
            private: the users' private tensors (refreshed) that `scoring` names, first axis
                n_users.
        """
        from fedrec.tensor_products import product_of_blocks

        return product_of_blocks(
            private["user_embedding"], start.shared["item_embedding"].T.contiguous()
        )

    def serving(
        self, shared: SharedState, active: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float32]]:
        """Return the input of `preferences`, in numpy, computed once for a model.

        Args:
            active: rows of the items that can be recommended, ascending int64 (n_active,).

        Returns:
            float32 tensors. "item_embedding" has a row for each item of the catalogue, as long as a
            user's vector.
        """
        applied = {entry.name for entry in self.parameters if entry.applied}
        return {
            name: values.astype(np.float32)
            for name, values in shared.tensors.items()
            if name not in applied
        }

    def preferences(
        self,
        serving: Mapping[str, NDArray[np.float32]],
        own: Mapping[str, NDArray[np.float32]],
    ) -> NDArray[np.float32]:
        """Return the scores of all items for one user, float32 (n_items,), in numpy.

        By default <p, q_i> with the rows of `serving`.

        Args:
            serving: the result of `serving`.
            own: the private tensors of a known user, without the axis of users. For a new one, only
                `user_embedding`, with the result of `fold_in`, (dim,).
        """
        return serving["item_embedding"] @ own["user_embedding"]

    def fold_in(
        self, items: NDArray[np.float64], positives: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return a new user's vector, computed from a history, float32 (dim,).

        If users keep no vectors, the default is the history itself: 1 for each of its items.

        Args:
            items: rows of the items that can be recommended, (n_active, dim).
            positives: positions of the history among them, distinct, at least one.

        Raises:
            SettingsError: the algorithm has no such vector.
        """
        if not self.derived.keeps_vectors:
            vector = np.zeros(len(items), dtype=np.float32)
            vector[positives] = 1.0
            return vector
        raise SettingsError(
            f"{self.name} has no user vector into which a history could be folded.",
            remedy="Ask the user's own client.",
        )

    @abstractmethod
    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Return the next version of the shared model.

        Args:
            shared: the version. Its tables have a row for each active item only.
            change: the summed tensors of the update by name, in the shapes of `tensors`. Tensors
                per item have a row for each active one.
            counts: users that touched each active item, (n_active,). If rounds do not count them,
                its holders by the last count.
        """


class Derived:
    """Everything that follows from an algorithm's declarations, and that no author writes.

    Attributes:
        personalises: whether the algorithm makes a model for each user.
    """

    def __init__(self, algorithm: Algorithm, *, personalises: bool) -> None:
        self._algorithm = algorithm
        self.personalises = personalises

    @cached_property
    def row_tables(self) -> tuple[str, ...]:
        """Names of the shared tensors with a row for each item."""
        return tuple(entry.name for entry in self._algorithm.parameters if entry.scope == "rows")

    @cached_property
    def private_widths(self) -> dict[str, tuple[int, ...]]:
        """The shape of one user's row of every private table, by name."""
        return {
            entry.name: entry.whole_shape(n_items=self._algorithm.shapes.n_items, n_users=1)[1:]
            for entry in self._algorithm.parameters
            if entry.private
        }

    @property
    def keeps_vectors(self) -> bool:
        """Whether users have vectors of their own.

        Otherwise a user's vector is `fold_in` of the history.
        """
        return any(entry.private for entry in self._algorithm.parameters)

    @property
    def negatives_per_positive(self) -> int:
        """The number of items that training draws for each interaction. 0 for none."""
        return getattr(self._algorithm.settings, "negatives_per_positive", 0)

    @property
    def counts_rows(self) -> bool:
        """Whether users count the rows that they touched. If counts divide nothing, they stay zero.

        Exact counts of every round would reveal the difference between two rounds' users. If counts
        follow from the data alone, `apply` receives those of the count round.
        """
        sent = self._algorithm.sent
        return sent is not None and "holders" in sent.divisors

    def initial_shared(self) -> SharedState:
        """Return the first version of the shared model, drawn from the run's public seed."""
        tensors, entries = {}, [entry for entry in self._algorithm.parameters if not entry.private]
        shapes = self._algorithm.shapes
        for counter, entry in enumerate(entries):
            key = stream_key(shapes.seed, Purpose.ITEM_EMBEDDING, 0, counter)
            shape = entry.whole_shape(n_items=shapes.n_items, n_users=0)
            if entry.published:
                continue
            tensors[entry.name] = np.asarray(entry.initial.draw(np.asarray(key), shape))
        return SharedState(MappingProxyType(tensors))

    def initial_private(self, user_keys: NDArray[np.int64]) -> PrivateState:
        """Return the private parameters of users that have never trained. Kept scores are 0."""
        tensors, entries = {}, [entry for entry in self._algorithm.parameters if entry.private]
        shared = self.initial_shared() if any(entry.begins_as for entry in entries) else None
        for counter, entry in enumerate(entries):
            key = stream_key(self._algorithm.shapes.seed, Purpose.USER_EMBEDDING, 0, counter)
            shape = entry.whole_shape(
                n_items=self._algorithm.shapes.n_items, n_users=len(user_keys)
            )
            if shared is not None and entry.begins_as:
                begun = shared.tensors[entry.begins_as].astype(np.float32)
                tensors[entry.name] = np.broadcast_to(begun, shape).copy()
            elif entry.same_for_all_users:
                one = entry.initial.draw(np.asarray(key), shape[1:]).astype(np.float32)
                tensors[entry.name] = np.broadcast_to(one, shape).copy()
            else:
                drawn = entry.initial.draw(user_stream(key, user_keys), shape)
                tensors[entry.name] = drawn.astype(np.float32)
        return PrivateState(MappingProxyType(tensors))

    def start(
        self,
        shared: SharedState,
        active: NDArray[np.int64],
        round_id: int,
        device: torch.device,
        dtype: torch.dtype | None = None,
    ) -> RoundStart:
        """Return the values from which a round starts.

        Args:
            active: rows of items that enough users hold, ascending int64 (n_active,).
            dtype: the floating-point type to train in. The default is float32.
        """
        import torch

        def move(values: NDArray[Any]) -> torch.Tensor:
            kind = dtype or torch.float32 if values.dtype.kind == "f" else None
            return torch.from_numpy(values).to(device, kind)

        found = self._algorithm.read(shared, active, round_id)
        sent = self._algorithm.sent
        basis = None if sent is None else sent.basis(round_id)
        return RoundStart(
            round=round_id,
            shared={name: move(values) for name, values in found.items()},
            n_items=self._algorithm.shapes.n_items,
            active=torch.from_numpy(active).to(device),
            scalars={
                entry.name: float(shared.trained if entry.published else shared.kept[entry.name])
                for entry in self._algorithm.parameters
                if entry.scope == "scalar" and not entry.applied
            },
            basis=None if basis is None else move(basis),
        )

    @cached_property
    def initial_scalars(self) -> Mapping[str, float]:
        """The shared scalars of version 0."""
        return MappingProxyType(
            {
                entry.name: float(entry.initial.draw(np.zeros((), np.int64), ()))
                for entry in self._algorithm.parameters
                if entry.scope == "scalar"
            }
        )
