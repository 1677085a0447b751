"""PLGC: "personalized local-global collaboration" around another algorithm.

"A Model-agnostic Strategy to Mitigate Embedding Degradation in Personalized Federated
Recommendation" (Shen et al.). `fedrec.algorithms.trained` has the four rules that no paper has. A
plain version is in tests/reference/plain_plgc.py.

Every user n keeps its own item table C (n_items x dim) over the rounds, in addition to the version
G that it receives. In a user's first round, C begins as G. The base scores with a mixture Q:

    tr_C = |C|_F^2, tr_G = |G|_F^2                                       eq. 14
    lambda_c = tr_C / (tr_C + tr_G)                                      eq. 15, `PLGC.per_epoch`
    Q = lambda_c C + (1 - lambda_c) G                                    eq. 16, `mixture`
    H_jk = <Z^C_j, Z^G_k> / (|Z^C_j| |Z^G_k|), columns j, k of Z         eq. 18, `redundancy`
    L_eRR = (1/d) sum_j (1 - H_jj)^2 + (gamma/d) sum_{j != k} H_jk^2     eq. 19, `redundancy`
    r = F(p, q_i)                                                        eq. 20, the base's `score`
    L_rec                                  eq. 21, the base's `loss` and, beyond eq. 21, `penalty`
    L = L_rec + beta L_eRR                                               eq. 22, `PLGC.joint`
    G <- sum_n alpha_n C_n                                               eq. 1, `mean_changes`

beta = `weight` and gamma = `off_weight`. The norms of eq. 14 are over the whole tables. lambda_c is
computed once per epoch and is not differentiated. Q is computed in every minibatch from the C of
that moment (Algorithm 1 does so once per epoch). C is trained in the steps in which the base trains
its table, so dL_rec/dC = lambda_c dL_rec/dQ. G is a constant in L_eRR. It is one in L_rec, too,
except with FedRAP, which trains it together with C.

Z^C and Z^G are predictor(projector(rows)) of C and G, with a row for each item of the minibatch. A
user has one private network for both views. The paper does not give its sizes. As in
the code of RecDCL, they are dim everywhere. The projector is linear without bias, batch norm, ReLU,
linear without bias, and the predictor is linear. Without `projector`, Z is the rows. With fewer
than two distinct items, L_eRR is 0.

Server (`mean_changes` by samples): alpha_n is user n's share of all training items. It replaces the
base's own mean of this table, such as FedMF's by holders.

With `upload = "table"`, users contribute C_n - G over all rows, so eq. 1 is exact for any
participants. With "change", they contribute how C_n moved in the round, with the same number of
values, and G <- G + sum_n alpha_n (change of C_n). By induction both rules agree if all users take
part in every round and no value is clipped: they do in round 1, where every C_n begins as G. From
then on sum_n alpha_n C_n is G before each round, and both rules add the same changes to it. The
part of a change that is clipped stays in C_n and never reaches G, while "table" sends it again.

The mixed tables are the base's shared item rows that an optimiser moves (`_copied`). FedRAP has its
C (`_added`): its other terms apply to C and G themselves, and it trains and sends G as before.

So do bases whose server makes a model for each user (`_sent`). G is `mixes_with`: with GPFedRec the
table r that a user receives, to which C is still pulled, and with PerFedRec the mean of all tables.
In all else the base's server does to C what it does without PLGC: all means are its own, `upload`
has no effect, and C begins as the table that the base's users begin with. With GPFedRec, the C of a
late joiner begins as the mean table, not as r.

Evaluation and recommendations use the scores of Q, with lambda_c from the final C and the G from
which the round started, which the user last held. They are kept as a private tensor, as in PFedRec.
A user that never participated has the scores of the first version with its initial parameters.

Differences from the paper:

- Eq. 18 has a row of Z for each sample. Here each item has one, because repeated negatives would
  weigh in H.
- If the base moves a row by the mean over its own samples (FedMF), that applies to its loss only.
  With n_i of a minibatch's b samples, C_i moves by (b / n_i) dL_rec/dC_i + beta dL_eRR/dC_i, which
  is eq. 22 with beta n_i / b for that row. PFedRec, FedNCF and FedRAP have eq. 22 itself.
- alpha_n counts 4096 items at most.

Choices where the paper is silent: rates are the base's, times `rate_factor` after every minibatch.
Tables are all trained items. Without `mixing` ("eRR only"), C begins as G in every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny

from fedrec.algorithms.about import ABOUT
from fedrec.algorithms.batch import (
    Batch,
    Values,
    alignment_and_uniformity,
    contrast,
    decorrelation,
    lengths,
    normalised,
    of_two,
)
from fedrec.algorithms.declarations import (
    About,
    AlgorithmSettings,
    Constant,
    Factor,
    Parameter,
    Rate,
    SearchSpace,
    Shapes,
    Uniform,
    Weight,
)
from fedrec.algorithms.fedmf import FedMFSettings
from fedrec.algorithms.optimisers import Gradient, Optimiser, Sgd
from fedrec.algorithms.trained import scores_of
from fedrec.algorithms.whole_decay import decays_whole
from fedrec.algorithms.wrapper import Wrapper, WrapperSettings
from fedrec.errors import SettingsError
from fedrec.section import Rule, UsedIf, only_if

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.algorithm import RoundStart


_VISIT: Mapping[str, Any] = MappingProxyType({"local_epochs": 10, "batch_size": 2048})
_COPIED, _SCORES, _SUM = "begun", "personal_scores", "rows"


def _used_by(*regularisers: str, **values: tuple[object, ...]) -> UsedIf:
    return UsedIf({"regulariser": regularisers, **values}, above_zero=("weight",))


class PLGCSettings(WrapperSettings):
    """PLGC: a persistent item table per user, mixed with the shared one."""

    base_defaults: ClassVar[Mapping[str, Any]] = _VISIT
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("weight", "mixing"),
            lambda section: section.mixing or section.weight,
            "{path}.mixing is false and {path}.weight 0, which leaves nothing of PLGC but a table "
            "for each user. Set weight = 0.5, or {path}.name = {s.base.name!r}.",
        ),
        Rule(
            ("base.batch_size", "weight"),
            lambda section: not section.weight or section.batch_size > 1,
            "{path}.base.batch_size is 1, but the regulariser compares a minibatch's items with "
            "each other. Set batch_size = 2048, or {path}.weight = 0.",
        ),
        Rule(
            ("base.personal_items",),
            lambda section: getattr(section.base, "personal_items", True),
            "{path}.base.personal_items is false, but users of plgc always score with their own "
            "tables. Omit it.",
        ),
        Rule(
            ("base.name",),
            lambda section: (
                len(section.made.phases(section.made.derived.initial_scalars)) == 1
                and not any(isinstance(one, Gradient) for one in section.made.sent.optimisers)
            ),
            "{path}.base.name is {s.base.name!r}, which sends gradients in place of rows or "
            "trains in several phases. With such a base, the meaning of a table per user is not "
            "defined. Set {path}.base.name to another algorithm.",
        ),
        Rule(
            ("upload", "base.weight_decay"),
            lambda section: not (section.sums_changes and decays_whole(section.made)),
            "{path}.base.weight_decay of {s.base.name} shrinks rows that a user does not touch, "
            'which {path}.upload = "change" does not send. Set upload = "table", or '
            "weight_decay = 0.",
        ),
        only_if(
            lambda section: not any(entry.added_to for entry in section.made.parameters),
            ("upload", "base.name"),
            "users of {s.base.name} train and send the shared table itself, not their own",
        ),
        only_if(
            lambda section: not section.made.derived.personalises,
            ("upload", "base.name"),
            "the server of {s.base.name} always reads users' whole tables",
        ),
        only_if(
            lambda section: any(
                getattr(one, "factor", 0) == 1 for one in section.made.sent.optimisers
            ),
            ("rate_factor", "base.name"),
            "steps of {s.base.name} use Adam or have their own factor",
        ),
    )

    name: Literal["plgc"] = Field(default="plgc", description="Which algorithm trains.")
    base: SerializeAsAny[AlgorithmSettings] = Field(
        default=FedMFSettings(**_VISIT),
        description="The algorithm inside: a table of its settings with its name, as in "
        '[algorithm.base] name = "pfedrec". Defaults: local_epochs 10, batch_size 2048.',
    )
    mixing: bool = Field(
        default=True,
        description="Score with the mixture of own and shared table. With false, own tables begin "
        "as the shared one in every round and score alone (eRR only).",
    )
    regulariser: Annotated[
        Literal["err", "au", "duorec", "feddecorr"], UsedIf(above_zero=("weight",))
    ] = Field(
        default="err",
        description="The term that keeps both tables similar: PLGC's own eRR, or an alternative "
        "from the paper.",
    )
    weight: Weight = Field(
        default=0.5, description="Weight (beta) of the regulariser. 0 for mixing only."
    )
    off_weight: Annotated[Weight, _used_by("err", "au")] = Field(
        default=0.01,
        description="Weight (gamma) of eRR's entries off the diagonal, or of AU's uniformity.",
    )
    projector: Annotated[bool, _used_by("err")] = Field(
        default=True,
        description="Whether eRR compares the outputs of a user's own projector and predictor for "
        "the rows, and not the rows. The others always compare rows.",
    )
    projector_rate: Annotated[Rate, _used_by("err", projector=(True,))] = Field(
        default=0.1, description="Step size of projector and predictor."
    )
    temperature: Annotated[float, _used_by("duorec")] = Field(
        default=0.2, gt=0, le=100, description="Temperature of DuoRec's cosines."
    )
    rate_factor: Factor = Field(
        default=0.95,
        description="SGD's step sizes are multiplied by this after every minibatch of a visit, "
        "unless the base has its own factor.",
    )
    upload: Literal["change", "table"] = Field(
        default="change",
        description="Users contribute the change of their table, which is enough if all "
        "users participate in every round, or its whole difference from the shared one.",
    )

    def search_space(self, n_rounds: int) -> SearchSpace:
        """See `AlgorithmSettings`."""
        base: SearchSpace = {
            key.replace("algorithm.", "algorithm.base.", 1): values
            for key, values in self.base.search_space(n_rounds).items()
            if key.startswith("algorithm.")
        } | {"rounds.total": (60,)}
        if not self.weight:
            return base
        return {**base, "algorithm.weight": (0.1, 0.3, 1.0)}

    @property
    def sums_changes(self) -> bool:
        """Whether sums are over changes of users' own tables, not over differences from G."""
        base = self.made
        own = any(entry.added_to for entry in base.parameters) or base.derived.personalises
        return self.upload == "change" and not own


