"""Valid combinations: one table for the four seams, and the rules between their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from fedrec.algorithms import ALGORITHMS
from fedrec.errors import SettingsError
from fedrec.plan.algorithm import about_algorithm, algorithm_of, base_type
from fedrec.plan.layout import vector_spec
from fedrec.plan.privacy import privacy_problems
from fedrec.plan.protections import about_protection, check_sizes
from fedrec.plan.schema import Plan
from fedrec.protection import PROTECTIONS, SegmentSpec, VectorSpec
from fedrec.protection.protection import EncryptingProtection
from fedrec.protection.settings import FEWEST_SUMMANDS
from fedrec.section import Problem, Section, as_toml
from fedrec.updates import UPDATES


def index_problems(plan: Plan) -> Iterator[Problem]:
    """Yield contradictions to indices in the clear, as settings and a sentence."""
    update, name = plan.update, plan.protection.name
    if update.indices == "hidden" or update.structure != "topk":
        return
    advice = "or omit update.indices, so that zeros are sent, too."
    if why := about_protection(name).without_entries:
        yield (
            ("update.indices", "protection.name"),
            f'update.indices is "clear", but under {name} {why}. Set '
            f'protection.name = "paillier" with protection.preset = "single-3072", {advice}',
        )
    elif plan.protection.preset.startswith(("packed", "default")):
        yield (
            ("protection.preset", "update.indices"),
            f'update.indices is "clear", but under paillier/{plan.protection.preset} values share '
            "ciphertexts. Clients' indices differ, and a slot cannot be moved inside a "
            "ciphertext to match another client's slot. Set protection.preset = "
            f'"single-3072", {advice}',
        )
    if update.compress == "client":
        yield (
            ("update.compress", "update.indices"),
            'update.compress is "client", which is for clients with several users, but under '
            'update.indices = "clear" a client is one user. Set update.compress = "user", '
            + advice,
        )
    if plan.privacy.mechanism != "none":
        yield (
            ("update.indices", "privacy.mechanism"),
            f'update.indices is "clear", but privacy.mechanism = "{plan.privacy.mechanism}" adds '
            'noise to every value, so that none can be omitted. Set update.indices = "hidden", or '
            'privacy.mechanism = "none".',
        )


_CHOICES = ("algorithm.name", "update.structure", "protection.name", "evaluation.protocol")


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """A row of the table: any choice in one column can be combined with any in the others.

    Attributes:
        reason: why an algorithm cannot be combined with anything outside this row.
    """

    algorithm: str
    updates: tuple[str, ...]
    protections: tuple[str, ...]
    protocols: tuple[str, ...]
    reason: str

    def choices(self) -> Iterator[tuple[str, ...]]:
        """Yield every (algorithm, update, protection, protocol) that this row allows."""
        return product((self.algorithm,), self.updates, self.protections, self.protocols)


COMBINATIONS: tuple[Combination, ...] = tuple(
    Combination(
        algorithm=name,
        updates=kind.about.supports.updates,
        protections=kind.about.supports.protections or tuple(PROTECTIONS),
        protocols=kind.about.supports.protocols,
        reason=kind.about.supports.reason,
    )
    for name, kind in ALGORITHMS.items()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Settings that contradict each other.

    Attributes:
        keys: the dotted keys involved, beginning with the one to change.
        sentence: what was found, what was expected and a remedy.
    """

    keys: tuple[str, ...]
    sentence: str


def find_conflicts(
    plan: Plan, combinations: tuple[Combination, ...] = COMBINATIONS
) -> list[Conflict]:
    """Return every contradiction in a plan, with the settings that cause it."""
    found = list(_outside(plan, combinations))
    for rule in _RULES:
        try:
            found.extend(rule(plan))
        except SettingsError as error:
            # From a wrapper's base, about which several rules ask.
            conflict = Conflict(keys=("algorithm.base",), sentence=str(error))
            found += [] if conflict in found else [conflict]
    # The planner's errors are about numbers, which must be valid first.
    return found or list(_unplannable(plan))


