"""FedRAP: "Federated Recommendation with Additive Personalization" (Li et al., ICLR 2024).

Model of a user (section 3, eq. 1; the released code's bias added): score
s_i = <w, D_i + C_i> + c with the shared item table C (n_items x dim), the user's own item table D
(n_items x dim), and its own head w (dim) and bias c (scalar). Private: D, w, c. Shared: C.

Client, for every minibatch of b samples (eq. 3, as the released code takes it: means over the
samples' rows, where the paper sums over the whole tables):

    L = mean BCE - lambda mean((D_i - C_i)^2) + mu R,   R = mean |C_i|, mean C_i^2 or 0

in one simultaneous step of SGD, w and c with `learning_rate`, C and D with `item_rate`, weight
decay omega on all of them: every row of C and D shrinks in every step, whether the user touches it
or not. Both rates are multiplied with `batch_decay` after every minibatch, which begins anew in
every visit, and with `round_decay` after every published round. A user stops when an epoch moved
its mean loss since the visit began by less than `tolerance`, relatively.

Server: C <- mean over participants of their whole tables.

Schedules of lambda and mu (section 4.1 and the ablation), a = 1, 2, ... the training round by the
number of rounds published before it; v is `difference_weight` or `sparsity_weight`:

    tanh   tanh(a / 10) v                     fixed  v
    sin    (sin(a / 10) + 1) / 2 v            frac   v / (a + 1)
    square 0 for ten rounds, v for ten, and so on

Where paper and released code disagree. The released code computes a schedule and never reads it,
so that whatever it is told, it runs `fixed`; here schedules are applied. The paper's sin(a / 10) v
is negative from a = 32 on, against what the paper says of its weights; the code's form is taken.
The paper's `square` toggles every 10 rounds and the code's every 5; the paper's is taken, and it
begins with 0. Section 3.3's soft threshold has no stated size; the code's subgradient is taken.

Variants of the paper: FedRAP-C is `tables = "shared"` (s = <w, C_i> + c, nothing to be apart from),
FedRAP-D `tables = "private"` (s = <w, D_i> + c, nothing is sent), FedRAP-No `sparsity = "none"`,
FedRAP-L2 `sparsity = "l2"`; the others are schedules.

What is measured: a user's own D, w and c with the published C, as in the paper; users who never
trained have the initial ones.

The paper's differential privacy (section 3.4) clips the client's gradient of C to the length tau
and adds Gaussian noise, with "variance z = 1", as Opacus means it (deviation z tau): with
`noise_where = "grad"` in every local step, on all rows; with "upload" once, on the change that is
sent. The text's own noise, proportional to 2 eta tau / n_s, is far smaller, and its factor is not
given: it is not offered. What is spent: `accounted_epsilon`.

FedRAP-C goes with `update.structure = "colr"`: its C is C + A B while a user trains, and what of it
lies in B's subspace decays as a whole. At rank = dim that is the dense step, whatever B is.

Minus lambda is not bounded below: only omega and the falling rates keep D and C from running apart
without end, and a run that diverges is stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedrec.algorithms.about import About, Circumstances, Needs, Problem
from fedrec.algorithms.batch import Batch, Values, added, cross_entropy, dot
from fedrec.algorithms.declarations import (
    AlgorithmSettings,
    Constant,
    Normal,
    Parameter,
    Uniform,
    UploadNoise,
)
from fedrec.algorithms.folding import FOLDING_PULL
from fedrec.algorithms.optimisers import Phase, Sgd
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings
from fedrec.section import UsedIf

if TYPE_CHECKING:
    import torch


_DELTA = 1e-5
"""The paper names no delta."""
_SHARED: Mapping[str, tuple[object, ...]] = {"tables": ("both", "shared")}
_SPARSE = {**_SHARED, "sparsity": ("l1", "l2")}
_NOISY: Mapping[str, tuple[object, ...]] = {"noise_where": ("grad", "upload")}


class FedRAPSettings(TrainedSettings):
    """FedRAP: a shared item table plus one of each user's own."""

    name: Literal["fedrap"] = Field(default="fedrap", description="Which algorithm trains.")
    dim: int = Field(default=32, ge=1, le=1024, description="Length of an embedding vector.")
    tables: Literal["both", "shared", "private"] = Field(
        default="both",
        description="Which item tables scores are made of: shared and own, the shared one "
        "alone (FedRAP-C), or own ones alone (FedRAP-D: nothing is learned together).",
    )
    learning_rate: float = Field(
        default=0.5, gt=0, le=1000, description="Step size of a user's head and bias."
    )
    item_rate: float = Field(
        default=200.0, gt=0, le=1e6, description="Step size of both item tables."
    )
    weight_decay: float = Field(
        default=1e-4,
        ge=0,
        lt=1,
        description="L2 coefficient (omega) of everything; all rows of both tables shrink in "
        "every step, touched or not.",
    )
    difference_weight: Annotated[float, UsedIf({"tables": ("both",)})] = Field(
        default=0.1,
        ge=0,
        le=1000,
        description="How much own rows are rewarded for being unlike the shared ones (v1 of "
        "lambda).",
    )
    sparsity: Annotated[Literal["l1", "l2", "none"], UsedIf(_SHARED)] = Field(
        default="l1", description="What keeps the shared table small."
    )
    sparsity_weight: Annotated[float, UsedIf(_SPARSE)] = Field(
        default=0.1, ge=0, le=1000, description="How much it does (v2 of mu)."
    )
    schedule: Annotated[
        Literal["tanh", "sin", "square", "frac", "fixed"],
        UsedIf(_SPARSE, above_zero=("sparsity_weight",)),
        UsedIf({"tables": ("both",)}, above_zero=("difference_weight",)),
    ] = Field(
        default="tanh",
        description="How both weights go over the published rounds. The paper's released code "
        "runs fixed whatever it is told.",
    )
    batch_decay: float = Field(
        default=0.95, gt=0, le=1, description="What step sizes are multiplied with per minibatch."
    )
    round_decay: float = Field(
        default=0.97,
        gt=0,
        le=1,
        description="What step sizes are multiplied with per published round.",
    )
    tolerance: float = Field(
        default=1e-4,
        ge=0,
        lt=1,
        description="A user stops after an epoch that changed its mean loss relatively less; "
        "0 for never.",
    )
    noise_where: Annotated[Literal["none", "grad", "upload"], UsedIf(_SHARED)] = Field(
        default="none",
        description="Where the paper's Gaussian noise goes: on every gradient of the shared table, "
        "or on every upload of it. It is no guarantee of [privacy]; check says what it is worth.",
    )
    noise_clip: Annotated[float, UsedIf(_NOISY)] = Field(
        default=0.1,
        gt=0,
        le=1e6,
        description="A longer gradient of the shared table, or upload, is shrunk to this length "
        "(tau) before noise is added.",
    )
    noise_multiplier: Annotated[float, UsedIf(_NOISY)] = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="Deviation of the noise as a multiple of noise_clip (z).",
    )
    local_epochs: int = Field(
        default=10, ge=1, le=100, description="Most passes over a user's samples in each round."
    )
    batch_size: int = Field(default=2048, ge=1, le=1_000_000, description="Samples in a minibatch.")


