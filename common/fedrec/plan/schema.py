"""The plan: all settings on which coordinator and clients must agree, each with its description.

Its sections are `federation`, `algorithm`, `update`, `training`, `protection`, `privacy`,
`evaluation` and `rounds`. A settings file has more sections, which are a machine's own. See
`fedrec.settings.schema`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    PrivateAttr,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedrec.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, Algorithm, AlgorithmSettings
from fedrec.identity.cells import FEWEST_IN_CELL
from fedrec.protection import PROTECTIONS, Protection, ProtectionSettings
from fedrec.protection.settings import FEWEST_SUMMANDS
from fedrec.section import InWords, Rule, Section, UsedIf, at_least
from fedrec.updates.update import UpdateSettings


class FederationSettings(Section):
    """The federation's name, seed and limits on users and items."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9._-]{1,64}$"),
        InWords("1 to 64 letters, digits and . _ -"),
    ] = Field(
        default="movies", description="The federation's name. Keys and signatures are bound to it."
    )
    seed: int = Field(
        default=1,
        ge=0,
        lt=2**63,
        description="Public seed of the initial model, the bases B and all training randomness.",
    )
    maximum_users: int = Field(
        default=16_384,
        ge=1,
        lt=2**31,
        description="Largest number of users, over all clients, in one sum. The protection's "
        "overflow bound is proven for this number.",
    )
    minimum_item_users: int = Field(
        default=10,
        ge=1,
        description="Items with fewer holders are never updated, and their rows do not travel. "
        "With one holder, an item's row would be that user's data.",
    )
    corrupt_cells: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Number of cells whose members may report users that they don't have. If the "
        "key authority opens sums over several cells, an item is trained if "
        "minimum_item_users users hold it outside this many cells with the most "
        "holders. Every round needs more cells than this.",
    )
    minimum_new_users: int = Field(
        default=10,
        ge=1,
        description="A client that was counted in any run counts a changed set of users only if "
        "at least this many differ. Until then it sends its previous counts. A client "
        "with fewer users counts once.",
    )


def users_with_room(n_users: int) -> int:
    """Return a bound on users: the smallest power of two that is at least twice as many."""
    return 1 << max(2 * n_users - 1, 1).bit_length()


_UNDER_NOISE = UsedIf({"mechanism": ("gaussian", "laplace")})


class PrivacySettings(Section):
    """The privacy of a single user in every sum, against every reader."""

    mechanism: Literal["none", "gaussian", "laplace"] = Field(
        default="none",
        description="none: sums are exact. gaussian: every client adds a share of Gaussian noise, "
        "which protects users once a whole round is added up. laplace: every client "
        "adds enough noise by itself, as in papers, which costs much more precision.",
    )
    clip: Annotated[float, _UNDER_NOISE] = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="Largest L2 norm of a user's whole contribution to a round, all tensors "
        "together. Longer ones are scaled down. Values of tensors with their own "
        "range are measured in units of it, times update.clip.",
    )
    noise_multiplier: Annotated[float, _UNDER_NOISE] = Field(
        default=0.0,
        ge=0,
        le=1e4,
        description="Standard deviation of a sum's noise (laplace: scale of a client's noise), "
        "divided by the clip. If 0, uses the smallest value that keeps the run within epsilon.",
    )
    epsilon: Annotated[float, _UNDER_NOISE] = Field(
        default=8.0,
        gt=0,
        le=1000,
        description="A user's privacy budget over the whole run. No round opens beyond it.",
    )
    delta: Annotated[float, _UNDER_NOISE] = Field(
        default=1e-5, gt=0, le=0.1, description="Probability with which epsilon may be exceeded."
    )
    rounds_per_user: Annotated[int, _UNDER_NOISE] = Field(
        default=10,
        ge=0,
        description="Largest number of training rounds that a user takes part in, enforced by "
        "the user's client. If 0, uses rounds.total.",
    )
    colluding_share: Annotated[float, _UNDER_NOISE] = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Share of a round's clients, but at least one, that may collude to subtract "
        "their own noise from a sum. The others add more noise to make up for it "
        "(gaussian).",
    )
    expected_users: Annotated[float, _UNDER_NOISE] = Field(
        default=100.0,
        gt=0,
        le=1e9,
        description="Fixed number by which sums are divided, instead of the number of users, "
        "which would reveal participation. Use about the number of users that train "
        "in a round.",
    )


class TrainingSettings(Section):
    """The code that trains users on clients."""

    accelerated: bool = Field(
        default=True,
        description="Train with compiled code on CPUs if the algorithm has it. If false, "
        "trains with autograd, as on CUDA devices. All parties use the same value.",
    )


