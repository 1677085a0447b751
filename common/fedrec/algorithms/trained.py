"""Algorithms that train on minibatches: the declarations of each, and what follows from them.

An algorithm is its settings, parameters, phases and score. `fedrec.training.trainer` does the rest,
on processors and on CUDA alike. By default the loss is the mean binary cross-entropy of `score`,
shared parameters move by the means of the users' changes (`Sent.mean_changes`), and `score` gives
the scores of all items. Algorithms override further methods for the rest of a paper:

    loss, penalty, joint                  other terms to minimise: FedMF, FedRAP, PLGC
    seen, per_epoch                       sums or mixtures of item tables: FedRAP, PLGC
    apply                                 another step of the server: PFedCLR, FedRecGEL
    upload_noise                          noise on each upload: FedRAP, PFedCLR
    kept_scores, refresh                  scores that users keep: PFedRec, PFedCLR, PLGC
    untouched_scores                      scores of users and items without training: PLGC
    preferences                           scores of stored models: PFedCLR, PLGC

Four rules here are in no paper. Every value of a user's change is clipped to +-`update.clip`, or to
its parameter's own `limit`, and rounded to a grid before it is summed. Items that fewer than
`federation.minimum_item_users` users hold are neither trained nor drawn as negatives. Negatives are
drawn with replacement, where released code draws four distinct ones. Users' first vectors follow
from the public seed. tests/reference has each algorithm in plain float64, without clipping and
rounding. The papers' own settings, and the share of users in a round, are in lab/fedrec_lab/papers,
which `fedrec reproduce` runs.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.algorithms.algorithm import Algorithm, RoundStart
from fedrec.algorithms.batch import Batch, Values, cross_entropy
from fedrec.algorithms.declarations import AlgorithmSettings, UpdateTensor
from fedrec.algorithms.folding import fold_in_vector
from fedrec.algorithms.individual import shown_tensors
from fedrec.algorithms.optimisers import Phase
from fedrec.algorithms.sent import Sent
from fedrec.errors import SettingsError
from fedrec.exact_linalg import product

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.model.state import SharedState


TRAINER_VERSION = 2
"""Incremented whenever the trainer gives other bits."""
_BYTES_PER_SAMPLE = 160
"""While samples are drawn, about 110 bytes of tensors are in use for each.