class FedRAP(TrainedAlgorithm):
    """A shared table, own tables and heads; see the module's docstring."""

    settings: FedRAPSettings

    name: ClassVar[str] = "fedrap"
    settings_type: ClassVar[type[AlgorithmSettings]] = FedRAPSettings

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """C and D with entries N(0, 1), heads within +-1/sqrt(dim); D and heads alike for all."""
        settings, dim = self.settings, self.settings.dim
        head = Uniform(1.0 / math.sqrt(dim))
        found = [
            Parameter("published", "scalar", (), Constant(), published=True),
            Parameter("user_embedding", "own", (dim,), head, alike=True),
            Parameter("user_bias", "own", (), head, alike=True),
        ]
        if settings.tables != "shared":
            found.insert(0, Parameter("own_embedding", "own_rows", (dim,), Normal(), alike=True))
        # Without a shared table it stays as it was drawn, and nobody reads it. Where it is the
        # only one, an update structure may stand in for its rows.
        alone = settings.tables == "shared"
        shared = Parameter("item_embedding", "rows", (dim,), Normal(), structured=alone)
        return (shared, *found)

    @property
    def recommending(self) -> tuple[str, ...]:
        """C, where it has a say."""
        return () if self.settings.tables == "private" else ("item_embedding",)

    @property
    def added(self) -> Mapping[str, str]:
        """D is added to C where there are both."""
        return {"item_embedding": "own_embedding"} if self.settings.tables == "both" else {}

    def scheduled(self, v: Values) -> torch.Tensor:
        """Return what lambda and mu are multiplied with in this round, (n_users,)."""
        import torch

        number = v.published + 1.0
        if self.settings.schedule == "tanh":
            return torch.tanh(number / 10)
        if self.settings.schedule == "sin":
            return (torch.sin(number / 10) + 1) / 2
        if self.settings.schedule == "square":
            return torch.remainder(torch.floor(v.published / 10), 2)
        if self.settings.schedule == "frac":
            return 1 / (number + 1)
        return torch.ones_like(number)

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return one simultaneous step of everything a minibatch."""
        settings = self.settings
        slower = settings.round_decay ** scalars["published"]
        own, rows = settings.learning_rate * slower, settings.item_rate * slower
        rates = {"user_embedding": own, "user_bias": own}
        if settings.tables != "private":
            rates["item_embedding"] = rows
        if settings.tables != "shared":
            rates["own_embedding"] = rows
        noisy = ("item_embedding",) if settings.noise_where == "grad" else ()
        step = [self._sgd({name: rates[name] for name in rates if name not in noisy})]
        if noisy:
            step.append(
                replace(
                    self._sgd({name: rates[name] for name in noisy}),
                    longest=settings.noise_clip,
                    noise=settings.noise_clip * settings.noise_multiplier,
                )
            )
        return (Phase((tuple(step),), epochs=settings.local_epochs, tolerance=settings.tolerance),)

    def _sgd(self, rates: Mapping[str, float]) -> Sgd:
        settings = self.settings
        return Sgd(
            rates,
            decay=settings.weight_decay,
            whole=settings.weight_decay > 0,
            factor=settings.batch_decay,
        )

    @property
    def upload_noise(self) -> UploadNoise | None:
        """The paper's noise where it is on uploads."""
        settings = self.settings
        if settings.noise_where != "upload":
            return None
        return UploadNoise(
            tensors=("item_embedding",),
            kind="gaussian",
            scale=settings.noise_clip * settings.noise_multiplier,
            clip=settings.noise_clip,
        )

    def score(self, v: Values) -> torch.Tensor:
        """Return <w, D_i + C_i> + c."""
        return dot(self.rows(v), v.user_embedding) + v.user_bias[:, None]

    def rows(self, v: Values) -> torch.Tensor:
        """Return the rows that scores are made of."""
        if self.settings.tables == "shared":
            return v.item_embedding
        if self.settings.tables == "private":
            return v.own_embedding
        return added(v, "item_embedding", "own_embedding")

    def loss(self, v: Values, batch: Batch) -> torch.Tensor:
        """Return eq. 3 of a minibatch."""
        found = cross_entropy(self.score(v), batch.label)
        for term in self._regularisers(v):
            found = found + self.scheduled(v)[:, None] * term
        return batch.mean(found)

    def _regularisers(self, v: Values) -> Iterator[torch.Tensor]:
        """Yield v2 R and -v1 (D_i - C_i)^2 of every row, means over its entries."""
        from fedrec.tensor_products import absolute_sums, square_sums

        settings, dim = self.settings, self.settings.dim
        if settings.tables == "private":
            return
        if settings.sparsity == "l1":
            yield settings.sparsity_weight / dim * absolute_sums(v.item_embedding)
        elif settings.sparsity == "l2":
            yield settings.sparsity_weight / dim * square_sums(v.item_embedding)
        if settings.tables == "both":
            apart = square_sums(v.own_embedding - v.item_embedding)
            yield -settings.difference_weight / dim * apart

    @property
    def folding_pull(self) -> float | None:
        """Weight of |w|^2 where the shared table is all there is (FedRAP-C)."""
        return FOLDING_PULL if self.settings.tables == "shared" else None


