"""PLGC: "personalized local-global collaboration" around another algorithm.

"A Model-agnostic Strategy to Mitigate Embedding Degradation in Personalized Federated
Recommendation" (Shen et al.).

Every user n keeps an item table C (n_items x dim) of its own over the rounds, beside the version G
that it receives. The base scores with a mixture Q of both, recomputed in every epoch (eq. 14-16):

    l = |C|_F^2 / (|C|_F^2 + |G|_F^2),    Q = l C + (1 - l) G,

norms over the whole tables, l and G constants. C is trained where the base trains its table, so
that dL/dC = l dL/dQ; in the first round that a user takes part in, C begins as G, so that l = 1/2
and Q = G. A minibatch minimises (eq. 20)

    loss of the base + weight x L_eRR,
    L_eRR = (1/d) sum_i (1 - H_ii)^2 + (off_weight/d) sum_{i != j} H_ij^2,

H the cosines (dim x dim) of the columns of Z^C and Z^G over a minibatch's distinct items (eq. 18).
Z = predictor(projector(rows)), one network of the user's own for both views, whose sizes the paper
does not give; as in the code of RecDCL they are dim everywhere: linear without bias, batch norm,
ReLU, linear without bias; linear. Without `projector` Z is the rows. Where the base moves a row by
the mean over its own samples, that is about its loss: L_eRR's gradient is taken as it is.

Server: G <- sum_n alpha_n C_n, alpha_n user n's share of all training items, at most 4096 each.
Where everybody takes part in every round, G + sum_n alpha_n (change of C_n) is the same: it is in
the first round, in which all C_n begin as G, and if it is in one round it is in the next; rows that
a user does not touch are in its old table already. With `upload = "table"` users contribute C_n - G
over all rows in place of the change, which holds for any participants: as many values travel.

The base's tables that are mixed are its shared item rows that an optimiser moves. Where the base
adds private rows of its own to them (`added`: FedRAP's D), those are C and begin as G: Q stands for
the sum, the base's other terms are about C and G themselves, and it trains and sends G as ever.

Scores that are measured and recommended from are those of Q with l from the final C and the G that
the round started from, which the user last held; they are kept as a private tensor, as PFedRec's.
A user who never took part has those of the first version with its initial parameters.

Readings, where the paper is silent: l is not differentiated; rates are the base's, multiplied with
`rate_factor` after every minibatch of a visit; "the whole table" is all trained items. Without
`mixing` (the ablation "eRR only") C begins as G in every round and scores alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny

from fedrec.algorithms.about import About, Circumstances, Problem
from fedrec.algorithms.batch import Batch, Values, sum_name
from fedrec.algorithms.declarations import AlgorithmSettings, Constant, Parameter, Shapes, Uniform
from fedrec.algorithms.fedmf import FedMFSettings
from fedrec.algorithms.optimisers import Gradient, Optimiser, Phase, Sgd
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.algorithms.wrapper import Wrapper, WrapperSettings
from fedrec.errors import SettingsError
from fedrec.model.state import PrivateState
from fedrec.section import UsedIf
from fedrec.updates.settings import UpdateSettings

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.algorithm import RoundStart


_VISIT: Mapping[str, Any] = MappingProxyType({"local_epochs": 10, "batch_size": 2048})
_BEGUN, _SCORES, _MIXED = "begun", "personal_scores", " mixed"


def _used_by(*regularisers: str, **values: tuple[object, ...]) -> UsedIf:
    return UsedIf({"regulariser": regularisers, **values}, above_zero=("weight",))


class PLGCSettings(WrapperSettings):
    """PLGC: a persistent item table of each user's own, mixed with the shared one."""

    base_defaults: ClassVar[Mapping[str, Any]] = _VISIT

    name: Literal["plgc"] = Field(default="plgc", description="Which algorithm trains.")
    base: SerializeAsAny[AlgorithmSettings] = Field(
        default=FedMFSettings(**_VISIT),
        description="The algorithm inside, a table of its settings with its name, as in "
        '[algorithm.base] name = "pfedrec". Here local_epochs is 10 and batch_size 2048 where it '
        "says nothing.",
    )
    mixing: bool = Field(
        default=True,
        description="Score with the mixture of own and shared table. false: own tables begin anew "
        "as the shared one in every round and score alone (eRR only).",
    )
    regulariser: Annotated[
        Literal["err", "au", "duorec", "feddecorr"], UsedIf(above_zero=("weight",))
    ] = Field(
        default="err",
        description="What keeps both tables together: PLGC's own eRR, or what the paper compares "
        "it with.",
    )
    weight: float = Field(
        default=0.5,
        ge=0,
        le=1000,
        description="Weight (beta) of the regulariser; 0 for mixing only.",
    )
    off_weight: Annotated[float, _used_by("err", "au")] = Field(
        default=0.01,
        ge=0,
        le=1000,
        description="Weight (gamma) of eRR's entries off the diagonal, or of AU's uniformity.",
    )
    projector: Annotated[bool, _used_by("err")] = Field(
        default=True,
        description="Whether eRR compares what a user's own projector and predictor make of the "
        "rows, and not the rows; the others always compare rows.",
    )
    projector_rate: Annotated[float, _used_by("err", projector=(True,))] = Field(
        default=0.1, gt=0, le=1000, description="Step size of projector and predictor."
    )
    temperature: Annotated[float, _used_by("duorec")] = Field(
        default=0.2, gt=0, le=100, description="Temperature of DuoRec's cosines."
    )
    rate_factor: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="What step sizes of SGD are multiplied with after every minibatch of a visit, "
        "unless the base has a factor of its own.",
    )
    upload: Literal["change", "table"] = Field(
        default="change",
        description="What users contribute: how their table moved, which is enough where "
        "everybody takes part in every round, or how all of it differs from the shared one.",
    )


