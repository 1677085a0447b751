"""The declarations of an algorithm: settings, shapes, first values, its tensors and its update's.

`About` is the record of what other modules print about an algorithm, refuse because of it or try
with it. Those of fedrec's own algorithms are in `fedrec.algorithms.about`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.random_streams import normal, uniform
from fedrec.section import Section
from fedrec.updates.update import UpdateSettings


class Initial(Protocol):
    """How a parameter begins."""

    def draw(self, keys: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return float64 values.

        Args:
            keys: a stream for each index of the first axis, or a single stream for the whole tensor
                (no axes).
            shape: of the result.
        """


@dataclass(frozen=True, slots=True)
class Normal:
    """Entries N(0, deviation^2)."""

    deviation: float = 1.0

    def draw(self, keys: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw from the normal distribution. See `Initial`."""
        return normal(keys, shape) * self.deviation


@dataclass(frozen=True, slots=True)
class Uniform:
    """Entries uniform between -width and width."""

    width: float

    def draw(self, keys: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw from the uniform distribution. See `Initial`."""
        lead = keys.ndim
        rest = math.prod(shape[lead:])
        drawn = uniform(keys.reshape(*keys.shape, 1), np.arange(rest))
        return (2.0 * drawn - 1.0).reshape(shape) * self.width


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value everywhere."""

    value: float = 0.0

    def draw(self, keys: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the constant. See `Initial`."""
        return np.full(shape, self.value)


USER_KEY, TRAINING_ITEMS = "user_key", "training_items"
"""The tensors of an update that show a server the user's identity and number of training items.

A server orders users by their identities, each of which is four words of 16 bits.
"""

GRADES = "grades"
"""The tensor of an update that grades candidates. See `Algorithm.candidates`."""

TRAINED, MEASURED = "trained", "measured"
"""These users bound a sum's values: the users that trained in the round, or all users of its
clients, which are measured.
"""
HOLDERS, HOLDER_PAIRS = "holders", "holder pairs"
"""Or the users that touched the value's item row, or the smaller number of these for the two items
of a pair.

Pairs i < j of active items are numbered j (j - 1) / 2 + i, and a round sums the first that are
missing in the state's tensor of the same name.
"""


Rate = Annotated[float, Field(gt=0, le=1000)]
"""A step size."""
Factor = Annotated[float, Field(gt=0, le=1)]
"""A factor by which step sizes are repeatedly multiplied."""
Weight = Annotated[float, Field(ge=0, le=1000)]
"""The weight of a term of the loss. 0 omits it."""
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=1e6)]


SearchSpace = Mapping[str, tuple[float | str | bool, ...]]
"""By dotted key the values that a study tries, numbers in ascending order. A single value is not
varied: the study begins with it if the settings file names another algorithm."""


class AlgorithmSettings(Section):
    """The recommender and its local training."""

    name: str

    def search_space(self, n_rounds: int) -> SearchSpace:
        """Return the values that `fedrec tune` tries. By default there are none.

        Args:
            n_rounds: `rounds.total`.
        """
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SumNoise:
    """The noise on the sums under `[privacy]`.

    Attributes:
        clip: a user's longer contribution is shrunk to this L2 norm, over all tensors together.
        step: a grid step. A sum's values are multiples of it.
        deviation: at least this, of the noise on every value of a sum, in the values' units.
        users: the divisor of the sums that `apply` receives.
    """

    clip: float
    step: float
    deviation: float
    users: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseProposal:
    """Settings for an epsilon, a number of users and a catalogue.

    Attributes:
        settings: by dotted key.
        reason: what they give, in a sentence or two.
    """

    settings: Mapping[str, object]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Everything that defines an algorithm's shapes, except its settings.

    Attributes:
        n_items: items in the catalogue.
        seed: the federation's public seed.
        update: the update structure, which replaces a full item table.
        n_rounds: training rounds that will be published.
        minimum_item_users: users that hold an item that is trained.
        noise: the noise on the sums, or None if they are exact.
    """

    n_items: int
    seed: int
    update: UpdateSettings
    n_rounds: int
    minimum_item_users: int = 1
    noise: SumNoise | None = None


Scope = Literal["rows", "net", "scalar", "own_rows", "own"]
"""Shared: `rows` of the item table, a `net` tensor, and a `scalar` that `apply` advances and that
is never sent.

