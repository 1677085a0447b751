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
given: it is not offered. What is spent: `fedrec.algorithms.about.accounted_epsilon`.

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

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.batch import Batch, Values, cross_entropy, dot
from fedrec.algorithms.declarations import (
    About,
    AlgorithmSettings,
    Constant,
    Factor,
    Normal,
    Parameter,
    Positive,
    Rate,
    SearchSpace,
    Share,
    Uniform,
    UploadNoise,
    Weight,
)
from fedrec.algorithms.folding import FOLDING_PULL
from fedrec.algorithms.optimisers import Phase, Sgd
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings
from fedrec.section import Rule, UsedIf

if TYPE_CHECKING:
    import torch


_SHARED: Mapping[str, tuple[object, ...]] = {"tables": ("both", "shared")}
_SPARSE = {**_SHARED, "sparsity": ("l1", "l2")}
_NOISY: Mapping[str, tuple[object, ...]] = {"noise_where": ("grad", "upload")}


class FedRAPSettings(TrainedSettings):
    """FedRAP: a shared item table plus one of each user's own."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("weight_decay", "item_rate"),
            lambda section: section.shrinks < 1,
            "{path}.weight_decay times the larger step size is {s.shrinks:g}: every step would "
            "turn all values round. Lower {path}.weight_decay or {path}.item_rate until the "
            "product is below 1.",
        ),
    )

    name: Literal["fedrap"] = Field(default="fedrap", description="Which algorithm trains.")
    dim: int = Field(default=32, ge=1, le=1024, description="Length of an embedding vector.")
    tables: Literal["both", "shared", "private"] = Field(
        default="both",
        description="Which item tables scores are made of: shared and own, the shared one "
        "alone (FedRAP-C), or own ones alone (FedRAP-D: nothing is learned together).",
    )
    learning_rate: Rate = Field(default=0.5, description="Step size of a user's head and bias.")
    item_rate: Positive = Field(default=200.0, description="Step size of both item tables.")
    weight_decay: Share = Field(
        default=1e-4,
        description="L2 coefficient (omega) of everything; all rows of both tables shrink in "
        "every step, touched or not.",
    )
    difference_weight: Annotated[Weight, UsedIf({"tables": ("both",)})] = Field(
        default=0.1,
        description="How much own rows gain by being unlike the shared ones (v1 of lambda).",
    )
    sparsity: Annotated[Literal["l1", "l2", "none"], UsedIf(_SHARED)] = Field(
        default="l1", description="What keeps the shared table small."
    )
    sparsity_weight: Annotated[Weight, UsedIf(_SPARSE)] = Field(
        default=0.1, description="How much it does (v2 of mu)."
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
    batch_decay: Factor = Field(
        default=0.95, description="What step sizes are multiplied with per minibatch."
    )
    round_decay: Factor = Field(
        default=0.97, description="What step sizes are multiplied with per published round."
    )
    tolerance: Share = Field(
        default=1e-4,
        description="A user stops after an epoch that changed its mean loss relatively less; "
        "0 for never.",
    )
    noise_where: Annotated[Literal["none", "grad", "upload"], UsedIf(_SHARED)] = Field(
        default="none",
        description="Where the paper's Gaussian noise goes: on every gradient of the shared table, "
        "or on every upload of it. It is no guarantee of [privacy]; check says what it is worth.",
    )
    noise_clip: Annotated[Positive, UsedIf(_NOISY)] = Field(
        default=0.1,
        description="A longer gradient of the shared table, or upload, is shrunk to this length "
        "(tau) before noise is added.",
    )
    noise_multiplier: Annotated[Positive, UsedIf(_NOISY)] = Field(
        default=1.0, description="Deviation of the noise as a multiple of noise_clip (z)."
    )
    local_epochs: int = Field(
        default=10, ge=1, le=100, description="Most passes over a user's samples in each round."
    )
    batch_size: int = Field(default=2048, ge=1, le=1_000_000, description="Samples in a minibatch.")

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        found: SearchSpace = {
            "algorithm.dim": (16, 32, 64),
            "algorithm.learning_rate": (0.1, 0.3, 1.0),
            "algorithm.item_rate": (50.0, 100.0, 200.0, 400.0),
            "update.clip": (16.0,),
            "rounds.total": (60,),
        }
        if self.tables == "both":
            found = {**found, "algorithm.difference_weight": (0.01, 0.1, 1.0)}
        if self.tables != "private" and self.sparsity != "none":
            found = {**found, "algorithm.sparsity_weight": (0.01, 0.1, 1.0)}
        return found

    @property
    def shrinks(self) -> float:
        """The largest share of a value that decay takes off in a step."""
        return max(self.item_rate, self.learning_rate) * self.weight_decay


class FedRAP(TrainedAlgorithm):
    """A shared table, own tables and heads; see the module's docstring."""

    settings: FedRAPSettings

    name: ClassVar[str] = "fedrap"
    settings_type: ClassVar[type[AlgorithmSettings]] = FedRAPSettings
    about: ClassVar[About] = ABOUT["fedrap"]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """C and D with entries N(0, 1), heads within +-1/sqrt(dim); D and heads alike for all."""
        dim, alone = self.settings.dim, self.settings.tables == "shared"
        head = Uniform(1.0 / math.sqrt(dim))
        added_to = "item_embedding" if self.settings.tables == "both" else ""
        own = Parameter("own_embedding", "own_rows", (dim,), alike=True, added_to=added_to)
        # Without a shared table it stays as it was drawn, and nobody reads it. Where it is the
        # only one, an update structure may stand in for its rows.
        return (
            Parameter("item_embedding", "rows", (dim,), Normal(), structured=alone),
            *(() if alone else (own,)),
            Parameter("published", "scalar", (), Constant(), published=True),
            Parameter("user_embedding", "own", (dim,), head, alike=True),
            Parameter("user_bias", "own", (), head, alike=True),
        )

    @property
    def recommending(self) -> tuple[str, ...]:
        """C, where it has a say."""
        return () if self.settings.tables == "private" else ("item_embedding",)

    def seen(self, v: Values) -> Values:
        """Return the same with `rows`, what scores are made of: D + C, or the one that there is."""
        if self.settings.tables == "shared":
            return v.having({"rows": v.item_embedding})
        alone = self.settings.tables == "private"
        return v.having({"rows": v.own_embedding if alone else v.own_embedding + v.item_embedding})

    def scheduled(self, v: Values) -> torch.Tensor:
        """Return what lambda and mu are multiplied with in this round, (n_users,)."""
        import torch

        number, schedule = v.published + 1.0, self.settings.schedule
        if schedule == "tanh":
            return torch.tanh(number / 10)
        if schedule == "sin":
            return (torch.sin(number / 10) + 1) / 2
        if schedule == "square":
            return torch.remainder(torch.floor(v.published / 10), 2)
        return 1 / (number + 1) if schedule == "frac" else torch.ones_like(number)

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return one simultaneous step of everything a minibatch."""
        settings = self.settings
        slower = settings.round_decay ** scalars["published"]
        own, rows = settings.learning_rate * slower, settings.item_rate * slower
        rates = {"user_embedding": own, "user_bias": own} | dict.fromkeys(self.recommending, rows)
        if settings.tables != "shared":
            rates["own_embedding"] = rows
        decay = settings.weight_decay
        step = Sgd(rates, decay=decay, whole=decay > 0, factor=settings.batch_decay)
        steps: tuple[Sgd, ...] = (step,)
        if settings.noise_where == "grad":
            noisy = {"item_embedding": rates.pop("item_embedding")}
            tau, z = settings.noise_clip, settings.noise_multiplier
            steps = (step, replace(step, rates=noisy, longest=tau, noise=z * tau))
        return (Phase((steps,), epochs=settings.local_epochs, tolerance=settings.tolerance),)

    @property
    def upload_noise(self) -> UploadNoise | None:
        """The paper's noise where it is on uploads."""
        if self.settings.noise_where != "upload":
            return None
        sent, tau, z = self.recommending, self.settings.noise_clip, self.settings.noise_multiplier
        return UploadNoise(tensors=sent, kind="gaussian", scale=z * tau, clip=tau)

    def score(self, v: Values) -> torch.Tensor:
        """Return <w, D_i + C_i> + c."""
        return dot(v.rows, v.user_embedding) + v.user_bias[:, None]

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
        if settings.sparsity != "none" and settings.tables != "private":
            sums = absolute_sums if settings.sparsity == "l1" else square_sums
            yield settings.sparsity_weight / dim * sums(v.item_embedding)
        if settings.tables == "both":
            apart = square_sums(v.own_embedding - v.item_embedding)
            yield -settings.difference_weight / dim * apart

    @property
    def folding_pull(self) -> float | None:
        """Weight of |w|^2 where the shared table is all there is (FedRAP-C)."""
        return FOLDING_PULL if self.settings.tables == "shared" else None
