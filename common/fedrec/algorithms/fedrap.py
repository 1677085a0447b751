"""FedRAP: "Federated Recommendation with Additive Personalization" (Li et al., ICLR 2024).

Model of a user (section 3, eq. 1, with the released code's bias): score s_i = <w, D_i + C_i> + c. C
(n_items x dim) is the shared item table. The user's own parameters are the item table D (n_items x
dim), the head w (dim) and the bias c (scalar). Private: D, w, c. Shared: C.

Client, for every minibatch of b samples (eq. 3, as in the released code: means over the samples'
rows, while the paper sums over the whole tables):

    L = mean BCE - lambda mean((D_i - C_i)^2) + mu R,   R = mean |C_i|, mean C_i^2 or 0

in one simultaneous step of SGD, w and c with `learning_rate`, C and D with `item_rate`, and weight
decay omega on all of them. Every row of C and D shrinks in every step, whether the user touches it
or not. Both rates are multiplied by `batch_decay` after every minibatch, starting over in every
visit, and by `round_decay` after every published round. A user stops if an epoch changed its mean
loss since the visit began by less than `tolerance`, relatively.

Server: C <- mean over participants of their whole tables.

Schedules of lambda and mu (section 4.1 and the ablation), with a = 1, 2, ... the number of the
training round, counted by published rounds. v is `difference_weight` or `sparsity_weight`:

    tanh   tanh(a / 10) v                     fixed  v
    sin    (sin(a / 10) + 1) / 2 v            frac   v / (a + 1)
    square 0 for ten rounds, v for ten, and so on

Paper and released code disagree in these points. The released code computes a schedule and never
reads it, so it always runs `fixed`. Here schedules are applied. The paper's sin(a / 10) v is
negative from a = 32 on, which contradicts the paper's text about its weights. The code's form is
used. The paper's `square` toggles every 10 rounds and the code's every 5. The paper's is used, and
it begins with 0. The soft threshold of section 3.3 has no stated size. The code's subgradient is
used.

Variants of the paper: FedRAP-C is `tables = "shared"` (s = <w, C_i> + c, without a difference
term), FedRAP-D `tables = "private"` (s = <w, D_i> + c, nothing is sent), FedRAP-No `sparsity =
"none"`, FedRAP-L2 `sparsity = "l2"`. The others are schedules.

Evaluation uses a user's own D, w and c with the published C, as in the paper. Users that never
trained have the initial ones.

The paper's differential privacy (section 3.4) clips the client's gradient of C to the length tau
and adds Gaussian noise, with "variance z = 1", in the sense of Opacus (deviation z tau). With
`noise_where = "grad"` this happens in every local step, on all rows. With "upload" it happens once,
on the change that is sent. The text's own noise, proportional to 2 eta tau / n_s, is far smaller
and is not offered, because its factor is not given. `fedrec.algorithms.about.accounted_epsilon`
computes the cost.

FedRAP-C can be combined with `update.structure = "colr"`. Its C is C + A B while a user trains, and
its part in B's subspace decays as a whole. At rank = dim that is the dense step, for any B.

The term with minus lambda is not bounded below. Only omega and the falling rates limit the
difference of D and C, and a run that diverges is stopped.
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
    """FedRAP: a shared item table plus one per user."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("weight_decay", "item_rate"),
            lambda section: section.shrinks < 1,
            "{path}.weight_decay times the larger step size is {s.shrinks:g}, so every step would "
            "flip the signs of all values. Lower {path}.weight_decay or {path}.item_rate until "
            "the product is below 1.",
        ),
    )

    name: Literal["fedrap"] = Field(default="fedrap", description="Which algorithm trains.")
    dim: int = Field(default=32, ge=1, le=1024, description="Length of an embedding vector.")
    tables: Literal["both", "shared", "private"] = Field(
        default="both",
        description="Item tables behind scores: shared and own, the shared one alone (FedRAP-C), "
        "or own ones alone (FedRAP-D, in which users learn nothing together).",
    )
    learning_rate: Rate = Field(default=0.5, description="Step size of a user's head and bias.")
    item_rate: Positive = Field(default=200.0, description="Step size of both item tables.")
    weight_decay: Share = Field(
        default=1e-4,
        description="L2 coefficient (omega) of all parameters. All rows of both tables shrink in "
        "every step, touched or not.",
    )
    difference_weight: Annotated[Weight, UsedIf({"tables": ("both",)})] = Field(
        default=0.1,
        description="Reward for own rows that differ from the shared ones (v1 of lambda).",
    )
    sparsity: Annotated[Literal["l1", "l2", "none"], UsedIf(_SHARED)] = Field(
        default="l1", description="The regulariser that keeps the shared table small."
    )
    sparsity_weight: Annotated[Weight, UsedIf(_SPARSE)] = Field(
        default=0.1, description="Weight of that regulariser (v2 of mu)."
    )
    schedule: Annotated[
        Literal["tanh", "sin", "square", "frac", "fixed"],
        UsedIf(_SPARSE, above_zero=("sparsity_weight",)),
        UsedIf({"tables": ("both",)}, above_zero=("difference_weight",)),
    ] = Field(
        default="tanh",
        description="Schedule of both weights over the published rounds. The paper's released "
        "code always runs fixed.",
    )
    batch_decay: Factor = Field(
        default=0.95, description="Factor of step sizes after every minibatch."
    )
    round_decay: Factor = Field(
        default=0.97, description="Factor of step sizes after every published round."
    )
    tolerance: Share = Field(
        default=1e-4,
        description="A user stops after an epoch that changed its mean loss relatively less. 0 "
        "for never.",
    )
    noise_where: Annotated[Literal["none", "grad", "upload"], UsedIf(_SHARED)] = Field(
        default="none",
        description="Place of the paper's Gaussian noise: every gradient of the shared table, or "
        "every upload. It lacks the guarantee of [privacy]. `fedrec check` reports its epsilon.",
    )
    noise_clip: Annotated[Positive, UsedIf(_NOISY)] = Field(
        default=0.1,
        description="A longer gradient or upload of the shared table is shrunk to this length "
        "(tau) before noise is added.",
    )
    noise_multiplier: Annotated[Positive, UsedIf(_NOISY)] = Field(
        default=1.0, description="Deviation of the noise as a multiple of noise_clip (z)."
    )
    local_epochs: int = Field(
        default=10, ge=1, le=100, description="Most passes over a user's samples in a round."
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
        """The largest share of a value that decay removes in a step."""
        return max(self.item_rate, self.learning_rate) * self.weight_decay


class FedRAP(TrainedAlgorithm):
    """A shared table, own tables and heads. See the module's docstring."""

    settings: FedRAPSettings

    name: ClassVar[str] = "fedrap"
    settings_type: ClassVar[type[AlgorithmSettings]] = FedRAPSettings
    about: ClassVar[About] = ABOUT["fedrap"]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """C and D with entries N(0, 1), heads within +-1/sqrt(dim).

        D and heads are the same for all users.
        """
        dim, alone = self.settings.dim, self.settings.tables == "shared"
        head = Uniform(1.0 / math.sqrt(dim))
        added_to = "item_embedding" if self.settings.tables == "both" else ""
        own = Parameter("own_embedding", "own_rows", (dim,), alike=True, added_to=added_to)
        # A shared table that no score uses keeps its first values. If it is the only table, an
        # update structure may replace its rows.
        return (
            Parameter("item_embedding", "rows", (dim,), Normal(), structured=alone),
            *(() if alone else (own,)),
            Parameter("published", "scalar", (), Constant(), published=True),
            Parameter("user_embedding", "own", (dim,), head, alike=True),
            Parameter("user_bias", "own", (), head, alike=True),
        )

    @property
    def recommending(self) -> tuple[str, ...]:
        """C, if scores use it."""
        return () if self.settings.tables == "private" else ("item_embedding",)

    def seen(self, v: Values) -> Values:
        """Return the values with `rows` added: D + C, or the only one of the two."""
        if self.settings.tables == "shared":
            return v.having({"rows": v.item_embedding})
        alone = self.settings.tables == "private"
        return v.having({"rows": v.own_embedding if alone else v.own_embedding + v.item_embedding})

    def scheduled(self, v: Values) -> torch.Tensor:
        """Return this round's factors of lambda and mu, (n_users,)."""
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
        """Return one simultaneous step of all parameters per minibatch."""
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
        """The paper's noise if it is on uploads."""
        if self.settings.noise_where != "upload":
            return None
        sent, tau, z = self.recommending, self.settings.noise_clip, self.settings.noise_multiplier
        return UploadNoise(tensors=sent, kind="gaussian", scale=z * tau, clip=tau)

    def score(self, v: Values) -> torch.Tensor:
        """Return <w, D_i + C_i> + c."""
        return dot(v.rows, v.user_embedding) + v.user_bias[:, None]

    def loss(self, v: Values, batch: Batch) -> torch.Tensor:
        """Return eq. 3 for a minibatch."""
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
        """Weight of |w|^2 if the shared table is the only one (FedRAP-C)."""
        return FOLDING_PULL if self.settings.tables == "shared" else None