def _outside(plan: Plan, combinations: tuple[Combination, ...]) -> Iterator[Conflict]:
    wanted = (
        plan.algorithm.name,
        plan.update.structure,
        plan.protection.name,
        plan.evaluation.protocol,
    )
    possible = [(row, choice) for row in combinations for choice in row.choices()]
    if wanted in [choice for _, choice in possible]:
        return

    def distance(choice: tuple[str, ...]) -> int:
        return sum(a != b for a, b in zip(choice, wanted, strict=True))

    # Settings that chose an algorithm keep it if it has any valid combination.
    row, nearest = min(possible, key=lambda pair: (pair[1][0] != wanted[0], distance(pair[1])))
    changed = [index for index in range(len(wanted)) if nearest[index] != wanted[index]]
    advice = " and ".join(f'{_CHOICES[index]} = "{nearest[index]}"' for index in changed)
    yield Conflict(
        keys=tuple(_CHOICES[index] for index in changed),
        sentence=f"{' + '.join(wanted)} is not a valid combination: {row.reason} The nearest valid "
        f"one has {advice}.",
    )


def _base(plan: Plan) -> Iterator[Conflict]:
    """Refuse a protection that the server of a wrapper's base cannot work under."""
    about, base, name = about_algorithm(plan), base_type(plan), plan.protection.name
    if base is not None and about.supports.protections and name not in about.supports.protections:
        yield Conflict(
            keys=("protection.name", "algorithm.base.name"),
            sentence=f'protection.name is "{name}", but algorithm.base.name is "{base.name}": '
            f'{about.supports.reason} Set protection.name = "{about.supports.protections[0]}".',
        )


def _rank(plan: Plan) -> Iterator[Conflict]:
    """Refuse ranks that are inconsistent with the length of the vectors."""
    dim = getattr(plan.algorithm, "dim", None)
    if dim is None or plan.update.structure not in about_algorithm(plan).supports.updates:
        return
    problem = UPDATES[plan.update.structure].problem(plan.update, dim)
    if problem:
        yield Conflict(keys=("update.rank", "algorithm.dim"), sentence=problem)


def _needs(plan: Plan) -> Iterator[Conflict]:
    """Refuse an update structure that an algorithm supports under other settings only."""
    structure = plan.update.structure
    needs = about_algorithm(plan).supports.needs.get(structure)
    for name, value in {} if needs is None else needs.settings.items():
        assert needs is not None
        if getattr(plan.algorithm, name) != value:
            yield Conflict(
                keys=("update.structure", f"algorithm.{name}"),
                sentence=f'update.structure is "{structure}", but algorithm.{name} is '
                f"{as_toml(getattr(plan.algorithm, name))}. {needs.reason} Set algorithm.{name} = "
                f'{as_toml(value)}, or update.structure = "dense".',
            )


def _all_clients(plan: Plan) -> Iterator[Conflict]:
    """Refuse rounds with a part of the users or clients if their sums must cover all of them."""
    rounds = plan.rounds
    reason = about_algorithm(plan).needs_all_clients
    if callable(reason):
        reason = reason(plan.algorithm)
    if not reason:
        return
    if rounds.user_fraction < 1:
        yield Conflict(
            keys=("rounds.user_fraction",),
            sentence=f"rounds.user_fraction is {rounds.user_fraction:g}, but {reason} over the "
            "same users. Set rounds.user_fraction = 1.",
        )
    for key in ("clients_per_round", "cells_per_round"):
        if getattr(rounds, key):
            yield Conflict(
                keys=(f"rounds.{key}",),
                sentence=f"rounds.{key} is {getattr(rounds, key)}, but {reason} over the same "
                f"clients. Set rounds.{key} = 0, which asks every client.",
            )