class EvaluationSettings(Section):
    """How the model is measured. Clients measure, and only sums leave them."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("at", "protocol"),
            lambda section: section.protocol == "full" or section.at <= 99,
            "{path}.at is {s.at}, but the protocol {s.protocol} ranks the held-out item among 99 "
            "others, so it is always found. Set {path}.at = 99 or less, or {path}.protocol = "
            '"full".',
        ),
    )

    protocol: Literal["full", "sampled", "paper"] = Field(
        default="full",
        description="full ranks all items, sampled ranks 99 negatives, and paper is the published "
        "protocol. paper leaks the held-out items and is for reproduction only.",
    )
    at: int = Field(default=10, ge=1, le=1000, description="K of HR@K, NDCG@K, Recall@K, MRR@K.")
    every_rounds: int = Field(
        default=1, ge=1, description="Measure in every n-th round (and after the last)."
    )


class RoundSettings(Section):
    """The size, timing and limits of rounds."""

    rules: ClassVar[tuple[Rule, ...]] = (
        at_least(
            "clients_per_round",
            "minimum_clients",
            ", so that every round would be abandoned",
            "or 0 to ask every client",
        ),
        Rule(
            ("user_sampling", "user_fraction"),
            lambda section: section.user_sampling != "count" or section.user_fraction < 1,
            '{path}.user_sampling is "count", but {path}.user_fraction is 1, so that all users '
            "take part. Lower {path}.user_fraction, or leave {path}.user_sampling out.",
        ),
    )

    total: int = Field(
        default=100, ge=1, le=1_000_000, description="Number of training rounds to publish."
    )
    minimum_clients: int = Field(
        default=3, ge=1, description="A round with fewer updates at its deadline is abandoned."
    )
    minimum_summands: int = Field(
        default=3,
        ge=1,
        description="Sums of fewer roster clients are neither opened nor accepted. Under "
        "encryption this is at least 3.",
    )
    clients_per_round: int = Field(
        default=0,
        ge=0,
        description="Clients selected for each round. If 0, selects every roster client. With "
        "cells, "
        "use cells_per_round instead.",
    )
    cells_per_round: int = Field(
        default=0,
        ge=0,
        description="Cells selected for each round, which are groups of clients that are always "
        'summed together (masks, and protection.key_holder = "authority"). If 0, '
        "selects all of them.",
    )
    over_provision: float = Field(
        default=1.0,
        ge=1,
        le=4,
        description="Select this multiple of clients_per_round (or cells_per_round). The round "
        "closes as soon as clients_per_round (or cells_per_round) have answered.",
    )
    deadline_seconds: float = Field(
        default=120.0, gt=0, description="Longest time for collecting a round's updates."
    )
    report_seconds: float = Field(
        default=30.0,
        gt=0,
        description='Under protection.key_holder = "members", the next round opens, and the run '
        "ends, when two clients report the same decrypted sum, or after this time. "
        'Under update.indices = "clear" the time is the one that `fedrec check` '
        "prints, if that is longer.",
    )
    mask_step_seconds: float = Field(
        default=30.0,
        gt=0,
        description="A client that is silent for this time in a step after training has dropped "
        "out of the round (masks).",
    )
    recompute_limit: int = Field(
        default=64,
        ge=3,
        le=10_000,
        description="The key authority recomputes sums of up to this many contributions before "
        "opening them. Under bfv and paillier a round may have more "
        "(cells_per_round), and tags in the ciphertexts prove the coordinator's sum. "
        "Under ckks it may not. If members decrypt, parameters are planned for at "
        "least this many.",
    )
    user_fraction: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of a client's users that take part in a round. Each is drawn with a "
        "coin keyed by the client's own secret.",
    )
    user_sampling: Literal["coin", "count"] = Field(
        default="coin",
        description="coin: each user takes part by its own coin. count: exactly user_fraction of "
        "all users, rounded down, is drawn for each round, as in papers. Only a "
        "simulation can count across clients. If each client is one user, use "
        "rounds.clients_per_round.",
    )

    @property
    def published(self) -> int:
        """The rounds of a run: the count round, `total` training rounds and a measuring round."""
        return self.total + 2

    def fewest_summands(self, hides_updates: bool, roster_floor: int = 1) -> int:
        """Return the minimum number of clients in a sum that is opened, published or trusted.

        Args:
            hides_updates: whether only sums are to be read, never a single update.
            roster_floor: the roster's own minimum.
        """
        if not hides_updates:
            return self.minimum_clients
        return max(FEWEST_SUMMANDS, self.minimum_summands, self.minimum_clients, roster_floor)


def _default_algorithm() -> AlgorithmSettings:
    return DEFAULT_ALGORITHM.settings_type(name=DEFAULT_ALGORITHM.name)


PLAN_FORM = 2
"""The form of a new run's plan. `fedrec.plan.agreement` knows the former ones."""


