"""sketch: an item-item model from two sums of n x k values, without private state. Our own.

`ease` inverts G = X^T X, the counts of all pairs, and the party that opens its sums can read them.
It needs only the part of G whose eigenvalues are above lambda, and that part follows from the
products of G with a few directions. X is (users x items) with 1 for an interaction, x_u a row of
it, n the number of items that enough users hold, k = `dim`.

Rounds: the count round gives c, the diagonal of G. Then

    Y_1 = G Omega,    Omega (n, k) from N(0, 1) by the public seed,
    Y_t = G Q,        Q = orth(Y_{t-1}) by QR, for t = 2, ..., `sums`.

Client: adds x_u (x_u^T Q) for its users, the same k values in each row of the user's history, on
the grid. A history of up to `longest_history` items fits the range. From the second sum on, it
always does (|x_u^T Q| <= sqrt(|h|), and four times that travels). In the first, it does within four
deviations of N(0, |h|). Values out of range are clipped and counted. The party that has the sum:
stores it. Every party that needs Q and its results derives them (`sketched_weights`). LAPACK's last
bits differ between machines, so contributions may differ, but published values are integers.

Model (Nystrom), with nu = 1e-9 |Y|_F and sigma the largest deviation of the grid's rounding in Y:

    C = sym Q^T (Y + nu Q) = V diag(w) V^T, of which w > max(nu, 2 sigma sqrt(k)) are kept,

    B = (Y + nu Q) V w^-1/2, B^T B = R diag(S^2) R^T,

    T = B R diag(sqrt(max(S^2 - nu, 0)) / S), so that G ~ T T^T.

Two sums hold up to 2 k directions without a byte more. The part of Omega outside Q is

    Omega - Q Q^T Omega = U diag(s) Z^T, and G U = (Y_1 - Y_2 Q^T Omega) Z / s.

Some candidates take [Q, U] and [Y_2, G U] in place of Q and Y, with the columns for which s > 1. If
clients left between the sums, Y_1 and Y_2 belong to two G. Then Q alone is the safe choice.

The counts give the diagonal, of which T T^T lacks d = max(c - rowsum(T^2), 0). D is lambda I
("plain"), lambda I + diag(d) ("diag") or lambda I + diag(d + c) ("edlae"). With W = D^-1 T, M = (I
+ T^T W)^-1 and P = D^-1 - W M W^T, a history x scores

    x - (x D^-1 - (x W M) W^T) / diag(P),

which is EASE's score with this P. It keeps n x k numbers, never an n x n matrix. "edlae" is the
diagonal of EDLAE ("Autoencoders that don't overfit towards the Identity", Steck 2020, section 3.3)
for a dropout of one half, p / (1 - p) = 1. Some candidates divide the score of item j by

    (c_j / mean of c)^beta, beta = 0.2,

which pushes popular items back, as RP3beta does (Paudel et al. 2017).

Choice: the round after the last sum grades. Every client measures the gain of each candidate on its
own users' validation items: lambda, plain, diag or edlae, Q alone or with U, and with U also beta.
The sums of these gains are published and determine the best candidate, which is part of the model.
Without such a round, the model follows the settings, with Q alone. Earlier models may have chosen
k/2 or k/4 directions, the first columns of Q and Y.

Noise: under `[privacy]` histories have length 1. A user adds x_u (x_u^T Q) / |h|. Its length is at
most 1 along orthonormal directions and about sqrt(k) along Omega, and there it is divided by 2
sqrt(k). A length above the clip is shrunk. There are no counts and no grades, sigma is the noise's,
and G is that of histories of length 1.

A version without a sum scores by the item counts. A version with Y_1 alone uses the same formulas
with Omega in place of Q, and is worse than with two sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.algorithm import ChunkResult, RoundStart
from fedrec.algorithms.declarations import (
    GRADES,
    HOLDERS,
    MEASURED,
    About,
    AlgorithmSettings,
    Constant,
    Parameter,
    SearchSpace,
    Shapes,
    UpdateTensor,
)
from fedrec.algorithms.exact import ExactAlgorithm
from fedrec.algorithms.sketched_weights import (
    Form,
    SketchedWeights,
    drawn_directions,
    joined,
    low_rank,
    orthonormal,
    scores_of,
    scores_of_history,
    served_rows,
    weights_of,
)
from fedrec.errors import SettingsError, VersionMismatch
from fedrec.model.state import SharedState

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk
    from fedrec.algorithms.grid import RoundSums

_FRACTION_BITS = 18
_GAIN_BITS = 20
"""Fraction bits of gains, as for the metrics: a user's gain is at most 1."""
_DEVIATIONS = 4.0
"""Deviations of N(0, |h|) that the range holds.

From the second sum on, all values travel multiplied by it.
"""
_DRAWN_LENGTHS = 2.0
"""In units of sqrt(k), the length that fits the clip, of histories along drawn directions."""
_VALUES_AT_ONCE = 1 << 20
_UNCHOSEN = -1.0
_LAMBDAS = (30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Candidates to grade in addition to the setting."""
_SMALL_LAMBDAS = (3.0, 10.0)
_EXPONENTS = (0.0, 0.2)


class SketchSettings(AlgorithmSettings):
    """sketch: an item-item model from two sums, with dim values per item."""

    name: Literal["sketch"] = Field(default="sketch", description="Which algorithm trains.")
    dim: int = Field(
        default=128,
        ge=1,
        le=4096,
        description="Directions (k) along which co-occurrences are summed. More make a better "
        "model, more bytes, and disclose more.",
    )
    sums: int = Field(
        default=2,
        ge=1,
        le=8,
        description="Training rounds that sum. A third changes little, and one alone is worse. The "
        "round after them grades candidates on validation, if rounds.total includes it.",
    )
    regularisation: float = Field(
        default=300.0,
        gt=0,
        le=1e9,
        description="L2 coefficient (lambda) of the item-item weights. Larger data needs more. If "
        "candidates are graded, it is one of them.",
    )
    form: Form = Field(
        default="diag",
        description='Whether the counts complete the diagonal of the sums ("diag"), are added once '
        'more ("edlae"), or lambda is alone there ("plain"). If candidates are graded, it is one '
        "of them.",
    )
    longest_history: int = Field(
        default=4096,
        ge=1,
        le=1 << 20,
        description="Length of a history that always fits the public range. Values of longer ones "
        "may be clipped, which is counted.",
    )

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        found: SearchSpace = {"algorithm.dim": (64, 128, 256, 512, 1024)}
        if n_rounds > self.sums:
            # The round that grades tries lambda and form itself.
            return found
        lambdas = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
        return {**found, "algorithm.regularisation": lambdas, "algorithm.form": get_args(Form)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A way to derive a model from the sums.

    Attributes:
        dim: number of directions in use, the first ones of Q. Twice as many as the settings have
            are those of both sums.
        exponent: beta, by which popular items are pushed back.
    """

    dim: int
    regularisation: float
    form: Form
    exponent: float


class Sketch(ExactAlgorithm):
    """Sums along few directions and the model that follows. See the module's docstring."""

    settings_type: ClassVar[type[AlgorithmSettings]] = SketchSettings
    about: ClassVar[About] = ABOUT["sketch"]

    settings: SketchSettings

    def __init__(self, settings: AlgorithmSettings, shapes: Shapes) -> None:
        super().__init__(settings, shapes)
        # One version each, because every round and every candidate needs them again.
        self._directions: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        self._low_rank: tuple[NDArray[np.float64], int, NDArray[np.float64]] | None = None
        self._weights: tuple[SharedState, SketchedWeights] | None = None

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The last two sums, as far as they exist, and their metadata."""
        size = self.shapes.n_items * self.settings.dim
        return (
            Parameter("product", "net", (0,), Constant(), grown_shape=(size,)),
            Parameter("before", "net", (0,), Constant(), grown_shape=(size,)),
            Parameter("item_users", "rows", (), Constant()),
            Parameter("summed", "scalar", (), Constant()),
            Parameter("choice", "scalar", (), Constant(_UNCHOSEN)),
        )

    @cached_property
    def recommending(self) -> tuple[str, ...]:
        """All of it: directions follow from the previous sum."""
        return tuple(entry.name for entry in self.parameters)

    @cached_property
    def tensors(self) -> tuple[UpdateTensor, ...]:
        """A row of `dim` values for each item, and the candidates' gains."""
        if self.shapes.n_rounds < self.settings.sums:
            raise SettingsError(
                f"rounds.total is {self.shapes.n_rounds}, but algorithm.sums needs "
                f"{self.settings.sums} training rounds that sum.",
                remedy=f"Set rounds.total = {self.settings.sums + 1}. The last round grades "
                "candidates on validation.",
            )
        noise = self.shapes.noise
        if noise is not None:
            self._check_under_noise()
        summed = UpdateTensor(
            name="product",
            shape=(self.shapes.n_items, self.settings.dim),
            limit=_DEVIATIONS * math.sqrt(self.settings.longest_history)
            if noise is None
            else self.shapes.update.clip,
            fraction_bits=_FRACTION_BITS if noise is None else self.shapes.update.fraction_bits,
            per_item=True,
            counted_by=HOLDERS,
        )
        if self.shapes.n_rounds == self.settings.sums:
            return (summed,)
        gains = UpdateTensor(
            name=GRADES,
            shape=(len(self.graded),),
            limit=1.0,
            fraction_bits=_GAIN_BITS,
            signed=False,
            counted_by=MEASURED,
        )
        return (summed, gains)

    def _check_under_noise(self) -> None:
        """Refuse settings that need sums without noise.

        Raises:
            SettingsError: a setting needs sums without noise. The message names the setting.
        """
        if self.shapes.n_rounds != self.settings.sums:
            raise SettingsError(
                f"rounds.total is {self.shapes.n_rounds}, but under privacy.mechanism sketch has "
                f"only its {self.settings.sums} sums: gains would reveal facts about users.",
                remedy=f"Set rounds.total = {self.settings.sums}.",
            )
        if self.settings.form != "plain":
            raise SettingsError(
                f"algorithm.form is {self.settings.form!r}, but under privacy.mechanism the counts "
                "that complete the diagonal are unknown.",
                remedy='Set algorithm.form = "plain".',
            )

    @property
    def ways(self) -> tuple[Candidate, ...]:
        """All candidates that a model may have chosen, the settings first.

        Models have the position of their choice, so new candidates are added at the end.
        """
        own = self.settings
        first = (own.dim, own.regularisation, own.form, 0.0)
        former: tuple[Form, ...] = ("plain", "diag")
        lambdas, none = _SMALL_LAMBDAS + _LAMBDAS, (0.0,)
        dims = (dim for dim in (own.dim, own.dim // 2, own.dim // 4) if dim)
        found = dict.fromkeys((first, *itertools.product(dims, _LAMBDAS, former, none)))
        found |= dict.fromkeys(itertools.product((own.dim,), _SMALL_LAMBDAS, former, none))
        found |= dict.fromkeys(itertools.product((own.dim,), lambdas, ("edlae",), none))
        if own.sums == 2 and self.shapes.noise is None:
            both = itertools.product((2 * own.dim,), lambdas, get_args(Form), _EXPONENTS)
            found |= dict.fromkeys(both)
        return tuple(
            Candidate(dim=dim, regularisation=value, form=form, exponent=exponent)
            for dim, value, form, exponent in found
        )

    @property
    def graded(self) -> tuple[int, ...]:
        """The positions of the candidates to grade: those of all directions, or of both sums."""
        return tuple(i for i, way in enumerate(self.ways) if way.dim >= self.settings.dim)

    def chosen(self, shared: SharedState) -> Candidate:
        """Return the candidate that makes a version's model.

        Raises:
            VersionMismatch: a newer fedrec made the version, with a candidate that is unknown here.
        """
        place, ways = max(0, int(shared.kept["choice"])), self.ways
        if place >= len(ways):
            raise VersionMismatch(
                f"This model of sketch has candidate {place}, made by a newer fedrec. This one has "
                f"{len(ways)} candidates, from 0.",
                remedy="Install the fedrec that wrote it, or a newer one.",
            )
        return ways[place]

    def candidates(self, shared: SharedState) -> Iterator[SharedState]:
        """Yield the version of each candidate, once all sums exist."""
        if self.shapes.n_rounds == self.settings.sums:
            # No round grades, so updates have no room for gains. Audits continue to train.
            return
        if not self._is_summed(shared) or float(shared.kept["choice"]) >= 0:
            return
        for place in self.graded:
            kept = {**shared.kept, "choice": np.asarray(float(place))}
            yield SharedState(MappingProxyType(kept), shared.holders, shared.rest)

    def _is_summed(self, shared: SharedState) -> bool:
        return float(shared.kept["summed"]) >= self.settings.sums

    def bytes_per_user(self, n_active: int, n_steps: int) -> int:
        """Return the memory of a user's items, sums and scores."""
        return 8 * n_active + 48 * n_steps + 40 * self.settings.dim

    def read(
        self, shared: SharedState, active: NDArray[np.int64], round_id: int
    ) -> dict[str, NDArray[Any]]:
        """Return this version's model and, for a round that sums, its directions."""
        values = self._model_of(shared, active)
        if round_id and not self._is_summed(shared):
            values["directions"] = self._travelling_directions(shared, active)
        return values

    def _model_of(
        self, shared: SharedState, active: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float64]]:
        """Return `factor`, `scale`, `own` and `popularity`: a score is the sum of their parts."""
        n_active = len(active)
        popularity = np.zeros(n_active)
        if not len(shared.kept["product"]):
            if shared.holders is not None:
                # An item's share of all interactions: it ranks, without claiming to be a
                # probability.
                popularity += shared.holders[active] / max(1, int(shared.holders.sum()))
            return {
                "factor": np.zeros((n_active, self.settings.dim)),
                "scale": np.ones(n_active),
                "own": np.zeros(n_active),
                "popularity": popularity,
            }
        if self._weights is None or self._weights[0] is not shared:
            way, holders = self.chosen(shared), shared.rows("item_users", active)
            low = self._low_rank_of(shared, active, way.dim)
            found = weights_of(low, holders, way.regularisation, way.form)
            if way.exponent:
                pushed = (np.maximum(holders, 1.0) / holders.mean()) ** -way.exponent
                found = replace(found, scale=found.scale * pushed, own=found.own * pushed)
            self._weights = (shared, found)
        found = self._weights[1]
        return {
            "factor": found.factor,
            "scale": found.scale,
            "own": found.own,
            "popularity": popularity,
        }

    def _low_rank_of(
        self, shared: SharedState, active: NDArray[np.int64], dim: int
    ) -> NDArray[np.float64]:
        """Return T of a version's first `dim` directions, computed once."""
        product = shared.kept["product"]
        known = self._low_rank
        if known is None or known[0] is not product or known[1] != dim:
            total = self._table(product)
            before = shared.kept["before"]
            drawn = not len(before)
            directions = (
                drawn_directions(self.shapes.seed, active, self.settings.dim)
                if drawn
                else self._orthonormal(before)
            )
            deviation = self._deviation(shared, active) / self._scale(drawn=drawn)
            if dim > self.settings.dim and not drawn:
                omega = drawn_directions(self.shapes.seed, active, self.settings.dim)
                directions, total = joined(omega, self._table(before), directions, total)
                # That of Y_1, and of Y_2 times Q^T Omega, whose rows have a length of sqrt(k).
                deviation *= math.sqrt(_DEVIATIONS**2 + self.settings.dim)
            found = low_rank(directions[:, :dim], total[:, :dim], deviation=deviation, drawn=drawn)
            self._low_rank = known = (product, dim, found)
        return known[2]

    def _scale(self, *, drawn: bool) -> float:
        """Return how much larger a sum travels than it is along its directions.

        Under noise a user's contribution has the length |x_u^T Q| / sqrt(|h|) <= 1 along
        orthonormal directions, which fills the clip, and about sqrt(k) along drawn ones.
        """
        if self.shapes.noise is None:
            return 1.0 if drawn else _DEVIATIONS
        longest = _DRAWN_LENGTHS * math.sqrt(self.settings.dim) if drawn else 1.0
        return self.shapes.noise.clip / longest

    def _deviation(self, shared: SharedState, active: NDArray[np.int64]) -> float:
        """Return the deviation of a value of a sum, in the scale in which it travels."""
        if self.shapes.noise is not None:
            return self.shapes.noise.deviation
        # Rounding has a deviation of 12^-1/2 steps for each holder.
        holders = shared.rows("item_users", active)
        return self.tensors[0].step * math.sqrt(float(holders.mean()) / 12.0)

    def _travelling_directions(
        self, shared: SharedState, active: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return a round's directions, in the scale in which sums travel."""
        product = shared.kept["product"]
        drawn = not len(product)
        directions = (
            drawn_directions(self.shapes.seed, active, self.settings.dim)
            if drawn
            else self._orthonormal(product)
        )
        return self._scale(drawn=drawn) * directions

    def _orthonormal(self, product: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return orth of a sum, computed once: summing and scoring both need it."""
        if self._directions is None or self._directions[0] is not product:
            self._directions = (product, orthonormal(self._table(product)))
        return self._directions[1]

    def _table(self, product: NDArray[np.float64]) -> NDArray[np.float64]:
        return product.reshape(-1, self.settings.dim)

    def fit(
        self,
        chunk: Chunk,
        start: RoundStart,
        private: dict[str, torch.Tensor],
        sums: RoundSums,
    ) -> ChunkResult:
        """Add x_u (x_u^T Q) for each user. The loss is that of the version at the start."""
        import torch

        sizes, owner = chunk.sizes, chunk.owner
        clipped = torch.zeros_like(sizes)
        # Rounded once for each user: all rows of a history are the same.
        rounded = None
        if "directions" in start.shared:
            along = chunk.summed(start.shared["directions"])
            if self.shapes.noise is not None:
                # The history has length 1, and so has every item's row of it.
                along = along / sizes.clamp(min=1)[:, None]
            rounded, over = sums["product"].rounded(along)
            rounded = sums.shrunk(rounded, sizes)
            clipped = over * sizes
        factor = start.shared["factor"]
        vectors = chunk.summed(factor)
        loss = vectors.new_zeros(len(owner))
        at_once = max(1, _VALUES_AT_ONCE // self.settings.dim)
        for begin in range(0, len(owner), at_once):
            part = slice(begin, begin + at_once)
            user, item = owner[part], chunk.positives[part]
            score = (vectors.index_select(0, user) * factor.index_select(0, item)).sum(-1)
            score = score * start.shared["scale"][item] + start.shared["own"][item]
            loss[part] = (1.0 - score - start.shared["popularity"][item]) ** 2
            if rounded is not None:
                sums["product"].put(item, rounded.index_select(0, user))
        total = torch.segment_reduce(loss, "sum", lengths=sizes, unsafe=True)
        return ChunkResult(loss=total / sizes.clamp(min=1), clipped=clipped)

    def scores(
        self, chunk: Chunk, start: RoundStart, private: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the scores that follow from each user's training items."""
        return scores_of(chunk, start.shared)

    def serving(
        self, shared: SharedState, active: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float32]]:
        """Return the model with a row for each item, zero for an inactive one."""
        return served_rows(self._model_of(shared, active), active, self.shapes.n_items)

    def preferences(
        self,
        serving: Mapping[str, NDArray[np.float32]],
        own: Mapping[str, NDArray[np.float32]],
    ) -> NDArray[np.float32]:
        """Return the scores of all items for a history."""
        return scores_of_history(serving, own["user_embedding"])

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Store the round's sum, or the candidate that its gains choose."""
        if not counts.any():
            return shared
        if self._is_summed(shared):
            if GRADES not in change or float(shared.kept["choice"]) >= 0:
                return shared
            # Among equals, the first.
            best = self.graded[int(np.argmax(change[GRADES]))]
            return shared.with_tensors(choice=np.asarray(float(best)))
        scale = 1.0 / self._scale(drawn=not len(shared.kept["product"]))
        if self.shapes.noise is not None:
            scale *= self.shapes.noise.users
        return shared.with_tensors(
            before=shared.kept["product"],
            product=(change["product"] * scale).reshape(-1),
            item_users=counts.astype(np.float64),
            summed=shared.kept["summed"] + 1.0,
        )