class _Mixed(NamedTuple):
    """Tables G and C, what Q replaces in the base, whether C makes G's steps, and declarations."""

    version: str
    own: str
    seen_as: str
    makes_steps: bool
    parameters: tuple[Parameter, ...]


class PLGC(Wrapper):
    """Own tables around any base with item rows. See the module's docstring.

    Attributes:
        own_tables: the user's own table for each shared or received table that is mixed with it.
    """

    settings_type: ClassVar[type[AlgorithmSettings]] = PLGCSettings
    about: ClassVar[About] = ABOUT["plgc"]

    def __init__(self, settings: AlgorithmSettings, shapes: Shapes) -> None:
        super().__init__(settings, shapes)
        self._flag = _COPIED if self.settings.mixing else ""
        declared = {entry.name: entry for entry in self.base.parameters}
        if self.base.derived.personalises:
            (own,) = self.base.sent.sources.values()
            self._mixed = [self._sent(declared[own])]
        else:
            private = {entry.added_to: entry for entry in declared.values() if entry.added_to}
            self._mixed = [
                self._added(entry, private[name]) if name in private else self._copied(entry)
                for name, entry in declared.items()
                if name in self.base.sent.moved and entry.scope == "rows" and len(entry.shape) == 1
            ]
        if not self._mixed:
            raise SettingsError(
                f"{self.base.name} trains no shared item rows that a user could copy.",
                remedy='Set algorithm.base.name = "fedmf", or another algorithm that does.',
            )
        self.own_tables = {each.version: each.own for each in self._mixed}

    def _copied(self, g: Parameter) -> _Mixed:
        """FedMF, FedNCF, PFedRec: C is a copy of the shared G, trained and sent in its place."""
        whole, mean = self.settings.upload == "table", replace(g, structured=False, mean="samples")
        c = Parameter(f"own_{g.name}", "own_rows", g.shape, Constant(), copies=g.name)
        c = replace(c, copy_flag=self._flag, sends_whole_table=whole)
        return _Mixed(g.name, c.name, g.name, True, (mean, c))

    def _added(self, g: Parameter, own: Parameter) -> _Mixed:
        """FedRAP: C is the base's private D, but begins as G. Q replaces the sum of both."""
        c = replace(own, initial=Constant(), same_for_all_users=False, copies=g.name)
        c, g = replace(c, copy_flag=self._flag), replace(g, structured=False)
        return _Mixed(g.name, c.name, _SUM, False, (g, c))

    def _sent(self, c: Parameter) -> _Mixed:
        """GPFedRec, PerFedRec: C is the table that users send. It stays theirs if it is mixed."""
        if self._flag:
            c = replace(c, copies=c.copies or c.begins_as, copy_flag=self._flag)
            c = replace(c, begins_as="", received=False)
        return _Mixed(self.base.mixes_with, c.name, c.name, False, (c,))

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The base's parameters, own tables that begin as shared ones, and the networks of eRR."""
        found = {entry.name: entry for entry in self.base.parameters}
        found.pop(self.base.kept_scores, None)
        for each in self._mixed:
            network = self._network(each.own, each.parameters[-1].shape[0])
            found |= {entry.name: entry for entry in (*each.parameters, *network)}
        flag = [Parameter(self._flag, "own", (), Constant())] if self._flag else []
        return (*found.values(), *flag, Parameter(_SCORES, "own_rows", (), Constant()))

    def _network(self, own: str, dim: int) -> list[Parameter]:
        """Return projector and predictor of a table, with torch's initial values."""
        settings, usual = self.settings, Uniform(1.0 / math.sqrt(dim))
        if not (settings.weight and settings.regulariser == "err" and settings.projector):
            return []
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

    @cached_property
    def scoring(self) -> tuple[str, ...]:
        """Kept scores are the only private tensor that `scores` reads."""
        return (*self.recommending, _SCORES)

    def moving(self, optimiser: Optimiser) -> Optimiser:
        """Return an optimiser that moves own tables in place of the shared ones."""
        if isinstance(optimiser, Gradient):
            raise TypeError("an optimiser that sends gradients takes no steps of an own table")
        moved = {each.version: each.own for each in self._mixed if each.makes_steps}
        rates = {moved.get(name, name): rate for name, rate in optimiser.rates.items()}
        for own in [own for own in self.own_tables.values() if own in rates]:
            rates |= {entry.name: self.settings.projector_rate for entry in self._network(own, 1)}
        if isinstance(optimiser, Sgd) and optimiser.factor == 1.0:
            return replace(optimiser, rates=rates, factor=self.settings.rate_factor)
        return replace(optimiser, rates=rates)

    def per_epoch(self, square: Callable[[str], torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return lambda_c of each own table if they are mixed (eq. 15)."""
        mixed = self.own_tables.items() if self.settings.mixing else ()
        squares = {own: (square(own), square(name)) for name, own in mixed}
        return {f"lambda_{own}": c / (c + g) for own, (c, g) in squares.items()}

    def seen(self, v: Values) -> Values:
        """Return the values that the base scores with: Q in place of its tables, and G."""
        tables: dict[str, torch.Tensor] = {}
        for each in self._mixed:
            c, g = v[each.own], v[each.version]
            q = mixture(c, g, v[f"lambda_{each.own}"]) if self.settings.mixing else c
            tables |= {each.seen_as: q, f"C_{each.own}": c, f"G_{each.own}": g}
        return v.having(tables) if _SUM in tables else self.base.seen(v.having(tables))

    def joint(self, v: Values, batch: Batch) -> torch.Tensor | float:
        """Return the weighted regulariser, summed over tables, if a step moves any of them."""
        if not self.settings.weight:
            return 0.0
        there = (batch.weight > 0).to(batch.weight.dtype)
        terms: list[torch.Tensor] = []
        for own in self.own_tables.values():
            rows, version = v[f"C_{own}"], v[f"G_{own}"].detach()
            network = [v[entry.name] for entry in self._network(own, 1)]
            if any(values.requires_grad for values in (rows, *network)):
                terms.append(self._regulariser(rows, version, there, network))
        return self.settings.weight * sum(terms[1:], terms[0]) if terms else 0.0

    def _regulariser(
        self,
        own: torch.Tensor,
        version: torch.Tensor,
        there: torch.Tensor,
        network: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Return L_eRR or its substitute, (n_users,), of rows of C and G, (n_users, n_rows, d)."""
        settings = self.settings
        if settings.regulariser == "au":
            return alignment_and_uniformity(own, version, there, settings.off_weight)
        if settings.regulariser == "duorec":
            return contrast(own, version, there, settings.temperature)
        if settings.regulariser == "feddecorr":
            return decorrelation(own, there)
        if network:
            own, version = (features(rows, there, network) for rows in (own, version))
        return redundancy(own, version, there, settings.off_weight)

    def untouched_scores(
        self, n_users: int, start: RoundStart, private: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the base's scores with the published table, which is Q without own rows."""
        return scores_of(self.base, n_users, start, private)

    def preferences(
        self,
        serving: Mapping[str, NDArray[np.float32]],
        own: Mapping[str, NDArray[np.float32]],
    ) -> NDArray[np.float32]:
        """Return the scores of a known user by its table, and of a new one by the base."""
        if len(own) > 1:
            return super().preferences(serving, own)
        return self.base.preferences(serving, own)


def mixture(c: torch.Tensor, g: torch.Tensor, lambda_c: torch.Tensor) -> torch.Tensor:
    """Return Q = lambda_c C + (1 - lambda_c) G (eq. 16) with each user's lambda_c, (n_users,).

    `lerp` computes this formula in another order of operations, which gives exactly G if C = G.
    """
    import torch

    return torch.lerp(g, c, lambda_c[:, None, None])


def redundancy(
    z_c: torch.Tensor, z_g: torch.Tensor, mask: torch.Tensor, gamma: float
) -> torch.Tensor:
    """Return L_eRR: the cosines H of the columns of both views should be the identity.

    Columns are not centred.

    Args:
        z_c, z_g: Z^C and Z^G, a row for each item, (n_users, n_rows, d).
        mask: 1 for rows that exist, 0 for padding, (n_users, n_rows).
        gamma: weight of the entries off the diagonal.
    """
    from fedrec.tensor_products import user_product

    z_c, z_g, d = z_c * mask[:, :, None], z_g * mask[:, :, None], z_c.shape[2]
    sizes = lengths(z_c, 1)[:, :, None] * lengths(z_g, 1)[:, None]
    h = user_product(z_c.mT, z_g) / (sizes + 1e-8)  # eq. 18
    diagonal = h.diagonal(dim1=1, dim2=2)
    off_diagonal = h.square().sum((1, 2)) - diagonal.square().sum(1)
    found = ((1.0 - diagonal).square().sum(1) + gamma * off_diagonal) / d  # eq. 19
    return of_two(found, mask)


def features(
    rows: torch.Tensor, there: torch.Tensor, network: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return predictor(projector(rows)): linear, batch norm, ReLU, linear, then linear with a bias.

    Matrices are (n_users, dim, dim) and take rows from the left, vectors (n_users, dim).
    """
    from fedrec.tensor_products import user_product

    first, scale, shift, second, predictor, bias = network
    units = normalised(user_product(rows, first), there) * scale[:, None] + shift[:, None]
    return user_product(user_product(units.relu(), second), predictor) + bias[:, None]