class Plan(Section):
    """The settings on which coordinator and clients must agree.

    A run keeps the form of the release that began it, so that all releases sign the same plan.
    """

    federation: FederationSettings = FederationSettings()
    algorithm: SerializeAsAny[AlgorithmSettings] = _default_algorithm()
    update: UpdateSettings = UpdateSettings()
    training: TrainingSettings = TrainingSettings()
    protection: SerializeAsAny[ProtectionSettings] = ProtectionSettings()
    privacy: PrivacySettings = PrivacySettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    rounds: RoundSettings = RoundSettings()
    _form: int = PrivateAttr(default=PLAN_FORM)

    @property
    def form(self) -> int:
        """The plan's form: how it is written, and by which rules sums are opened."""
        return self._form

    def in_form(self, form: int) -> Self:
        """Return the same plan in another form."""
        plan = self.model_copy()
        plan._form = form
        return plan

    @property
    def has_cells(self) -> bool:
        """Whether sums are over whole cells of the roster.

        Then a reader of sums cannot read updates.
        """
        kind = PROTECTIONS[self.protection.name]
        return self.authority_opens or (kind.hides_updates and not kind.needs_reveal)

    @property
    def counts_by_cell(self) -> bool:
        """Whether the key authority counts an item's holders separately in each cell.

        In form 1 it didn't.
        """
        is_exact = self.privacy.mechanism == "none" and self.form > 1
        return self.authority_opens and is_exact and self.federation.minimum_item_users > 1

    @property
    def fewest_summands(self) -> int:
        """The minimum number of clients in a sum, unless the roster requires more."""
        return self.rounds.fewest_summands(PROTECTIONS[self.protection.name].hides_updates)

    @property
    def most_in_cells(self) -> int:
        """The largest number of clients in rounds.cells_per_round cells of the smallest size."""
        smallest = max(FEWEST_IN_CELL, self.rounds.minimum_summands)
        return self.rounds.cells_per_round * (2 * smallest - 1)

    @property
    def authority_opens(self) -> bool:
        """Whether the key authority is the only holder of a secret key."""
        has_key = PROTECTIONS[self.protection.name].needs_reveal
        return has_key and self.protection.key_holder == "authority"

    @field_validator("algorithm", "protection", mode="before")
    @classmethod
    def _settings_by_name(cls, value: Any, info: ValidationInfo) -> Any:
        """Read the section as the settings of the algorithm or protection that it names."""
        assert info.field_name is not None
        if isinstance(value, ProtectionSettings):
            if type(value) is section_type("protection", {"name": value.name}):
                return value
            value = value.model_dump(exclude_unset=True)
        if isinstance(value, Mapping):
            return section_type(info.field_name, value).model_validate(dict(value))
        return value

    @model_validator(mode="after")
    def _structure_of_algorithm(self) -> Self:
        """Use the algorithm's own update structure if none was set."""
        if "structure" not in self.update.model_fields_set:
            kind = ALGORITHMS.get(self.algorithm.name, DEFAULT_ALGORITHM)
            tuned = kind.about.advice.starter or {}
            structure = tuned.get("update.structure", kind.about.supports.updates[0])
            own = self.update.model_copy(update={"structure": structure})
            # It stays a default: a client doesn't insist on what its file doesn't have.
            own.model_fields_set.discard("structure")
            self.__dict__["update"] = own
        return self


NAMED: Mapping[str, tuple[str, Mapping[str, type[Algorithm] | type[Protection]]]] = {
    "algorithm": (DEFAULT_ALGORITHM.name, ALGORITHMS),
    "protection": (ProtectionSettings().name, PROTECTIONS),
}
"""Sections whose type depends on the name in them, with their default and known types."""


def section_type(
    section: str, values: Mapping[str, object], schema: type[Plan] = Plan
) -> type[Section]:
    """Return the type of a schema's section, which depends on the name in it for `NAMED` ones.

    Raises:
        ValueError: for an algorithm or protection that does not exist.
    """
    if section in NAMED:
        default, known = NAMED[section]
        name = values.get("name", default)
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"There is no {section} {name!r}. Choose one of: {', '.join(known)}.")
        return known[name].settings_type
    annotation = schema.model_fields[section].annotation
    assert isinstance(annotation, type) and issubclass(annotation, Section)
    return annotation


def section_types(schema: type[Plan]) -> Iterator[tuple[str, str, type[Section]]]:
    """Yield (section, name that determines its type or nothing, type), in order."""
    for section in schema.model_fields:
        if section == "protection":
            yield section, "", ProtectionSettings
        if section not in NAMED:
            yield section, "", section_type(section, {}, schema)
            continue
        for name, kind in NAMED[section][1].items():
            if kind.settings_type is not ProtectionSettings:
                yield section, name, kind.settings_type
