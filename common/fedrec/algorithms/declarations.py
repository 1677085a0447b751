"""What makes an algorithm: settings, shapes, first values, its tensors and those of its update.

And what is said of it: `About`, the record of all that others say about it, refuse because of it or
try with it. Those of fedrec's own are in `fedrec.algorithms.about`.
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
from fedrec.updates.settings import UpdateSettings


class Initial(Protocol):
    """How a parameter begins."""

    def draw(self, keys: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return float64 values.

        Args:
            keys: a stream for each index of the first axis, or one for the whole tensor (no axes).
            shape: of the result.
        """


@dataclass(frozen=True, slots=True)
class Normal:
    """Entries N(0, deviation^2)."""

    deviation: float = 1.0

    def draw(self, keys: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return values; see `Initial`."""
        return normal(keys, shape) * self.deviation


@dataclass(frozen=True, slots=True)
class Uniform:
    """Entries uniform between -width and width."""

    width: float

    def draw(self, keys: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return values; see `Initial`."""
        lead = keys.ndim
        rest = math.prod(shape[lead:])
        drawn = uniform(keys.reshape(*keys.shape, 1), np.arange(rest))
        return (2.0 * drawn - 1.0).reshape(shape) * self.width


@dataclass(frozen=True, slots=True)
class Constant:
    """One value everywhere."""

    value: float = 0.0

    def draw(self, keys: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return values; see `Initial`."""
        return np.full(shape, self.value)


GRADES = "grades"
"""The tensor of an update that grades candidates; see `Algorithm.candidates`."""

TRAINED, MEASURED = "trained", "measured"
"""Whose number bounds a sum's values: the users who trained in the round, or all that its clients
have, who are measured."""
HOLDERS, HOLDER_PAIRS = "holders", "holder pairs"
"""Or the users who touched the value's item row, or the fewer of those of both its items: pairs
i < j of active items are numbered j (j - 1) / 2 + i, and a round sums the first that are missing
in the state's tensor of the same name."""


Rate = Annotated[float, Field(gt=0, le=1000)]
"""A step size."""
Factor = Annotated[float, Field(gt=0, le=1)]
"""What step sizes are multiplied with again and again."""
Weight = Annotated[float, Field(ge=0, le=1000)]
"""Of a term of the loss; 0 leaves it out."""
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
    """What lies on the sums under `[privacy]`.

    Attributes:
        clip: a longer contribution of a user is shrunk to this L2 norm, all tensors together.
        deviation: of the noise on every value of a sum, at least, as the values are.
        users: what a sum was divided by when `apply` is given it.
    """

    clip: float
    deviation: float
    users: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What an algorithm is made for besides its settings.

    Attributes:
        n_items: items in the catalogue.
        seed: the federation's public seed.
        update: what is trained and sent in place of a full item table.
        n_rounds: training rounds that will be published.
        minimum_item_users: users who hold an item that is trained.
        noise: what lies on the sums; None where they are exact.
    """

    n_items: int
    seed: int
    update: UpdateSettings
    n_rounds: int
    minimum_item_users: int = 1
    noise: SumNoise | None = None


Scope = Literal["rows", "net", "scalar", "own_rows", "own"]
"""Shared: `rows` of the item table, a `net` tensor, a `scalar` that `apply` advances and nobody
sends. Private: `own_rows`, a row for each of a user's items, and `own`, a user's one tensor."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor of the model.

    Attributes:
        name: what `loss` finds it as.
        scope: whose it is, and what its first axes are; see `Scope`.
        shape: the axes behind those of the scope: of a row, of a user's tensor, of the whole.
        initial: how it begins.
        alike: whether all users begin with the same draw.
        limit: every value of a user's change is clipped to [-limit, limit]; None for `update.clip`.
        fraction_bits: of the grid; None for `update.fraction_bits`.
        mean: what the sum of the changes is divided by: the users who touched the row (`holders`),
            all who trained (`users`), or their numbers of training items, which weigh them
            (`samples`).
        most: the shape at its largest, of a tensor that grows over the rounds; empty for others.
        structured: whether an update structure may stand in for whole rows.
        copies: of own rows: the shared rows that a user's table is a copy of when it first takes
            part. Unless an optimiser moves those rows, too, the own ones' changes are what is
            summed for them.
        begun: of such a copy: the user's own number that is 1 once it has taken part; without one
            it is a new copy in every round.
        added_to: of own rows: the shared rows that `seen` adds them to, as `v.rows`; a wrapper may
            put something else in the place of the sum.
        whole: of such a copy: users contribute how their whole table differs from the version, and
            not only what moved in the round.
        published: of a scalar: it is the number of published training rounds, which every version
            knows (`SharedState.trained`); there is no tensor.
        applied: whether only an optimiser reads it, such as moments that `apply` keeps with every
            version: nothing trains on it, scores with it or exports it.
    """

    name: str
    scope: Scope
    shape: tuple[int, ...]
    initial: Initial = Normal()
    alike: bool = False
    limit: float | None = None
    fraction_bits: int | None = None
    mean: Literal["holders", "users", "samples"] = "users"
    structured: bool = False
    most: tuple[int, ...] = ()
    copies: str = ""
    begun: str = ""
    added_to: str = ""
    whole: bool = False
    applied: bool = False
    published: bool = False

    @property
    def private(self) -> bool:
        """Whether it never leaves its client."""
        return self.scope in ("own", "own_rows")

    def whole_shape(self, *, n_items: int, n_users: int) -> tuple[int, ...]:
        """Return all axes."""
        lead = {"rows": (n_items,), "own": (n_users,), "own_rows": (n_users, n_items)}
        return (*lead.get(self.scope, ()), *self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTensor:
    """A tensor that users contribute to in every round and that is summed over them.

    Attributes:
        shape: the first axis is the catalogue's where `per_item`; one or two axes.
        limit: every value of a user is clipped to [-limit, limit]; public.
        fraction_bits: values are rounded to multiples of limit x 2^-fraction_bits.
        per_item: whether its rows belong to items, so that rare items' rows stay zero.
        signed: whether users contribute negative values, too; a sum outside is refused.
        largest_weight: a user's rounded values count this many times at most.
        entries: how many values of a user's change are not zero at most, which travel alone with
            their indices in the clear; 0 where all travel.
        counted_by: how many users can be in a value of the sum, by which an opened sum is checked
            (`fedrec.training.bounds`): `TRAINED`, `MEASURED`, `HOLDERS` or `HOLDER_PAIRS`, or the
            name of another tensor, which must be what the mean is divided by where there is one.
            A client that chose that number for itself would choose the mean.
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
        """What a user adds at most to a value, in grid steps."""
        return self.largest_weight << self.fraction_bits

    @property
    def size(self) -> int:
        """Values in it."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def step(self) -> float:
        """Size of one grid step."""
        return self.limit * 2.0**-self.fraction_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadNoise:
    """Noise as papers put it on each user's own upload; `[privacy]` is about sums.

    An upload is the whole table of what is trained, so that rows which the user did not touch get
    noise like any other. It is drawn from a cryptographic source, anew in every round.

    Attributes:
        tensors: names of parameters with the scope `rows`; together they are the upload.
        scale: of Laplace noise its b, of Gaussian noise its standard deviation, in the model's
            units.
        clip: a longer change of a user (L2 norm over all of `tensors`) is shrunk to this before;
            None for no limit.
    """

    tensors: tuple[str, ...]
    kind: Literal["laplace", "gaussian"]
    scale: float
    clip: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What an algorithm's warnings may depend on.

    Attributes:
        settings: the algorithm's own.
        update: the section `update`.
        n_items: size of the catalogue; 0 where nobody knows.
        n_rounds: training rounds that will be published.
        minimum_item_users, minimum_clients: as in the plan.
        under_noise: whether noise lies on the sums.
    """

    settings: Any
    update: UpdateSettings
    n_items: int
    n_rounds: int
    minimum_item_users: int
    minimum_clients: int
    under_noise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an update structure asks of an algorithm's settings.

    Attributes:
        settings: the one value that works, by the name of a setting.
        reason: why others do not, a sentence.
    """

    settings: Mapping[str, object]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What others need to know of an algorithm that they do not name.

    Attributes:
        summary: what it is in a few words, where one is chosen.
        updates, protections, protocols: what it can be combined with, any with any other; no
            protections means every one.
        combination_reason: why it goes with nothing else.
        needs: by update structure among `updates`, with which of its settings alone it goes.
        warnings: what somebody who chooses its settings should know.
        clips: whether `update.clip` and `update.fraction_bits` have a say in what users
            contribute; settings without a use are refused.
        range_instead: what stands in for `update.clip` where it has no say, as a clause.
        not_under_noise: why noise on its sums and a fixed divisor have no meaning; empty where
            they do, as for sums of changes that are divided by the number of users.
        needs_everybody: why rounds over different clients do not belong together, as a clause
            about "every round"; empty where they do. A function where it depends on the settings.
        exact: whether what users contribute follows from their data and the version alone. Then
            rounds count nobody, and all of them are over those who took part in the count round.
        exposed_in_the_clear: what a coordinator without encryption reads of a client; then the
            plan is refused under "none" unless it is accepted on the command line.
        exposed_to_members: what a member reads of others' users who alone hold an item, if it
            raises the item's count; as a clause.
        divergence_remedy: what to change when training diverges.
        shortfall: which settings to change when the model is worth less than counting.
        starter: settings by dotted key that were tuned on MovieLens-100K's validation items, for
            a first settings file and the demonstration; None where there are none.
        audit: what its sums are about: single items, pairs of them, or sums over such pairs.
        modules: what it imports besides torch, of packages that fedrec doesn't always bring.
    """

    summary: str = ""
    updates: tuple[str, ...] = ("dense",)
    protections: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ("full", "sampled", "paper")
    combination_reason: str = "the algorithm names no other that it was made for."
    needs: Mapping[str, Needs] = field(default_factory=dict)
    warnings: Callable[[Circumstances], list[str]] = lambda at: []
    clips: bool = True
    range_instead: str = "exact counts, none of which is clipped or rounded"
    not_under_noise: str = (
        "nobody has said what its sums mean with noise and divided by a fixed number"
    )
    needs_everybody: str | Callable[[Any], str] = ""
    exact: bool = False
    exposed_in_the_clear: str = ""
    exposed_to_members: str = ""
    divergence_remedy: str = "Lower the step sizes among the settings of algorithm.name."
    shortfall: str = "rounds.total and the rates in the section algorithm"
    starter: Mapping[str, object] | None = None
    audit: Literal["rows", "pairs", "sketches"] = "rows"
    modules: tuple[str, ...] = ()

    def needs_everybody_with(self, settings: AlgorithmSettings) -> str:
        """Return `needs_everybody` of these settings."""
        found = self.needs_everybody
        return found if isinstance(found, str) else found(settings)
