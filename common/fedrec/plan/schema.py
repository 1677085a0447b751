"""The plan: what coordinator and clients must agree on byte by byte, every field with its sentence.

Its sections are `federation`, `algorithm`, `update`, `training`, `protection`, `privacy`,
`evaluation` and `rounds`. A settings file has more, which are each machine's own; see
`fedrec.settings.schema`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator

from fedrec.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, Algorithm, AlgorithmSettings
from fedrec.identity.cells import FEWEST_IN_CELL
from fedrec.protection import PROTECTIONS, Protection, ProtectionSettings
from fedrec.section import InWords, Rule, Section, UsedIf, at_least
from fedrec.updates.settings import UpdateSettings


class FederationSettings(Section):
    """What the federation is called and how it begins."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9._-]{1,64}$"),
        InWords("1 to 64 letters, digits and . _ -"),
    ] = Field(
        default="movies", description="The federation's name; keys and signatures are bound to it."
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
        description="Most users, over all clients, whose contributions may meet in one sum; "
        "the protection's overflow bound is proven for this number.",
    )
    minimum_item_users: int = Field(
        default=10,
        ge=1,
        description="Items held by fewer users are never updated, and their rows do not travel: "
        "with one holder an item's row is that user's data.",
    )
    corrupt_cells: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Where the key authority opens sums over several cells: an item is trained "
        "if minimum_item_users users hold it outside the cells with the most holders, this many "
        "of them. So members of this many cells can't make others train rare items by counting "
        "users they don't have. Every round needs more cells than this.",
    )
    minimum_new_users: int = Field(
        default=10,
        ge=1,
        description="A client whose users were counted, in whatever run, counts others only where "
        "none or this many of its users differ; until then it sends what it sent before. A client "
        "with fewer users counts once.",
    )


def users_with_room(n_users: int) -> int:
    """Return a bound on users: the next power of two that is at least twice as many."""
    return 1 << max(2 * n_users - 1, 1).bit_length()


_UNDER_NOISE = UsedIf({"mechanism": ("gaussian", "laplace")})


class PrivacySettings(Section):
    """What every sum hides of a single user, for every reader."""

    mechanism: Literal["none", "gaussian", "laplace"] = Field(
        default="none",
        description="none: sums are exact; gaussian: every client adds a share of Gaussian noise, "
        "which protects users once the shares of a whole round are added up; laplace: every "
        "client adds noise that is enough alone, as papers do, for much less precision.",
    )
    clip: Annotated[float, _UNDER_NOISE] = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="Largest length (L2 norm) of a user's whole contribution to a round, all "
        "tensors together; a longer one is shrunk. Values of tensors with a range of their own "
        "are measured in units of it, times update.clip.",
    )
    noise_multiplier: Annotated[float, _UNDER_NOISE] = Field(
        default=0.0,
        ge=0,
        le=1e4,
        description="Standard deviation of a sum's noise (laplace: the scale of a client's) over "
        "the clip; 0 takes the least with which rounds_per_user rounds stay within epsilon.",
    )
    epsilon: Annotated[float, _UNDER_NOISE] = Field(
        default=8.0,
        gt=0,
        le=1000,
        description="The budget of a user over the whole run; no round opens beyond it.",
    )
    delta: Annotated[float, _UNDER_NOISE] = Field(
        default=1e-5, gt=0, le=0.1, description="Probability with which epsilon may be exceeded."
    )
    rounds_per_user: Annotated[int, _UNDER_NOISE] = Field(
        default=10,
        ge=0,
        description="Most training rounds that a user takes part in; the user's client sees to "
        "it. 0 sets no limit but rounds.total.",
    )
    colluding_share: Annotated[float, _UNDER_NOISE] = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Share of a round's clients who may take their own noise off a sum, one of "
        "them at least; the others add more to make up for it (gaussian).",
    )
    expected_users: Annotated[float, _UNDER_NOISE] = Field(
        default=100.0,
        gt=0,
        le=1e9,
        description="Sums are divided by this fixed number in place of the number of users, "
        "which would tell who took part: about as many as train in a round.",
    )


class TrainingSettings(Section):
    """How users are trained where they are."""

    accelerated: bool = Field(
        default=True,
        description="Train in compiled code on processors where an algorithm has any; false "
        "trains by autograd everywhere, as CUDA devices do. All parties do the same.",
    )


