"""PFedCLR: users calibrate a shared item table by a low rank.

"Beyond Personalization: Federated Recommendation with Calibration via Low-rank Decomposition"
(Chen et al.), section 4 and appendix B.4.

Model of a user u: score s_i = <p, v_i> with v_i = Q_i + A_i B. Loss: mean binary cross-entropy of
a minibatch, negatives sampled once a round for both steps. Private: the user vector p (dim), A
(n_items x rank, zero at first) and B (rank x dim). Shared: the item table Q (n_items x dim).

Client, from the published Q_g, both steps `local_epochs` passes of Adam, which begins afresh:

    Step 1: Q_u <- Q_g, trained with p as it is; A and B are not in the score. The change Q_u - Q_g
            is what is uploaded.
    Step 2: p, A and B together with Q_u as it is: p at the rate eta, A and B at eta'.

Every user's Adam is that of whole tables: its moments begin at zero in every round, so that a row
which the user does not touch has no gradient, no moment and no step. Touched rows move in every
minibatch of a step, also those that it does not hold.

Server: Q_g <- sum over participants of w_u Q_u, w_u = |D_u| / sum of |D_v|, that is
Q_g + sum of |D_u| (Q_u - Q_g) / sum of |D_v|; a row that a user did not touch counts as unchanged.
|D_u| is the number of training items, 4096 at most.

`variant` has the paper's ablations. W (n_items x dim, zero at first) stands for A B in them:

    clr  the method as above
    cf   W in place of A B
    af   Step 1 trains p and Q together, as FedMF does; Step 2 trains W alone

What is measured. The paper scores with the user's own Q_u of its last participation and the A, B
and p that Step 2 left. With `personal_items` the scores that follow are kept as a private tensor
(n_users x n_items), as PFedRec keeps its own; no user keeps a table of n_items x dim. Users who
never trained have the scores of their first p with the first Q_g, or with the published one
(`newcomers`). Without `personal_items` p, A and B score the published Q_g, for everybody.

Readings of what the paper leaves open: p and Q_g begin as N(0, 0.1^2), B as N(0, 1); weights are
the numbers of positives; noise is put on the upload alone; `af` trains p in Step 1.

Noise. `noise_scale` is the paper's lambda: Laplace noise on every value of every upload. It calls
epsilon = S_u / lambda with S_u <= 2 w_u eta C; `about.nominal_epsilon` says what that is not.
"""

from __future__ import annotations

from collections.abc import Mapping
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


_SHARED, _PERSONAL = "shared", "personal"
_CALIBRATED = UsedIf({"variant": ("clr",)})