def _contradiction(settings: AlgorithmSettings) -> Problem | None:
    """Refuse decay beyond zero."""
    assert isinstance(settings, FedRAPSettings)
    shrinks = max(settings.item_rate, settings.learning_rate) * settings.weight_decay
    if shrinks < 1:
        return None
    return (
        ("algorithm.weight_decay", "algorithm.item_rate"),
        f"algorithm.weight_decay times the larger step size is {shrinks:g}: every step would "
        "turn all values round. Lower algorithm.weight_decay or algorithm.item_rate until the "
        "product is below 1.",
    )


def accounted_epsilon(multiplier: float, n_releases: int, delta: float) -> float:
    """Return what a user's releases cost together, for a reader of the uploads themselves.

    Two users' clipped gradients are up to two lengths apart, so that a release costs rho =
    2 / z^2 (zero-concentrated differential privacy, which is Renyi divergence at every order;
    Bun and Steinke 2016). Costs add up, and epsilon is at most rho + 2 sqrt(rho ln(1 / delta)).

    Args:
        multiplier: z, the noise's deviation by the clip.
    """
    rho = n_releases * 2.0 / multiplier**2
    return rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))


def _warnings(at: Circumstances) -> list[str]:
    """Say what the paper's noise is worth, what it takes, and when decay overshoots."""
    settings, update = at.settings, at.update
    assert isinstance(settings, FedRAPSettings)
    shrinks = settings.item_rate * settings.weight_decay
    if update.structure == "colr" and shrinks * math.sqrt(settings.dim / update.rank) >= 1:
        return [
            f"Under colr rows shrink sqrt(dim / rank) = {math.sqrt(settings.dim / update.rank):g} "
            "times as fast within the round's subspace, so that decay alone turns them round in "
            "every step. Lower algorithm.weight_decay or algorithm.item_rate, or raise update.rank."
        ]
    if settings.noise_where == "none":
        return []
    steps = settings.local_epochs if settings.noise_where == "grad" else 1
    epsilon = accounted_epsilon(settings.noise_multiplier, at.n_rounds * steps, _DELTA)
    each = f"{at.n_rounds} rounds" + (f" of {steps} local steps" if steps > 1 else "")
    found = [
        f'algorithm.noise_where = "{settings.noise_where}": over {each} the noise on a user\'s own '
        f"contributions is worth epsilon {epsilon:,.0f} at delta {_DELTA:g}"
        + (", more for users with several minibatches" if steps > 1 else "")
        + ". It is the paper's noise, not accounted as [privacy] is; for a guarantee take that, "
        "with an algorithm that it goes with."
    ]
    if settings.noise_where == "grad":
        values = f"{at.n_items * settings.dim:,}" if at.n_items else "items x dim"
        found.append(
            'algorithm.noise_where = "grad" makes every user step all rows in every minibatch, '
            f"with {values} numbers of noise each time: for simulations of little data."
        )
    return found


FedRAP.about = About(
    summary="a shared item table plus one of each user's own",
    updates=("dense", "colr"),
    combination_reason="FedRAP divides a sum of whole tables' changes by all participants. scolr "
    "divides by those who trained a row of B, which is another mean, and svd and topk would "
    "compress the decay of rows that nobody touches away.",
    needs={
        "colr": Needs(
            settings={"tables": "shared", "noise_where": "none"},
            reason="Where users have tables of their own, what the shared one cannot learn within "
            "a round's subspace goes into those, and the paper's noise is on whole rows: nobody "
            "has defined a low-rank form of either.",
        )
    },
    contradiction=_contradiction,
    warnings=_warnings,
    not_under_noise="rows that a user does not touch shrink in its steps, so that noise and one "
    "fixed divisor would have to cover the whole table of each user",
    divergence_remedy="Lower algorithm.difference_weight, whose term is not bounded below, or "
    "algorithm.item_rate.",
    shortfall="rounds.total, algorithm.item_rate and algorithm.weight_decay",
)