class EvaluationSettings(Section):
    """How the model is measured; clients measure, only sums leave them."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("at", "protocol"),
            lambda section: section.protocol == "full" or section.at <= 99,
            "{path}.at is {s.at}, but the protocol {s.protocol} ranks the held-out item among 99 "
            "others, so that it is always found. Set {path}.at = 99 or less, or {path}.protocol = "
            '"full".',
        ),
    )

    protocol: Literal["full", "sampled", "paper"] = Field(
        default="full",
        description="full ranks all items; sampled ranks 99 negatives; paper is the published "
        "protocol, which leaks the held-out items and serves reproduction only.",
    )
    at: int = Field(default=10, ge=1, le=1000, description="K of HR@K, NDCG@K, Recall@K, MRR@K.")
    every_rounds: int = Field(
        default=1, ge=1, description="Measure in every n-th round (and after the last)."
    )


class RoundSettings(Section):
    """How rounds are run."""

    rules: ClassVar[tuple[Rule, ...]] = (
        at_least(
            "clients_per_round",
            "minimum_clients",
            ", so that every round would be abandoned",
            "or 0 to ask everybody",
        ),
        Rule(
            ("user_sampling", "user_fraction"),
            lambda section: section.user_sampling != "count" or section.user_fraction < 1,
            '{path}.user_sampling is "count", but {path}.user_fraction is 1, so that all users '
            "take part. Lower {path}.user_fraction, or leave {path}.user_sampling out.",
        ),
    )

    total: int = Field(default=100, ge=1, le=1_000_000, description="Training rounds to publish.")
    minimum_clients: int = Field(
        default=3, ge=1, description="A round with fewer updates at its deadline is abandoned."
    )
    minimum_summands: int = Field(
        default=3,
        ge=1,
        description="Sums of fewer roster clients are neither opened nor believed; under "
        "encryption never less than 3.",
    )
    clients_per_round: int = Field(
        default=0,
        ge=0,
        description="Clients asked in each round; 0 asks every roster client. Where sums need "
        "cells, cells_per_round takes its place.",
    )
    cells_per_round: int = Field(
        default=0,
        ge=0,
        description="Cells asked in each round, of groups of clients that are always summed "
        'together (masks, and protection.key_holder = "authority"); 0 asks every one.',
    )
    over_provision: float = Field(
        default=1.0,
        ge=1,
        le=4,
        description="Asks this many times clients_per_round, or cells_per_round; the round closes "
        "when as many have answered as are counted.",
    )
    deadline_seconds: float = Field(
        default=120.0, gt=0, description="A round collects no longer than this."
    )
    report_seconds: float = Field(
        default=30.0,
        gt=0,
        description='Under protection.key_holder = "members" the next round opens, and the run '
        "ends, when two clients have told alike what they decrypted, or after this. "
        'Under update.indices = "clear" they have as long as `fedrec check` says where that is '
        "more.",
    )
    mask_step_seconds: float = Field(
        default=30.0,
        gt=0,
        description="A client that is silent for so long in one of the steps after training has "
        "dropped out of the round (masks).",
    )
    recompute_limit: int = Field(
        default=64,
        ge=3,
        le=10_000,
        description="The key authority adds up to this many contributions itself before it opens "
        "the sum. Under bfv and paillier a round may have more (cells_per_round): then tags "
        "inside the ciphertexts show that the coordinator's sum is the right one; under ckks "
        "never more. Where members decrypt, parameters are planned for as many at least.",
    )
    user_fraction: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of a client's users that take part in a round; a coin keyed by the "
        "client's own secret chooses them.",
    )
    user_sampling: Literal["coin", "count"] = Field(
        default="coin",
        description="coin: each user takes part by a coin of its own; count: exactly user_fraction "
        "of all users, rounded down, drawn anew for each round as papers do. Only a simulation can "
        "count across clients; a federation whose clients are one user each has "
        "rounds.clients_per_round.",
    )


def _default_algorithm() -> AlgorithmSettings:
    return DEFAULT_ALGORITHM.settings_type(name=DEFAULT_ALGORITHM.name)


class Plan(Section):
    """What coordinator and clients must agree on."""

    federation: FederationSettings = FederationSettings()
    algorithm: SerializeAsAny[AlgorithmSettings] = _default_algorithm()
    update: UpdateSettings = UpdateSettings()
    training: TrainingSettings = TrainingSettings()
    protection: SerializeAsAny[ProtectionSettings] = ProtectionSettings()
    privacy: PrivacySettings = PrivacySettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    rounds: RoundSettings = RoundSettings()

    @property
    def has_cells(self) -> bool:
        """Whether sums are over whole cells of the roster: nobody who reads sums reads updates."""
        kind = PROTECTIONS[self.protection.name]
        return self.authority_opens or (kind.hides_updates and not kind.needs_reveal)

    @property
    def counts_by_cell(self) -> bool:
        """Whether the key authority counts an item's holders in each cell by itself."""
        is_exact = self.privacy.mechanism == "none"
        return self.authority_opens and is_exact and self.federation.minimum_item_users > 1

    @property
    def most_in_cells(self) -> int:
        """How many clients rounds.cells_per_round cells of the smallest size have at most."""
        smallest = max(FEWEST_IN_CELL, self.rounds.minimum_summands)
        return self.rounds.cells_per_round * (2 * smallest - 1)

    @property
    def authority_opens(self) -> bool:
        """Whether the key authority alone opens sums: there is a key, and it keeps it."""
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


NAMED: Mapping[str, tuple[str, Mapping[str, type[Algorithm] | type[Protection]]]] = {
    "algorithm": (DEFAULT_ALGORITHM.name, ALGORITHMS),
    "protection": (ProtectionSettings().name, PROTECTIONS),
}
"""Sections whose type depends on the name in them: the default, and what there is."""


def section_type(
    section: str, values: Mapping[str, object], schema: type[Plan] = Plan
) -> type[Section]:
    """Return the type of a schema's section; that of some (`NAMED`) depends on the name in it.

    Raises:
        ValueError: for an algorithm or protection that does not exist.
    """
    if section in NAMED:
        default, known = NAMED[section]
        name = values.get("name", default)
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"There is no {section} {name!r}; known are {', '.join(known)}.")
        return known[name].settings_type
    annotation = schema.model_fields[section].annotation
    assert isinstance(annotation, type) and issubclass(annotation, Section)
    return annotation


def section_types(schema: type[Plan]) -> Iterator[tuple[str, str, type[Section]]]:
    """Yield (section, whose type it is or nothing, type) in the order of a schema."""
    for section in schema.model_fields:
        if section == "protection":
            yield section, "", ProtectionSettings
        if section not in NAMED:
            yield section, "", section_type(section, {}, schema)
            continue
        for name, kind in NAMED[section][1].items():
            if kind.settings_type is not ProtectionSettings:
                yield section, name, kind.settings_type
