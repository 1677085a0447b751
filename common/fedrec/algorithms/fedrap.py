"""FedRAP: "Federated Recommendation with Additive Personalization" (Li et al., ICLR 2024).

`fedrec.algorithms.trained` has the four rules that no paper has.
A plain version is in tests/reference/plain_fedrap.py.

Model of a user (section 3.1, eq. 1): score s_i = <w, D_i + C_i> + c. C (n_items x dim) is the
shared item table. The user's own parameters are the item table D (n_items x dim), the head w (dim),
which is the paper's user embedding u_i, and the bias c (scalar). Private: D, w, c. Shared: C.

Client, for minibatch b = 0, 1, ... of a visit, with n samples j (eq. 3 with means):

    L = mean BCE - lambda mean((D_i - C_i)^2) + mu R,   R = mean |C_i|, mean C_i^2 or 0

Means are over the samples and the entries of their rows (`FedRAP.loss`). With e_j = sigmoid(s_j) -
y_j, sums over the samples j of item i, and R = mean |C_i|, autograd's gradients are:

    dL/dw     = mean_j e_j (D + C)_{i_j}
    dL/dc     = mean_j e_j
    dL/dD_i   = sum_j (e_j w - (2 lambda / dim) (D_i - C_i)) / n
    dL/dC_i   = sum_j (e_j w + (2 lambda / dim) (D_i - C_i) + (mu / dim) sign C_i) / n

All parameters move at once from old values (`FedRAP.phases`, and `TrainedBlock._move` in
training/trained_block.py). Rows that the user does not touch shrink as well:

    w, c      x <- x - eta_b (dL/dx + omega x),       eta_b = `learning_rate` decay_b
    D, C      x <- x - eta'_b (dL/dx + omega x),      eta'_b = `item_rate` decay_b
              decay_b = `batch_decay`^b `round_decay`^(a - 1),      omega = `weight_decay`

a = 1, 2, ... is the number of the training round, counted by published rounds.

With m_e the mean loss of the visit's first e epochs: stop after epoch e > 1 if
|m_e - m_(e-1)| < `tolerance` |m_(e-1)| (`TrainedBlock.run`).

Server (Algorithm 1, line 11, and `mean_changes` by users): C <- mean over participants of their
whole tables.

Schedules of lambda and mu (sections 4.3 and 4.5). v is `difference_weight` or `sparsity_weight`:

    tanh   tanh(a / 10) v                     fixed  v
    sin    (sin(a / 10) + 1) / 2 v            frac   v / (a + 1)
    square 0 for ten rounds, v for ten, and so on

Only the released code has the bias c, omega, two step sizes, both decays of them and early
stopping. First values N(0, 1) of both tables, and the same first D and w for all users, are the
code's as well. In Algorithm 1, u, C and D have one constant rate and take full gradients, though
section 4.3 names a batch size.

Differences from the paper:

- Eq. 3 sums over whole tables, and the code takes means over the samples' rows. Means are used.
- Eq. 11, 12, 14 and 15 have + lambda where eq. 3 has - lambda. The sign of eq. 3 is used.
- Appendix A.2 alternates between u, C and D. The step is simultaneous, as in Algorithm 1 and in the
  code.
- Algorithm 1 predicts with the client's own updated C^(i). Here a user's own D, w and c score with
  the published C, as in the code. Users that never trained have the initial ones.
- Eq. 13 applies a soft threshold of no stated size to C. The code's subgradient is used.
- The code computes a schedule and never reads it, so it always runs `fixed`. Here schedules are
  applied.
- The paper's sin(a / 10) v is negative from a = 32 on, although section 3.1 limits weights to
  0..v. The code's form is used.
- The paper's `square` toggles every 10 rounds and the code's every 5. The paper's is used, and it
  begins with 0.

Variants of the paper: FedRAP-C is `tables = "shared"` (s = <w, C_i> + c, without a difference
term), FedRAP-D `tables = "private"` (s = <w, D_i> + c, nothing is sent), FedRAP-No `sparsity =
"none"`, FedRAP-L2 `sparsity = "l2"`. The others are schedules.

The paper's differential privacy (section 3.3) clips the client's gradient of C to the length tau
(eq. 4) and adds Gaussian noise, with "variance z = 1" (section 4.5), in the sense of Opacus
(deviation z tau). With `noise_where = "grad"` this happens in every local step, on all rows. With
"upload" it happens once, on the change that is sent. Section 3.3's own noise, proportional to
2 eta tau / n_s, is far smaller and is not offered, because its factor is not given.
`fedrec.algorithms.settings_warnings.accounted_epsilon` computes the cost.

FedRAP-C can be combined with `update.structure = "colr"`. Its C is C + A B while a user trains, and
its part in B's subspace decays as a whole. At rank = dim that is the dense step, for any B.

The term with minus lambda is not bounded below. Only omega and the falling rates limit the
difference of D and C, and a run that diverges is stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
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


_WITH_SHARED_TABLE: Mapping[str, tuple[object, ...]] = {"tables": ("both", "shared")}
_SPARSE = {**_WITH_SHARED_TABLE, "sparsity": ("l1", "l2")}
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
        description="L2 coefficient (omega) of all parameters: omega/2 |x|^2, with the derivative "
        "omega x. All rows of both tables shrink in every step, touched or not.",
    )
    difference_weight: Annotated[Weight, UsedIf({"tables": ("both",)})] = Field(
        default=0.1,
        description="Reward for own rows that differ from the shared ones (v1 of lambda).",
    )
    sparsity: Annotated[Literal["l1", "l2", "none"], UsedIf(_WITH_SHARED_TABLE)] = Field(
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
        default=0.95, description="Step sizes are multiplied by this after every minibatch."
    )
    round_decay: Factor = Field(
        default=0.97, description="Step sizes are multiplied by this after every published round."
    )
    tolerance: Share = Field(
        default=1e-4,
        description="A user stops after an epoch that changed its mean loss relatively less. 0 "
        "for never.",
    )
    noise_where: Annotated[Literal["none", "grad", "upload"], UsedIf(_WITH_SHARED_TABLE)] = Field(
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
        default=10,
        ge=1,
        le=100,
        description="Largest number of passes over a user's samples in a round.",
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

    settings_type: ClassVar[type[AlgorithmSettings]] = FedRAPSettings
    about: ClassVar[About] = ABOUT["fedrap"]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """C and D with entries N(0, 1), heads within +-1/sqrt(dim).

        D and heads are the same for all users.
        """
        dim, alone = self.settings.dim, self.settings.tables == "shared"
        head = Uniform(1.0 / math.sqrt(dim))
        rows = "item_embedding" if self.settings.tables == "both" else ""
        own = Parameter("own_embedding", "own_rows", (dim,), same_for_all_users=True, added_to=rows)
        # A shared table that no score uses keeps its first values. If it is the only table, an
        # update structure may replace its rows.
        return (
            Parameter("item_embedding", "rows", (dim,), Normal(), structured=alone),
            *(() if alone else (own,)),
            Parameter("published", "scalar", (), Constant(), published=True),
            Parameter("user_embedding", "own", (dim,), head, same_for_all_users=True),
            Parameter("user_bias", "own", (), head, same_for_all_users=True),
        )

    @cached_property
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
        eta_w, eta_items = settings.learning_rate * slower, settings.item_rate * slower
        own = {} if settings.tables == "shared" else {"own_embedding": eta_items}
        others = {"user_embedding": eta_w, "user_bias": eta_w} | own
        shared = dict.fromkeys(self.recommending, eta_items)
        decay = settings.weight_decay
        of_all = Sgd(others | shared, decay=decay, whole=decay > 0, factor=settings.batch_decay)
        steps: tuple[Sgd, ...] = (of_all,)
        if settings.noise_where == "grad":
            tau, z = settings.noise_clip, settings.noise_multiplier
            noisy = replace(of_all, rates=shared, longest=tau, noise=z * tau)
            steps = (replace(of_all, rates=others), noisy)
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
        """Return eq. 3 for a minibatch, with means over entries, (n_users,)."""
        from fedrec.tensor_products import absolute_sums, square_sums

        settings, dim = self.settings, self.settings.dim
        loss, at = cross_entropy(self.score(v), batch.label), self.scheduled(v)[:, None]
        if settings.sparsity != "none" and settings.tables != "private":
            sums = absolute_sums if settings.sparsity == "l1" else square_sums
            loss = loss + at * (settings.sparsity_weight / dim * sums(v.item_embedding))
        if settings.tables == "both":
            apart = square_sums(v.own_embedding - v.item_embedding)
            loss = loss + at * (-settings.difference_weight / dim * apart)
        return batch.weighted_sum(loss)

    @property
    def folding_pull(self) -> float | None:
        """Weight of |w|^2 if the shared table is the only one (FedRAP-C)."""
        return FOLDING_PULL if self.settings.tables == "shared" else None