def _sections(plan: Plan) -> Iterator[Conflict]:
    """Refuse contradictions that the sections declare, and settings that have no effect."""
    for name in type(plan).model_fields:
        section = getattr(plan, name)
        for keys, sentence in section.problems(name) if isinstance(section, Section) else ():
            yield Conflict(keys=keys, sentence=sentence)


def _indices(plan: Plan) -> Iterator[Conflict]:
    for keys, sentence in index_problems(plan):
        yield Conflict(keys=keys, sentence=sentence)


def _unused(plan: Plan) -> Iterator[Conflict]:
    """Refuse settings that the algorithm or the protection would ignore."""
    about, protection = about_algorithm(plan), plan.protection.name
    unused = {}
    if about.range_instead:
        why = f"it has no effect on the sums of {plan.algorithm.name}: {about.range_instead}."
        unused = dict.fromkeys(
            ("update.clip", "update.fraction_bits"), ("algorithm.name", f"{why} Omit it.")
        )
    for key in {key: None for name in PROTECTIONS for key in about_protection(name).own_settings}:
        having = [name for name in PROTECTIONS if key in about_protection(name).own_settings]
        if protection not in having:
            why = f"{protection} does not use it, only {' and '.join(having)}."
            remedy = f'Omit it, or set protection.name = "{having[0]}".'
            unused[key] = "protection.name", f"{why} {remedy}"
    for key, (other, why) in unused.items():
        section, name = key.split(".")
        if not getattr(plan, section).is_default(name):
            yield Conflict(keys=(key, other), sentence=f"{key} is set, but {why}")


def _preset(plan: Plan) -> Iterator[Conflict]:
    """Ask the planner for the smallest sum, so that it refuses nothing but unknown names."""
    name, preset = plan.protection.name, plan.protection.preset
    least = SegmentSpec(name="least", length=1, max_abs_sum=1)
    try:
        PROTECTIONS[name].plan(VectorSpec(segments=(least,), max_summands=1), preset=preset)
    except SettingsError as error:
        yield Conflict(
            keys=("protection.preset", "protection.name"),
            sentence=f'protection.preset is "{preset}", but {error} Set protection.preset = '
            f'"{PROTECTIONS[name].presets[0]}".',
        )


def _summands(plan: Plan) -> Iterator[Conflict]:
    rounds, protection = plan.rounds, plan.protection.name
    if protection == "none":
        return
    if rounds.minimum_summands < FEWEST_SUMMANDS:
        yield Conflict(
            keys=("rounds.minimum_summands",),
            sentence=f"rounds.minimum_summands is {rounds.minimum_summands}, but under "
            f"{protection} a sum of fewer than {FEWEST_SUMMANDS} clients is never opened: "
            "with two, each could compute the other's update. Set "
            f"rounds.minimum_summands = {FEWEST_SUMMANDS} or more.",
        )
    needed = plan.fewest_summands
    if rounds.minimum_clients < needed:
        yield Conflict(
            keys=("rounds.minimum_clients", "rounds.minimum_summands"),
            sentence=f"rounds.minimum_clients is {rounds.minimum_clients}, but under {protection} "
            f"a round can only be opened with {needed} clients. Set "
            f'rounds.minimum_clients = {needed} or more, or protection.name = "none".',
        )


def _key_holder(plan: Plan) -> Iterator[Conflict]:
    """Refuse to keep a key from clients if they need it for encryption."""
    name = plan.protection.name
    if plan.authority_opens and not issubclass(PROTECTIONS[name], EncryptingProtection):
        yield Conflict(
            keys=("protection.key_holder", "protection.name"),
            sentence=f'protection.key_holder is "authority", but {name} has no key that only '
            "encrypts: a client that sends an update can open sums, too. Set "
            'protection.key_holder = "members", or protection.name = "bfv".',
        )