class PFedCLRSettings(TrainedSettings):
    """PFedCLR: a shared item table, calibrated by each user with a matrix of low rank."""

    rules: ClassVar[tuple[Rule, ...]] = (
        at_most(
            "rank",
            "dim",
            ": A B would have more numbers than the full matrix that it stands for, and no higher "
            "rank",
            'or {path}.variant = "cf"',
        ),
    )

    name: Literal["pfedclr"] = Field(default="pfedclr", description="Which algorithm trains.")
    dim: int = Field(default=16, ge=1, le=1024, description="Length of an embedding vector.")
    variant: Literal["clr", "cf", "af"] = Field(
        default="clr",
        description="clr: the method, with A B; cf: a full matrix W in place of A B; af: W trained "
        "after FedMF, whose user vector it leaves alone.",
    )
    rank: Annotated[int, _CALIBRATED] = Field(
        default=2, ge=1, le=1024, description="Rank of A B; at most dim."
    )
    learning_rate: Rate = Field(
        default=0.01, description="Step size (eta) of items and users, by Adam."
    )
    personal_rate: Weight = Field(
        default=0.01,
        description="Step size (eta') of A and B, or W, by Adam; 0 leaves FedMF whose items and "
        "user vectors move by turns.",
    )
    local_epochs: int = Field(
        default=10, ge=1, le=100, description="Passes over a user's samples in each of both steps."
    )
    item_deviation: float = Field(
        default=0.1,
        gt=0,
        le=100,
        description="Items and user vectors begin as N(0, its square); the paper does not say.",
    )
    factor_deviation: Annotated[float, _CALIBRATED] = Field(
        default=1.0,
        gt=0,
        le=100,
        description="B begins as N(0, its square); the paper says normal.",
    )
    personal_items: bool = Field(
        default=True,
        description="Score with a user's own item table of its last round, as the paper does; the "
        "client keeps n_items scores for each user. false scores with the published table.",
    )
    newcomers: Annotated[
        Literal["initial", "current"],
        UsedIf({"personal_items": (True,)}, above_zero=("personal_rate",)),
    ] = Field(
        default="initial",
        description="Users who never trained are scored with the first item table, as in the "
        "paper, or with the published one.",
    )
    aggregation: bool = Field(
        default=True,
        description="false never moves the shared table: a control that shows what users learn "
        "without each other.",
    )
    noise_scale: Weight = Field(
        default=0.0,
        description="Scale (lambda) of the Laplace noise on every value of each upload; 0 for "
        "none. Its epsilon is nominal.",
    )
    gradient_clip: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="A minibatch's gradient of the item table (Step 1) is shrunk to this L2 norm; "
        "0 for no limit. The C of the paper's bound, which states no value.",
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
    """Two steps, of which the first is uploaded; see the module's docstring."""

    settings: PFedCLRSettings

    name: ClassVar[str] = "pfedclr"
    settings_type: ClassVar[type[AlgorithmSettings]] = PFedCLRSettings
    about: ClassVar[About] = ABOUT["pfedclr"]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Q and p; A and B, or W; the scores that a user keeps."""
        settings, dim = self.settings, self.settings.dim
        begin = Normal(settings.item_deviation)
        found = [
            Parameter("item_embedding", "rows", (dim,), begin, mean="samples"),
            Parameter("user_embedding", "own", (dim,), begin),
        ]
        if settings.variant == "clr":
            factor = Normal(settings.factor_deviation)
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
            # By an optimiser of its own: the limit is on what is uploaded.
            first.append(Adam(vector))
        else:
            personal |= vector
        return (
            Phase(steps=(tuple(first),), epochs=settings.local_epochs, name=_SHARED),
            Phase(steps=((Adam(personal),),), epochs=settings.local_epochs, name=_PERSONAL),
        )

    def score(self, v: Values) -> torch.Tensor:
        """Return <p, Q_i> in Step 1, else <p, Q_i + A_i B>."""
        score = dot(v.item_embedding, v.user_embedding)
        if v.phase == _SHARED:
            return score
        if self.settings.variant != "clr":
            return score + dot(v.item_calibration, v.user_embedding)
        # <p, A_i B> = <A_i, B p>
        return score + dot(v.item_factor, (v.factor * v.user_embedding[:, None]).sum(-1))

    @property
    def upload_noise(self) -> UploadNoise | None:
        """Laplace noise, where the settings ask for it."""
        scale = self.settings.noise_scale
        return UploadNoise(tensors=self.row_tables, kind="laplace", scale=scale) if scale else None

    def apply(
        self,
        shared: SharedState,
        change: Mapping[str, NDArray[np.float64]],
        counts: NDArray[np.int64],
        round_id: int,
    ) -> SharedState:
        """Move Q by the weighed mean of its changes; without aggregation leave it."""
        if not self.settings.aggregation:
            return shared
        return super().apply(shared, change, counts, round_id)

    @property
    def refreshes(self) -> bool:
        """Whether users who never trained follow the published table."""
        return self.settings.newcomers == "current"

    def refresh(
        self, chunk: Chunk, start: RoundStart, private: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the scores of who never trained, A being zero, with the published table."""
        import torch

        if not self.refreshes:
            return private
        trained = private[self._calibration[0]].flatten(1).ne(0).any(1)
        kept = private[self.kept_scores].clone()
        scores = Algorithm.scores(self, chunk, start, private)
        kept[:, start.active] = torch.where(trained[:, None], kept[:, start.active], scores)
        return private | {self.kept_scores: kept}

    # Without torch.
    preferences = Algorithm.preferences

    def own_preferences(
        self,
        serving: Mapping[str, NDArray[np.float32]],
        own: Mapping[str, NDArray[np.float32]],
    ) -> NDArray[np.float32]:
        """Return <p, Q_i + A_i B> with the published Q."""
        vector = own["user_embedding"]
        scores = self.preferences(serving, vector)
        if self.settings.variant != "clr":
            return scores + own["item_calibration"] @ vector
        return scores + own["item_factor"] @ (own["factor"] @ vector)

    @property
    def folding_pull(self) -> float:
        """Weight of |p|^2 for somebody new, whose A is zero."""
        return FOLDING_PULL
