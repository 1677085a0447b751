"""PFedCLR: users calibrate a shared item table by a low-rank matrix.

"Beyond Personalization: Federated Recommendation with Calibration via Low-rank Decomposition" (Chen
et al.), section 4 and appendices A and B.4. `fedrec.algorithms.trained` has the four rules that no
paper has. A plain version is in tests/reference/plain_pfedclr.py.

Model of a user u: score s_i = <p, v_i> with v_i = Q_i + A_i B. Private: the user vector p (dim), A
(n_items x rank, zero at first) and B (rank x dim). Shared: the item table Q (n_items x dim).

L(p, V) is the binary cross-entropy of <p, V_i> (eq. 2, `PFedCLR.score`), a minibatch's mean. Steps
1 and 2 are `local_epochs` passes each, of
Adam with new moments (`PFedCLR.phases`):

    Step 1   Q_u <- Q_g, then Q_u by L(p, Q_u) at the rate eta           eq. 6
    Step 2   p by L(p, Q_u + A B) at eta, A and B at beta                eq. 10
    Step 3   Q_g <- sum over participants of w_u Q_u                     eq. 11, on the server
             w_u = |D_u| / sum of |D_v|

eta = `learning_rate` and beta = `personal_rate`. Step 1 leaves p as it is, and A and B are not in
its score. Its change Q_u - Q_g is what is uploaded. Step 2 leaves Q_u as it is.

Every user's Adam works on whole tables. Its moments begin at zero in every round, so an untouched
row has no gradient, no moment and no step. Touched rows move in every minibatch of a step, also in
those that don't contain them.

Server (`mean_changes` by samples): Q_g <- Q_g + sum of |D_u| (Q_u - Q_g) / sum of |D_v|, which is
Step 3. A row that a user did not touch counts as unchanged. |D_u| is the number of training items.
w_u is the paper's weight p_u.

`variant` has the paper's ablations. In them, W (n_items x dim, zero at first) replaces A B:

    clr  the method as above
    cf   W in place of A B (eq. 9)
    af   Step 1 trains p and Q together, as FedMF does, and Step 2 trains W alone

Evaluation. The paper scores with the user's own Q_u of its last participation and the A, B and p
after Step 2. With `personal_items`, the resulting scores are kept as a private tensor (n_users x
n_items), as in PFedRec. No user keeps a table of n_items x dim. Users that never trained have the
scores of their first p with the first Q_g, or with the published one (`newcomers`). Without
`personal_items`, p, A and B score the published Q_g, for all users.

Differences from the paper:

- Eq. 2 sums over the samples, and here L is a minibatch's mean.
- |D_u| is 4096 at most, because sums need a public bound.
- Eq. 11 sums over all users, and here over the participants, as in Algorithm 1.

Choices where the paper is silent: p and Q_g begin as N(0, 0.1^2), B as N(0, 1). Negatives are drawn
once a round for both steps. Adam's moments are new in each step of each round. |D_u| does not count
negatives. Noise is on the upload alone. `af` trains p in Step 1.

Noise (eq. 35). `noise_scale` is the paper's lambda: Laplace noise on every value of every upload.
Its epsilon is S_u / lambda with S_u <= 2 w_u eta C (Lemma B.7). C is `gradient_clip`, which limits
the L2 norm of each minibatch's gradient of Q_u, while Laplace noise needs the L1 norm.
`settings_warnings.nominal_epsilon` explains why that is not a guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.algorithm import Algorithm, RoundStart
from fedrec.algorithms.batch import Values, dot
from fedrec.algorithms.declarations import (
    About,
    AlgorithmSettings,
    Constant,
    Normal,
    Parameter,
    Rate,
    SearchSpace,
    UploadNoise,
    Weight,
)
from fedrec.algorithms.folding import FOLDING_PULL
from fedrec.algorithms.optimisers import Adam, Phase
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings
from fedrec.model.state import SharedState
from fedrec.section import Rule, UsedIf, at_most

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk


_STEP_1, _STEP_2 = "shared", "personal"
_CALIBRATED = UsedIf({"variant": ("clr",)})


class PFedCLRSettings(TrainedSettings):
    """PFedCLR: a shared item table that each user calibrates by a low-rank matrix."""

    rules: ClassVar[tuple[Rule, ...]] = (
        at_most(
            "rank",
            "dim",
            ": A B would have more numbers than the full matrix that it replaces, and no higher "
            "rank",
            'or {path}.variant = "cf"',
        ),
    )

    name: Literal["pfedclr"] = Field(default="pfedclr", description="Which algorithm trains.")
    dim: int = Field(default=16, ge=1, le=1024, description="Length of an embedding vector.")
    variant: Literal["clr", "cf", "af"] = Field(
        default="clr",
        description="clr is the method, with A B. cf has a full matrix W in place of A B. af "
        "trains W after FedMF, whose user vector it leaves alone.",
    )
    rank: Annotated[int, _CALIBRATED] = Field(
        default=2, ge=1, le=1024, description="Rank of A B, at most dim."
    )
    learning_rate: Rate = Field(
        default=0.01, description="Step size (eta) of items and users, by Adam."
    )
    personal_rate: Weight = Field(
        default=0.01,
        description="Step size (beta) of A and B, or W, by Adam. 0 leaves FedMF with alternating "
        "steps of items and user vectors.",
    )
    local_epochs: int = Field(
        default=10, ge=1, le=100, description="Passes over a user's samples, in each of both steps."
    )
    item_deviation: float = Field(
        default=0.1,
        gt=0,
        le=100,
        description="Items and user vectors begin as N(0, this^2). The paper gives no value.",
    )
    factor_deviation: Annotated[float, _CALIBRATED] = Field(
        default=1.0, gt=0, le=100, description="B begins as N(0, this^2). The paper gives no value."
    )
    personal_items: bool = Field(
        default=True,
        description="Score with a user's own item table of its last round, as the paper does. The "
        "client keeps n_items scores for each user. false scores with the published table.",
    )
    newcomers: Annotated[
        Literal["initial", "current"],
        UsedIf({"personal_items": (True,)}, above_zero=("personal_rate",)),
    ] = Field(
        default="initial",
        description="Users that never trained are scored with the first item table, as in the "
        "paper, or with the published one.",
    )
    aggregation: bool = Field(
        default=True,
        description="false never moves the shared table: a control that shows what users learn "
        "alone.",
    )
    noise_scale: Weight = Field(
        default=0.0,
        description="Scale (lambda) of the Laplace noise on every value of each upload. 0 for "
        "none. Its epsilon is nominal.",
    )
    gradient_clip: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="A minibatch's gradient of the item table (Step 1) is shrunk to this L2 norm. "
        "0 for no limit. It is C in the paper's bound, for which the paper gives no value.",
    )

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        found: SearchSpace = {
            "algorithm.dim": (16, 32, 64),
            "algorithm.learning_rate": (0.001, 0.003, 0.01, 0.03),
            "algorithm.personal_rate": (0.001, 0.003, 0.01, 0.03),
            "update.clip": (4.0,),
            "rounds.total": (60,),
        }
        return {**found, "algorithm.rank": (2, 4, 8)} if self.variant == "clr" else found


class PFedCLR(TrainedAlgorithm):
    """Two steps, the first of which is uploaded. See the module's docstring."""

    settings: PFedCLRSettings

    settings_type: ClassVar[type[AlgorithmSettings]] = PFedCLRSettings
    about: ClassVar[About] = ABOUT["pfedclr"]
    folding_pull = FOLDING_PULL

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Q and p, A and B (or W), and the scores that a user keeps."""
        settings, dim = self.settings, self.settings.dim
        begin = Normal(settings.item_deviation)
        found = [
            Parameter("item_embedding", "rows", (dim,), begin, mean="samples"),
            Parameter("user_embedding", "own", (dim,), begin),
        ]
        if settings.variant == "clr":
            factor = Normal(settings.factor_deviation)
            # A and B.
            found.append(Parameter("item_factor", "own_rows", (settings.rank,), Constant()))
            found.append(Parameter("factor", "own", (settings.rank, dim), factor))
        else:
            found.append(Parameter("item_calibration", "own_rows", (dim,), Constant()))
        if settings.personal_items:
            found.append(Parameter("personal_scores", "own_rows", (), Constant()))
        return tuple(found)

    @property
    def kept_scores(self) -> str:
        """Users' scores with their own tables."""
        return "personal_scores" if self.settings.personal_items else ""

    @property
    def _calibration(self) -> tuple[str, ...]:
        """Names of A and B, or of W."""
        return (
            ("item_factor", "factor") if self.settings.variant == "clr" else ("item_calibration",)
        )

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return Step 1 and Step 2."""
        settings = self.settings
        vector = {"user_embedding": settings.learning_rate}
        personal = dict.fromkeys(self._calibration, settings.personal_rate)
        first = [Adam({"item_embedding": settings.learning_rate}, longest=settings.gradient_clip)]
        if settings.variant == "af":
            # It has its own optimiser, because the limit applies to what is uploaded.
            first.append(Adam(vector))
        else:
            personal |= vector
        return (
            Phase(steps=(tuple(first),), epochs=settings.local_epochs, name=_STEP_1),
            Phase(steps=((Adam(personal),),), epochs=settings.local_epochs, name=_STEP_2),
        )

    def score(self, v: Values) -> torch.Tensor:
        """Return <p, Q_i> in Step 1, else <p, Q_i + A_i B>."""
        score = dot(v.item_embedding, v.user_embedding)
        if v.phase == _STEP_1:
            return score
        if self.settings.variant != "clr":
            return score + dot(v.item_calibration, v.user_embedding)
        # <p, A_i B> = <A_i, B p>
        return score + dot(v.item_factor, (v.factor * v.user_embedding[:, None]).sum(-1))

    @property
    def upload_noise(self) -> UploadNoise | None:
        """Laplace noise, if the settings ask for it."""
        scale = self.settings.noise_scale
        return (
            UploadNoise(tensors=self.derived.row_tables, kind="laplace", scale=scale)
            if scale
            else None
        )

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Move Q by the weighted mean of its changes, or leave it without aggregation."""
        if not self.settings.aggregation:
            return shared
        return super().apply(shared, change, counts, round_id)

    @property
    def refreshes(self) -> bool:
        """Whether users that never trained follow the published table."""
        return self.settings.newcomers == "current"

    def refresh(
        self, chunk: Chunk, start: RoundStart, private: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the published table's scores for users that never trained, whose A is zero."""
        import torch

        if not self.refreshes:
            return private
        trained = private[self._calibration[0]].flatten(1).ne(0).any(1)
        kept = private[self.kept_scores].clone()
        scores = Algorithm.scores(self, chunk, start, private)
        kept[:, start.active] = torch.where(trained[:, None], kept[:, start.active], scores)
        return private | {self.kept_scores: kept}

    def preferences(
        self,
        serving: Mapping[str, NDArray[np.float32]],
        own: Mapping[str, NDArray[np.float32]],
    ) -> NDArray[np.float32]:
        """Return <p, Q_i + A_i B> with the published Q."""
        vector = own["user_embedding"]
        scores = super().preferences(serving, {"user_embedding": vector})
        if len(own) == 1:
            return scores
        if self.settings.variant != "clr":
            return scores + own["item_calibration"] @ vector
        return scores + own["item_factor"] @ (own["factor"] @ vector)