Sorting on a device takes two more words and their places.
"""
_SCORED_USERS = 64
_SCORED_VALUES = 1 << 22


class TrainedSettings(AlgorithmSettings):
    """Passes, minibatches and negatives."""

    local_epochs: int = Field(
        default=1, ge=1, le=100, description="Passes over a user's samples in each round."
    )
    batch_size: int = Field(default=256, ge=1, le=1_000_000, description="Samples in a minibatch.")
    negatives_per_positive: int = Field(
        default=4, ge=1, le=1000, description="Items sampled as negatives for each interaction."
    )


class TrainedAlgorithm(Algorithm):
    """An algorithm of parameters, phases and a loss. See the module's docstring.

    `score`, `loss` and `penalty` read values as attributes named like the parameters. Their first
    axis is the user: rows are (n_users, n_rows, ...), others (n_users, ...). For scores of all
    items, rows are (1, n_items, ...) if all users share the table.

    Attributes:
        reads_samples: whether `personalise` reads the users' numbers of training items.
        mixes_with: for an algorithm with `personalise`: the table that PLGC mixes with users' own
            ones. Empty if PLGC has no meaning around it.
    """

    reads_samples: ClassVar[bool] = False
    mixes_with: ClassVar[str] = ""

    settings: TrainedSettings

    @abstractmethod
    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return the phases of a round's local training.

        Args:
            scalars: the shared scalars of the version that the round starts from.
        """

    @abstractmethod
    def score(self, v: Values) -> torch.Tensor:
        """Return the preference for each row, (n_users, n_rows)."""

    def loss(self, v: Values, batch: Batch) -> torch.Tensor:
        """Return each user's loss of a minibatch, (n_users,). Metrics report it."""
        return batch.weighted_sum(cross_entropy(self.score(v), batch.label))

    def penalty(self, v: Values, batch: Batch) -> torch.Tensor | float:
        """Return further terms to minimise, (n_users,) or nothing. Metrics do not report them."""
        return 0.0

    def joint(self, v: Values, batch: Batch) -> torch.Tensor | float:
        """Return further terms for a minibatch's items as a set, (n_users,) or nothing.

        Metrics do not report them either. They are not a mean over samples, so `per_occurrence`
        does not apply to them.
        """
        return 0.0

    def seen(self, v: Values) -> Values:
        """Return the values that scores and losses read, computed once per minibatch."""
        return v

    @property
    def folding_pull(self) -> float | None:
        """Weight of |p|^2 when `fedrec.algorithms.folding` fits a user's vector p, or None.

        Set it if <p, row> orders the items of a user that has nothing but p, apart from a bias.
        `preferences` then computes these scores without torch.
        """
        return None

    def fold_in(
        self, items: NDArray[np.float64], positives: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Fit p to the published table by FedMF's own loss.

        Raises:
            SettingsError: the algorithm has no such vector.
        """
        if self.folding_pull is None:
            return super().fold_in(items, positives)
        return fold_in_vector(
            items,
            positives,
            negatives_per_positive=self.settings.negatives_per_positive,
            regularisation=self.folding_pull,
        )

    # Hooks for algorithms with item tables per user.

    def per_epoch(self, square: Callable[[str], torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return constants by name that scores and losses read in an epoch, (n_users, ...) each.

        Args:
            square: returns the squared Frobenius norm of each user's item table of this name,
                shared or own, over all active items, (n_users,).
        """
        return {}

    # Contributions of users.

    @cached_property
    def sent(self) -> Sent:
        """The tensors that users send, and how the server divides their sums."""
        phases = self.phases(self.derived.initial_scalars)
        optimisers = [optimiser for phase in phases for optimiser in phase.optimisers]
        return Sent(self.parameters, optimisers, self.shapes)

    @cached_property
    def tensors(self) -> tuple[UpdateTensor, ...]:
        """The changes of the shared parameters, their divisors, and what users show the server."""
        if not self.derived.personalises:
            return self.sent.tensors
        shown = shown_tensors(self.parameters, self.shapes.update, reads_samples=self.reads_samples)
        return (*self.sent.tensors, *shown)

    def steps(self, n_positives: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of minibatches in an epoch."""
        n_samples = n_positives * (1 + self.settings.negatives_per_positive)
        return -(-n_samples // self.settings.batch_size)

    def bytes_per_user(self, n_active: int, n_steps: int) -> int:
        """Return the memory of a user's samples and private parameters.

        A block of few users trains at a time, whatever the chunk.
        """
        own = sum(
            math.prod(entry.whole_shape(n_items=self.shapes.n_items, n_users=1))
            for entry in self.parameters
            if entry.private
        )
        return _BYTES_PER_SAMPLE * n_steps * self.settings.batch_size + 12 * own

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Move every shared parameter by the mean of its changes."""
        means = self.sent.mean_changes(change, counts, round_id)
        return shared.with_tensors(
            **{name: shared.tensors[name] + mean for name, mean in means.items()}
        )

    # Scores.

    def scores(
        self, chunk: Chunk, start: RoundStart, private: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the scores of all items by `score`, float32 (n_users, n_active)."""
        if self.kept_scores:
            return private[self.kept_scores].index_select(1, start.active)
        return scores_of(self, chunk.n_users, start, private)

    def untouched_scores(
        self, n_users: int, start: RoundStart, private: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the scores of items whose rows no user trained, (n_users, n_active).

        The first version's are the scores that users keep until they train.
        """
        return scores_of(self, n_users, start, private)

    def preferences(
        self,
        serving: Mapping[str, NDArray[np.float32]],
        own: Mapping[str, NDArray[np.float32]],
    ) -> NDArray[np.float32]:
        """Return the scores of all items, for a new user with other private values 0.

        Raises:
            SettingsError: users have item rows of their own, which a new user's vector does not
                contain.
        """
        rows = [entry.name for entry in self.parameters if entry.scope == "own_rows"]
        if self.folding_pull is not None and not own.keys() & rows:
            return super().preferences(serving, own)
        import torch

        if not rows:
            values = {
                entry.name: np.zeros(entry.shape, dtype=np.float32)
                for entry in self.parameters
                if entry.scope == "own"
            } | {**serving, "user_embedding": own["user_embedding"]}
        elif own.keys() & rows:
            known = {**serving, **own}
            values = {name: known[name] for name in known if name in self.scoring}
        else:
            raise SettingsError(
                f"{self.name} scores with item rows of each user's own, which a vector does not "
                "contain.",
                remedy="Ask the user's own client.",
            )
        # A copy: mapped memory cannot be written, and torch would warn about that.
        tensors = {name: torch.from_numpy(np.array(found))[None] for name, found in values.items()}
        return self.score(self.seen(Values(tensors)))[0].numpy()


def first_scores(
    algorithm: TrainedAlgorithm, private: Mapping[str, NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Return the first values of `kept_scores`, float32 (n_users, n_items).

    If all users begin with the same values, there is one row for all.
    """
    version = algorithm.derived.initial_shared()
    if all(entry.begins_alike for entry in algorithm.parameters if entry.private):
        private = {name: values[:1] for name, values in private.items()}
    n_users, n_items = len(private[algorithm.kept_scores]), algorithm.shapes.n_items
    if algorithm.folding_pull is None:
        import torch

        start = algorithm.derived.start(version, np.arange(n_items), 0, torch.device("cpu"))
        own = {name: torch.from_numpy(values) for name, values in private.items()}
        return algorithm.untouched_scores(n_users, start, own).numpy()
    vectors, table = private["user_embedding"], version.tensors["item_embedding"]
    found = np.empty((n_users, n_items), dtype=np.float32)
    for begin in range(0, n_users, _SCORED_USERS):
        part = slice(begin, begin + _SCORED_USERS)
        scores = product(vectors[part].astype(np.float64), table.T)
        if "user_bias" in private:
            scores += private["user_bias"][part, None]
        found[part] = scores
    return found


def scores_of(
    algorithm: TrainedAlgorithm,
    n_users: int,
    start: RoundStart,
    private: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """Return the scores of all items by `score`, whether or not scores are kept."""
    import torch

    from fedrec.tensor_products import one_thread

    n_active = len(start.active)
    common = {
        entry.name: start.shared[entry.name][None]
        for entry in algorithm.parameters
        if entry.name in start.shared
    } | {
        name: torch.full((1,), value, device=start.active.device)
        for name, value in start.scalars.items()
    }
    # The number of users at a time is fixed: products depend on it.
    at_once = max(8, min(_SCORED_USERS, _SCORED_VALUES // (32 * max(n_active, 1))))
    found = torch.empty((n_users, n_active), device=start.active.device)
    for begin in range(0, n_users, at_once):
        place = torch.arange(begin, begin + at_once, device=start.active.device)
        place = place.clamp(max=n_users - 1)
        own = {}
        for entry in algorithm.parameters:
            if entry.name not in algorithm.scoring:
                continue
            if entry.scope == "own":
                own[entry.name] = private[entry.name].index_select(0, place)
            elif entry.scope == "own_rows":
                rows = private[entry.name].index_select(0, place)
                own[entry.name] = rows.index_select(1, start.active)
        with one_thread():
            scores = algorithm.score(algorithm.seen(Values(common | own)))
        end = min(n_users, begin + at_once)
        found[begin:end] = scores[: end - begin]
    return found