def _sizes(plan: Plan) -> Iterator[Conflict]:
    """Refuse round sizes at which the protection does not withstand what it should."""
    least = plan.rounds.fewest_summands(hides_updates=True)
    most = max(least, plan.most_in_cells)
    try:
        check_sizes(plan.protection, least, most)
    except SettingsError as error:
        yield Conflict(
            keys=("protection.dropout_share", "protection.corrupt_share"),
            sentence=f"Rounds of {least} to {most} clients are possible, but: {error}",
        )


def _clients(plan: Plan) -> Iterator[Conflict]:
    rounds = plan.rounds
    yield from _asked(plan)
    yield from _unopened(plan)
    key = "cells_per_round" if plan.has_cells else "clients_per_round"
    if rounds.over_provision > 1 and not getattr(rounds, key):
        yield Conflict(
            keys=("rounds.over_provision", f"rounds.{key}"),
            sentence=f"rounds.over_provision is {rounds.over_provision:g}, but rounds.{key} is 0, "
            f"which already asks every client. Set rounds.{key} to the number that you "
            "want, or omit over_provision.",
        )


def _asked(plan: Plan) -> Iterator[Conflict]:
    """Refuse to select clients if cells are selected, and the other way round."""
    used, other = "clients_per_round", "cells_per_round"
    reason = "this plan has no sums over cells: a reader of sums can read single updates, too"
    if plan.has_cells:
        used, other = other, used
        reason = "clients are summed in whole cells, so that no two sums differ by less"
    if getattr(plan.rounds, other):
        yield Conflict(
            keys=(f"rounds.{other}", "protection.name"),
            sentence=f"rounds.{other} is {getattr(plan.rounds, other)}, but {reason}. Set "
            f"rounds.{used}, or rounds.{other} = 0.",
        )


def _unopened(plan: Plan) -> Iterator[Conflict]:
    """Refuse sums that the key authority can neither recompute nor check by tags."""
    from fedrec.protection import PROTECTIONS

    rounds, limit = plan.rounds, plan.rounds.recompute_limit
    protection = PROTECTIONS[plan.protection.name]
    alone = plan.authority_opens
    if not (protection.needs_reveal and alone) or protection.can_tag:
        return
    count = rounds.minimum_clients
    if count > limit:
        yield Conflict(
            keys=("rounds.recompute_limit", "rounds.minimum_clients"),
            sentence=f"rounds.minimum_clients is {count}, but rounds.recompute_limit is {limit}, "
            f"and under {protection.name} no round may have more updates than the key "
            f"authority recomputes. Set rounds.recompute_limit = {count}, lower "
            f'rounds.minimum_clients to {limit}, or set protection.name = "bfv", whose '
            "sums carry tags.",
        )


def _privacy(plan: Plan) -> Iterator[Conflict]:
    for keys, sentence in privacy_problems(plan):
        yield Conflict(keys=keys, sentence=sentence)


_RULES: tuple[Callable[[Plan], Iterator[Conflict]], ...] = (
    _base,
    _rank,
    _needs,
    _all_clients,
    _sections,
    _indices,
    _unused,
    _preset,
    _summands,
    _key_holder,
    _sizes,
    _clients,
    _privacy,
)


def _unplannable(plan: Plan) -> Iterator[Conflict]:
    """Ask the protection's planner, with a catalogue of one item. Its bounds depend on no more."""
    try:
        # Problems of an algorithm itself are not about sums.
        _ = algorithm_of(plan, 1).tensors
    except SettingsError as error:
        yield Conflict(keys=("rounds.total", "algorithm.name"), sentence=str(error))
        return
    try:
        kind = PROTECTIONS[plan.protection.name]
        kind.plan(vector_spec(plan, 1), preset=plan.protection.preset)
    except SettingsError as error:
        yield Conflict(
            keys=("protection.preset", "federation.maximum_users", "update.fraction_bits"),
            sentence=f"{plan.protection.name}/{plan.protection.preset} cannot sum what "
            "federation.maximum_users, update.fraction_bits and rounds.recompute_limit ask for: "
            f"{error}",
        )
