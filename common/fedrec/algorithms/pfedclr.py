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
epsilon = S_u / lambda with S_u <= 2 w_u eta C; see `nominal_epsilon` for what that is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedrec.algorithms.about import About, Circumstances, Problem
from fedrec.algorithms.algorithm import Algorithm, RoundStart
from fedrec.algorithms.batch import Values, dot
from fedrec.algorithms.declarations import (
    AlgorithmSettings,
    Constant,
    Normal,
    Parameter,
    UploadNoise,
)
from fedrec.algorithms.folding import FOLDING_PULL
from fedrec.algorithms.optimisers import Adam, Phase
from fedrec.algorithms.trained import TrainedAlgorithm, TrainedSettings
from fedrec.exact_linalg import product
from fedrec.model.state import PrivateState, SharedState
from fedrec.section import UsedIf

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk


_SHARED, _PERSONAL = "shared", "personal"
_SCORED_USERS = 64
_CALIBRATED = UsedIf({"variant": ("clr",)})
_TAIL = 10.0
"""One of 22,000 values of Laplace noise lies beyond ten times its scale."""


class PFedCLRSettings(TrainedSettings):
    """PFedCLR: a shared item table, calibrated by each user with a matrix of low rank."""

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
    learning_rate: float = Field(
        default=0.01, gt=0, le=1000, description="Step size (eta) of items and users, by Adam."
    )
    personal_rate: float = Field(
        default=0.01,
        ge=0,
        le=1000,
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
    noise_scale: float = Field(
        default=0.0,
        ge=0,
        le=1000,
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


class PFedCLR(TrainedAlgorithm):
    """Two steps, of which the first is uploaded; see the module's docstring."""

    settings: PFedCLRSettings

    name: ClassVar[str] = "pfedclr"
    settings_type: ClassVar[type[AlgorithmSettings]] = PFedCLRSettings

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
        if self.settings.variant == "clr":
            return ("item_factor", "factor")
        return ("item_calibration",)

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
        if not scale:
            return None
        return UploadNoise(tensors=("item_embedding",), kind="laplace", scale=scale)

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

    # What users begin with, and those who never trained.

    def initial_private(self, user_keys: NDArray[np.int64]) -> PrivateState:
        """Return everybody's first vectors, and the scores that they give with the first table."""
        begun = super().initial_private(user_keys)
        if not self.kept_scores:
            return begun
        tensors = begun.arrays()
        table = self.initial_shared().tensors["item_embedding"]
        vectors, kept = tensors["user_embedding"].astype(np.float64), tensors[self.kept_scores]
        for begin in range(0, len(vectors), _SCORED_USERS):
            part = slice(begin, begin + _SCORED_USERS)
            kept[part] = product(vectors[part], table.T).astype(np.float32)
        return PrivateState(MappingProxyType(tensors))

    @property
    def refreshes(self) -> bool:
        """Whether users who never trained follow the published table."""
        return self.settings.newcomers == "current"

    def refresh(
        self, chunk: Chunk, start: RoundStart, private: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the scores of who never trained, A being zero, with the published table."""
        import torch

        from fedrec.tensor_products import product_of_blocks

        if not self.refreshes:
            return private
        trained = private[self._calibration[0]].flatten(1).ne(0).any(1)
        kept = private[self.kept_scores].clone()
        table = start.shared["item_embedding"].T.contiguous()
        scores = product_of_blocks(private["user_embedding"], table)
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


def nominal_epsilon(*, weight: float, rate: float, bound: float, scale: float) -> float:
    """Return the paper's epsilon of a user's upload, S_u / lambda with S_u = 2 w_u eta C.

    It is no guarantee. The bound is that of one plain gradient step of norm C; a client takes
    `local_epochs` passes of Adam, whose steps do not shrink with the gradient. And w_u makes it a
    bound of the aggregate: a reader of the upload itself has 1 / w_u times as much.

    Args:
        weight: w_u, the user's share of the mean.
        rate: eta.
        bound: C, in L2.
        scale: lambda.
    """
    return 2.0 * weight * rate * bound / scale


def _contradiction(settings: AlgorithmSettings) -> Problem | None:
    assert isinstance(settings, PFedCLRSettings)
    if settings.variant == "clr" and settings.rank > settings.dim:
        return (
            ("algorithm.rank", "algorithm.dim"),
            f"algorithm.rank is {settings.rank}, but algorithm.dim is {settings.dim}: A B would "
            "have more numbers than the full matrix that it stands for, and no higher rank. Set "
            f'algorithm.rank = {settings.dim} or less, or algorithm.variant = "cf".',
        )
    return None


def _warnings(at: Circumstances) -> list[str]:
    settings, found = at.settings, []
    assert isinstance(settings, PFedCLRSettings)
    if not settings.aggregation:
        found.append(
            "algorithm.aggregation is false: uploads are summed and thrown away. This is a control "
            "for experiments."
        )
    scale = settings.noise_scale
    if not scale:
        return found
    bound = settings.gradient_clip or 1.0
    epsilon = nominal_epsilon(weight=1.0, rate=settings.learning_rate, bound=bound, scale=scale)
    found.append(
        f"algorithm.noise_scale = {scale:g}: the paper's epsilon of a round is 2 w_u eta C / "
        f"lambda = {epsilon:.3g} w_u with C = {bound:g}"
        f"{'' if settings.gradient_clip else ' (nothing is clipped to it)'}. It is nominal and no "
        "guarantee: the bound is that of one plain gradient step, where a client takes "
        f"{settings.local_epochs} passes of Adam; w_u makes it a bound of the sum, and a "
        "reader of an upload has 1 / w_u times as much; rounds add up. For a guarantee see "
        "[privacy]."
    )
    if at.update.clip < _TAIL * scale:
        found.append(
            f"update.clip is {at.update.clip:g}, but noise of scale {scale:g} is often beyond it, "
            "and what is clipped is not the paper's noise. Set update.clip = "
            f"{_TAIL * scale + 4.0:g}."
        )
    return found


PFedCLR.about = About(
    summary="a shared table that each user calibrates by a low rank",
    combination_reason="pfedclr trains the item table by Adam, which is not rotation-invariant: it "
    "divides each coordinate by the size of its own gradients, so that steps of A in A B are no "
    "low-rank form of its steps of the table.",
    contradiction=_contradiction,
    warnings=_warnings,
    not_under_noise="its mean is weighed by users' numbers of interactions, which under privacy "
    "nobody may send; its own noise is algorithm.noise_scale",
    divergence_remedy="Lower algorithm.learning_rate or algorithm.personal_rate.",
)