class PLGC(Wrapper):
    """Own tables around any base with item rows; see the module's docstring.

    Attributes:
        own_tables: by shared table that is mixed, the user's own.
    """

    name: ClassVar[str] = "plgc"
    settings_type: ClassVar[type[AlgorithmSettings]] = PLGCSettings

    def __init__(self, settings: AlgorithmSettings, shapes: Shapes) -> None:
        super().__init__(settings, shapes)
        tables = _moved_rows(self.base)
        if not tables:
            raise SettingsError(
                f"{self.base.name} trains no shared item rows that a user could have its own of.",
                remedy='Set algorithm.base.name = "fedmf", or another one that does.',
            )
        added = self.base.added
        self.own_tables = {
            entry.name: added.get(entry.name, f"own_{entry.name}") for entry in tables
        }
        self._theirs = set(added.values())

    # What there is.

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The base's, own tables that begin as shared ones, and the networks before eRR."""
        settings, mixed = self.settings, {own: name for name, own in self.own_tables.items()}
        found, added = [], []
        for entry in self.base.parameters:
            if entry.name == self.base.kept_scores:
                continue
            if entry.name in mixed:
                # A base's own private rows: the version is C's beginning, whatever theirs is.
                entry = replace(entry, initial=Constant(), alike=False, copies=mixed[entry.name])
            elif entry.name in self.own_tables:
                own = self.own_tables[entry.name]
                entry = replace(entry, structured=False)
                if own not in self._theirs:
                    entry = replace(entry, mean="samples")
                    copy = Parameter(own, "own_rows", entry.shape, Constant(), copies=entry.name)
                    added.append(replace(copy, whole=settings.upload == "table"))
                added += self._network(own, entry.shape[0])
            found.append(entry)
        if settings.mixing:
            added.append(Parameter(_BEGUN, "own", (), Constant()))
        return (*found, *added, Parameter(_SCORES, "own_rows", (), Constant()))

    def _network(self, own: str, dim: int) -> list[Parameter]:
        """Return projector and predictor of a table, as torch would begin them."""
        if not self.settings.weight or self.settings.regulariser != "err":
            return []
        if not self.settings.projector:
            return []
        usual = Uniform(1.0 / math.sqrt(dim))
        return [
            Parameter(f"{own}_projector_first", "own", (dim, dim), usual),
            Parameter(f"{own}_norm_scale", "own", (dim,), Constant(1.0)),
            Parameter(f"{own}_norm_shift", "own", (dim,), Constant()),
            Parameter(f"{own}_projector_second", "own", (dim, dim), usual),
            Parameter(f"{own}_predictor", "own", (dim, dim), usual),
            Parameter(f"{own}_predictor_bias", "own", (dim,), usual),
        ]

    @property
    def kept_scores(self) -> str:
        """Users' scores with their own mixtures."""
        return _SCORES

    @property
    def scoring(self) -> tuple[str, ...]:
        """Kept scores are all that is read of a user."""
        return (*self.recommending, _SCORES)

    @property
    def begun(self) -> str:
        """Own tables go on from round to round where they are mixed."""
        return _BEGUN if self.settings.mixing else ""

    def initial_private(self, user_keys: NDArray[np.int64]) -> PrivateState:
        """Return what users begin with, and the scores that it gives with the first version."""
        import torch

        begun = super().initial_private(user_keys)
        if not len(user_keys):
            return begun
        tensors = dict(begun.tensors)
        everything = np.arange(self.n_items)
        start = self.base.start(self.base.initial_shared(), everything, 0, torch.device("cpu"))
        own = {name: torch.from_numpy(values) for name, values in tensors.items()}
        # Own tables are 0 here, and a mixture of the version with itself is the version.
        tensors[_SCORES] = self.base.scores_of(len(user_keys), start, own).numpy()
        return PrivateState(MappingProxyType(tensors))

    # How it trains.

    def phases(self, scalars: Mapping[str, float]) -> tuple[Phase, ...]:
        """Return the base's, in which own tables move as the shared ones would."""
        return tuple(
            replace(phase, steps=tuple(tuple(map(self._moving, step)) for step in phase.steps))
            for phase in self.base.phases(scalars)
        )

    def _moving(self, optimiser: Optimiser) -> Optimiser:
        if isinstance(optimiser, Gradient):
            raise TypeError("what is sent as a gradient has no steps that an own table could take")
        rates = {}
        for name, rate in optimiser.rates.items():
            own = self.own_tables.get(name, name)
            rates[name if own in self._theirs else own] = rate
        for own in self.own_tables.values():
            if own in rates:
                names = [entry.name for entry in self._network(own, 1)]
                rates |= dict.fromkeys(names, self.settings.projector_rate)
        if isinstance(optimiser, Sgd) and optimiser.factor == 1.0:
            return replace(optimiser, rates=rates, factor=self.settings.rate_factor)
        return replace(optimiser, rates=rates)

    @property
    def decays_untouched(self) -> bool:
        """Whether rows of own tables change that their user does not touch."""
        return any(
            isinstance(optimiser, Sgd) and optimiser.whole
            for phase in self.phases(self.initial_scalars)
            for optimiser in phase.optimisers
        )

    @property
    def measured(self) -> tuple[str, ...]:
        """All mixed tables and users' own ones."""
        if not self.settings.mixing:
            return ()
        return (*self.own_tables, *self.own_tables.values())

    def per_epoch(self, squares: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return each own table's share of the mixture."""
        return {
            _share(own): squares[own] / (squares[own] + squares[name])
            for name, own in self.own_tables.items()
        }

    def mixed(self, v: Values) -> Values:
        """Return what the base scores with, made once for a minibatch."""
        known: Values | None = vars(v).get(_MIXED)
        if known is not None:
            return known
        import torch

        seen = {}
        for name, own in self.own_tables.items():
            rows, read = getattr(v, own), name
            if own in self._theirs:
                read = sum_name(name, own)
            if self.settings.mixing:
                share = getattr(v, _share(own))[:, None, None]
                rows = torch.lerp(getattr(v, name), rows, share)
            seen[read] = rows
        found = Values(vars(v) | seen, v.phase)
        vars(v)[_MIXED] = found
        return found

    def score(self, v: Values) -> torch.Tensor:
        """Return the base's scores with Q."""
        return self.base.score(self.mixed(v))

    def loss(self, v: Values, batch: Batch) -> torch.Tensor:
        """Return the base's loss with Q."""
        return self.base.loss(self.mixed(v), batch)

    def penalty(self, v: Values, batch: Batch) -> torch.Tensor | float:
        """Return the base's penalty with Q."""
        return self.base.penalty(self.mixed(v), batch)

    def joint(self, v: Values, batch: Batch) -> torch.Tensor | float:
        """Return the weighted regulariser, summed over tables, where a step moves any of them."""
        if not self.settings.weight:
            return 0.0
        there = (batch.weight > 0).to(batch.weight.dtype)
        terms: list[torch.Tensor] = []
        for name, own in self.own_tables.items():
            rows, version = getattr(v, own), getattr(v, name).detach()
            network = [getattr(v, entry.name) for entry in self._network(own, 1)]
            if any(values.requires_grad for values in (rows, *network)):
                terms.append(self._regulariser(rows, version, there, network))
        return self.settings.weight * sum(terms[1:], terms[0]) if terms else 0.0

    def _regulariser(
        self,
        own: torch.Tensor,
        version: torch.Tensor,
        there: torch.Tensor,
        network: list[torch.Tensor],
    ) -> torch.Tensor:
        from fedrec.algorithms import plgc_terms

        settings = self.settings
        if settings.regulariser == "au":
            return plgc_terms.alignment_and_uniformity(own, version, there, settings.off_weight)
        if settings.regulariser == "duorec":
            return plgc_terms.contrast(own, version, there, settings.temperature)
        if settings.regulariser == "feddecorr":
            return plgc_terms.decorrelation(own, there)
        if network:
            own = plgc_terms.features(own, there, *network)
            version = plgc_terms.features(version, there, *network)
        return plgc_terms.redundancy(own, version, there, settings.off_weight)

    # Somebody new has no table of its own: Q is G. Nor has anybody rows that were not trained.

    def untouched_scores(
        self, n_users: int, start: RoundStart, private: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the base's scores with the published table."""
        return self.base.scores_of(n_users, start, private)

    def preferences(
        self, serving: Mapping[str, NDArray[np.float32]], vector: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the base's scores with the published table."""
        return self.base.preferences(serving, vector)


def _share(own: str) -> str:
    return f"share_of_{own}"


def _moved_rows(base: TrainedAlgorithm) -> list[Parameter]:
    """Return a base's shared item tables that some optimiser moves."""
    rates = {
        name
        for phase in base.phases(base.initial_scalars)
        for optimiser in phase.optimisers
        for name in optimiser.rates
    }
    return [
        entry
        for entry in base.parameters
        if entry.scope == "rows" and entry.name in rates and len(entry.shape) == 1
    ]


def _made(settings: PLGCSettings) -> PLGC:
    """Return what follows from settings alone, of a catalogue of one item."""
    shapes = Shapes(n_items=1, seed=0, update=UpdateSettings(structure="dense"), n_rounds=1)
    return PLGC(settings, shapes)


def _contradiction(settings: AlgorithmSettings) -> Problem | None:
    assert isinstance(settings, PLGCSettings)
    base = settings.base
    if not settings.mixing and not settings.weight:
        return (
            ("algorithm.weight", "algorithm.mixing"),
            "algorithm.mixing is false and algorithm.weight 0, which leaves nothing of PLGC but a "
            f"table for each user. Set weight = 0.5, or algorithm.name = {base.name!r}.",
        )
    if settings.weight and getattr(base, "batch_size", 2) < 2:
        return (
            ("algorithm.base.batch_size", "algorithm.weight"),
            "algorithm.base.batch_size is 1, but the regulariser compares a minibatch's items with "
            "each other. Set batch_size = 2048, or algorithm.weight = 0.",
        )
    if not getattr(base, "personal_items", True):
        return (
            ("algorithm.base.personal_items",),
            "algorithm.base.personal_items is false, but users of plgc always score with their own "
            "tables. Leave it out.",
        )
    made = _made(settings)
    phases = made.base.phases(made.base.initial_scalars)
    gradients = any(isinstance(each, Gradient) for phase in phases for each in phase.optimisers)
    if gradients or len(phases) > 1:
        how = "sends gradients in place of rows" if gradients else "trains in several phases"
        return (
            ("algorithm.base.name",),
            f"algorithm.base.name is {base.name!r}, which {how}: nobody has said what a table of "
            "each user's own would do there. Set algorithm.base.name to another algorithm.",
        )
    if settings.upload == "change" and not made._theirs and made.decays_untouched:
        return (
            ("algorithm.upload", "algorithm.base.weight_decay"),
            f"algorithm.base.weight_decay of {base.name} shrinks rows that a user does not touch, "
            'which algorithm.upload = "change" does not send. Set upload = "table", or '
            "weight_decay = 0.",
        )
    if settings.upload == "table" and made._theirs:
        return (
            ("algorithm.upload", "algorithm.base.name"),
            f'algorithm.upload is "table", but users of {base.name} train and send the shared '
            "table itself; their own one stays. Leave it out.",
        )
    optimisers = [each for phase in phases for each in phase.optimisers]
    by_factor = any(isinstance(each, Sgd) and each.factor == 1.0 for each in optimisers)
    if settings.rate_factor != PLGCSettings.model_fields["rate_factor"].default and not by_factor:
        return (
            ("algorithm.rate_factor", "algorithm.base.name"),
            f"algorithm.rate_factor is set, but steps of {base.name} go by Adam or have a factor "
            "of their own. Leave it out.",
        )
    return Wrapper.contradiction_of_base(settings)


def _needs_everybody(settings: AlgorithmSettings) -> str:
    """Changes add up to the mean of tables only where nobody is left out."""
    assert isinstance(settings, PLGCSettings)
    if not settings.mixing or settings.upload == "table" or _made(settings)._theirs:
        return ""
    return (
        'with algorithm.upload = "change" the mean of all tables (else set upload = "table") is '
        "kept by adding up every round's changes"
    )


def _warnings(at: Circumstances) -> list[str]:
    assert isinstance(at.settings, PLGCSettings)
    return Wrapper.warnings_of_base(at)


PLGC.about = About(
    summary="an item table of each user's own, mixed with the shared one",
    combination_reason="plgc sends tables that users keep, and nobody has asked what a round's low "
    "rank or a choice of entries would make of them.",
    contradiction=_contradiction,
    warnings=_warnings,
    needs_everybody=_needs_everybody,
    not_under_noise="own tables are weighed by users' numbers of training items, of which noise "
    "and one fixed divisor would leave nothing",
    divergence_remedy="Lower the step sizes in algorithm.base or algorithm.weight.",
)