Private: `own_rows`, a row for each of a user's items, and `own`, one tensor per user.
"""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor of the model.

    Attributes:
        name: the name under which `loss` reads it.
        scope: whether it is shared or private, and its first axes. See `Scope`.
        shape: the axes after those of the scope: of a row, of a user's tensor, of the whole.
        initial: the distribution of its first values.
        same_for_all_users: whether all users begin with the same draw.
        limit: every value of a user's change is clipped to [-limit, limit]. None for `update.clip`.
        fraction_bits: of the grid. None for `update.fraction_bits`.
        mean: the divisor of the sum of changes: the users that touched the row (`holders`), all
            users that trained (`users`), or their numbers of training items, as weights
            (`samples`).
        grown_shape: the largest shape of a tensor that grows over the rounds. Empty for others.
        structured: whether an update structure may replace whole rows.
        added_to: for own rows: the shared rows to which `seen` adds them, as `v.rows`. A wrapper
            may replace the sum.
        applied: whether only an optimiser reads it, such as moments that `apply` keeps with every
            version. It isn't used for training or scores, and isn't exported.
        published: for a scalar: it is the number of published training rounds, which every version
            knows (`SharedState.trained`). There is no tensor.
        copies: for own rows that begin as a copy of shared ones, as PLGC's C begins as G: those
            shared rows, copied when a user first participates. Unless an optimiser moves them, too,
            the changes of the copies are summed for them.
        begins_as: the same for own rows that begin as the shared ones' first version.
        copy_flag: for copies: the user's own number that is 1 once it has them. Without it, every
            round makes new copies.
        sends_whole_table: for copies: whether users contribute the difference of their whole table
            from the version, and not only the round's change.
        received: for own rows: whether the server sends them to each user. See
            `Algorithm.personalise`.
        computed: for a shared tensor: whether the server of such an algorithm returns its values.
        shown: for a tensor of each user: whether the server of such an algorithm reads it. It
            travels in the update, on the grid of `update.clip`.
    """

    name: str
    scope: Scope
    shape: tuple[int, ...]
    initial: Initial = Normal()
    same_for_all_users: bool = False
    limit: float | None = None
    fraction_bits: int | None = None
    mean: Literal["holders", "users", "samples"] = "users"
    structured: bool = False
    grown_shape: tuple[int, ...] = ()
    added_to: str = ""
    applied: bool = False
    published: bool = False
    copies: str = ""
    copy_flag: str = ""
    sends_whole_table: bool = False
    begins_as: str = ""
    received: bool = False
    computed: bool = False
    shown: bool = False

    @property
    def private(self) -> bool:
        """Whether each user has its own.

        It never leaves its client, unless it is `shown`, or moves and has `copies` or `begins_as`:
        then its change, or its difference from the shared rows, is summed.
        """
        return self.scope in ("own", "own_rows")

    @property
    def begins_alike(self) -> bool:
        """Whether the first values don't depend on the user."""
        is_drawn = not (self.begins_as or isinstance(self.initial, Constant))
        return self.same_for_all_users or not is_drawn

    def whole_shape(self, *, n_items: int, n_users: int) -> tuple[int, ...]:
        """Return all axes."""
        lead = {"rows": (n_items,), "own": (n_users,), "own_rows": (n_users, n_items)}
        return (*lead.get(self.scope, ()), *self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTensor:
    """A tensor to which users contribute in every round and which is summed over them.

    Attributes:
        shape: one or two axes. With `per_item`, the first is the catalogue's.
        limit: every value of a user is clipped to [-limit, limit]. It is public.
        fraction_bits: values are rounded to multiples of limit x 2^-fraction_bits.
        per_item: whether its rows belong to items, so that rare items' rows stay zero.
        signed: whether users contribute negative values, too. A sum out of range is refused.
        largest_weight: the largest multiplicity of a user's rounded values.
        entries: at most this number of values of a user's change are not zero. Only these travel,
            with their indices in the clear. 0 if all travel.
        counted_by: the largest number of users in a value of the sum, by which an opened sum is
            checked (`fedrec.training.bounds`): `TRAINED`, `MEASURED`, `HOLDERS` or `HOLDER_PAIRS`,
            or the name of another tensor. If there is a mean, that tensor must be its divisor. A
            client that chose that number would choose the mean.
    """

    name: str
    shape: tuple[int, ...]
    limit: float
    fraction_bits: int
    per_item: bool = False
    signed: bool = True
    largest_weight: int = 1
    entries: int = 0
    counted_by: str = TRAINED

    @property
    def bound(self) -> int:
        """The largest contribution of a user to a value, in grid steps."""
        return self.largest_weight << self.fraction_bits

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def step(self) -> float:
        """Size of one grid step."""
        return self.limit * 2.0**-self.fraction_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadNoise:
    """Noise that papers put on each user's own upload. `[privacy]` puts noise on sums.

    An upload is the whole table that is trained, so rows that the user did not touch get noise like
    any other. It is drawn from a cryptographic source, anew in every round.

    Attributes:
        tensors: names of parameters with the scope `rows`. Together they are the upload.
        scale: b of Laplace noise or the standard deviation of Gaussian noise, in the model's units.
        clip: a user's longer change (L2 norm over all of `tensors`) is shrunk to this first. None
            for no limit.
    """

    tensors: tuple[str, ...]
    kind: Literal["laplace", "gaussian"]
    scale: float
    clip: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """The facts on which an algorithm's warnings may depend.

    Attributes:
        settings: the algorithm's own.
        update: the section `update`.
        n_items: size of the catalogue. 0 if unknown.
        n_held: items that enough users hold. 0 if unknown.
        n_rounds: training rounds that will be published.
        minimum_item_users, minimum_clients: as in the plan.
        noise: the noise on the sums, or None if they are exact.
    """

    settings: Any
    update: UpdateSettings
    n_items: int
    n_rounds: int
    minimum_item_users: int
    minimum_clients: int
    noise: SumNoise | None = None
    n_held: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The settings of an algorithm that an update structure requires.

    Attributes:
        settings: the one value that works, by the name of a setting.
        reason: why other values do not work, as a sentence.
    """

    settings: Mapping[str, object]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice about an algorithm for the person that chooses or tunes it. No run depends on it.

    Attributes:
        summary: a description in a few words, for the choice of an algorithm.
        warnings: returns the facts to know before choosing its settings.
        noise_proposal: returns settings for noise on sums over a catalogue of a size, if the
            algorithm is the best choice under noise.
        divergence_remedy: the changes to make if training diverges.
        shortfall: the settings to change if the model is worse than popularity.
        starter: settings by dotted key that were tuned on MovieLens-100K's validation items, for a
            first settings file and the demonstration. None if there are none.
    """

    summary: str = ""
    warnings: Callable[[Circumstances], list[str]] = lambda at: []
    noise_proposal: Callable[[int, SumNoise], NoiseProposal] | None = None
    divergence_remedy: str = "Lower the step sizes among the settings of algorithm.name."
    shortfall: str = "rounds.total and the rates in the section algorithm"
    starter: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """The valid combinations of an algorithm: any update structure, protection and protocol.

    Attributes:
        protections: no names mean all protections.
        needs: by update structure, the settings that it requires.
        reason: why there are no other valid combinations, as a sentence.
    """

    updates: tuple[str, ...] = ("dense",)
    protections: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ("full", "sampled", "paper")
    needs: Mapping[str, Needs] = field(default_factory=dict)
    reason: str = "the algorithm names no other valid combination."


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The data of a client that other parties can read, as clauses.

    Attributes:
        in_the_clear: what the coordinator can read from a client's update without encryption. If
            set, the plan is refused under "none" unless it is accepted on the command line.
        to_members: what a member can read about another client's user that alone holds an item,
            after raising the item's count.
    """

    in_the_clear: str = ""
    to_members: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The facts about an algorithm that modules need without naming it.

    Attributes:
        supports: its valid combinations.
        range_instead: the replacement for `update.clip` and `update.fraction_bits`, as a clause. If
            set, these two have no effect on users' contributions and are refused. Empty otherwise.
        not_under_noise: why noise on its sums and a fixed divisor have no meaning. Empty if they
            have one, as for sums of changes that are divided by the number of users.
        needs_all_clients: why all rounds must cover the same clients, as a clause that "over the
            same clients" completes. Empty if not, a function if it depends on the settings.
        exposes: what other parties can read.
        audit: the subject of its sums: single items, pairs of them, or sums over such pairs.
        modules: modules that its server imports and that fedrec does not always install.
        advice: its description, warnings, remedies and first settings.
    """

    supports: Support = Support()
    range_instead: str = ""
    not_under_noise: str = "the meaning of its sums with noise and a fixed divisor is not defined"
    needs_all_clients: str | Callable[[Any], str] = ""
    exposes: Exposure = Exposure()
    audit: Literal["rows", "pairs", "sketches"] = "rows"
    modules: tuple[str, ...] = ()
    advice: Advice = Advice()
