"""The privacy ledger: what a run released, and what that does and does not protect.

An event is a claim that was true when it was written; whatever is computed from the events
can be computed again years later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedrec.config.exposure import exposure_of
from fedrec.config.schema import Plan
from fedrec.privacy import Mechanism, mechanism_of
from fedrec.protection import PROTECTIONS
from fedrec.reports.round_report import RoundReport
from fedrec.training.layout import Layout
from fedrec.wire.messages import RoundKind

__all__ = [
    "NO_DIFFERENTIAL_PRIVACY",
    "Guarantee",
    "Ledger",
    "Release",
    "honesty_statements",
    "ledger_of",
    "privacy_statements",
    "trust_statement",
]

_FORMAT = "fedrec privacy ledger 1.1"

NO_DIFFERENTIAL_PRIVACY = (
    "No differential privacy: no noise was added, so there is no epsilon. What was released are "
    "exact sums over all participating users. A user's values are clipped to a public range, "
    "which bounds an influence but hides nothing. Whoever knows everybody else's data can "
    "compute the last user's from a sum."
)
NOT_COVERED = (
    "Not covered: which clients took part and when, how long they took, message sizes (all alike), "
    "the settings, and that training may stop with an error. Item counts and metrics are not "
    "released at all: they are zero in every sum.",
    "Not covered: what a user's own client knows and shows, the figures that a simulation prints, "
    "and other runs on the same data, which each client counts in a ledger of its own.",
)
_GAUSSIAN = (
    "User-level differential privacy with Gaussian noise: epsilon {epsilon:.4g} at delta "
    "{delta:g} for a user who took part in {rounds} noisy sums, the most that "
    "privacy.rounds_per_user allowed. Neighbouring federations differ in one user's whole data, "
    "present or absent. No amplification by sampling is claimed."
)
_WHO_ADDED = (
    "It holds against whoever sees sums: each has noise of standard deviation {deviation:.4g} "
    "times the clip, from {noisy} honest clients at least. It does not hold against the user's own "
    "client, nor against so many clients together that fewer than these are left."
)
_LAPLACE = (
    "User-level differential privacy with Laplace noise as papers add it: epsilon {epsilon:.4g} at "
    "delta {delta:g} for a user who took part in {rounds} noisy sums. The clip bounds the L2 norm, "
    "so the noise is no pure epsilon of clip / scale = {nominal:.4g} a round: over the {length} "
    "values of an update the pure epsilon of one round is {pure:.4g}. What is stated here follows "
    "from concentrated differential privacy."
)
_LAPLACE_WHO = (
    "Every client's noise is enough by itself, so that it holds against the coordinator as well, "
    "and whatever other clients do."
)
_SIMULATED = (
    "This was a simulation: one process held the data of all users, so nothing was hidden from it."
)

_AUTHORITY = (
    "Under {name} the coordinator sees ciphertexts and revealed metric sums; the key authority "
    "alone holds the secret key and opens sums, so it reads every message if it colludes with the "
    "coordinator; members have no key that opens one."
)
_HONEST_MEMBERS = (
    "Under {name} all clients are taken to be honest, as in the papers: its sums carry no tags, so "
    "that the coordinator and one client with changed software can add others' ciphertexts negated "
    "or multiplied, until what the authority opens is a single update. Under protection.name = "
    '"bfv" it notices.'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One kind of sum that was released, and in which rounds.

    Attributes:
        first_round, last_round: the rounds of this kind, both inclusive.
        n_releases: how many there were.
        clip: largest absolute value of a user in any slot of the change; None where there is no
            change in the vector.
        minimum_item_users: rows of items with fewer holders were never updated.
    """

    kind: RoundKind
    first_round: int
    last_round: int
    n_releases: int
    clip: float | None
    minimum_item_users: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """What differential privacy the releases together have, and from what it follows.

    Attributes:
        unit: whose presence is hidden.
        adjacency: how neighbouring federations differ.
        sums: noisy sums that were made, whether they were published or not.
        sums_per_user: most of them that a user took part in.
        rho: cost of one of them (zero-concentrated differential privacy).
        clip: largest L2 norm of a user's contribution, in grid steps.
        share: deviation (gaussian) or scale (laplace) of one client's noise, in grid steps.
        honest_clients: whose shares a sum has at least.
        budget: the epsilon that may not be exceeded.
        amplification: what was claimed for sampling.
        not_covered: what the promise is not about.
    """

    mechanism: str
    epsilon: float
    delta: float
    unit: str
    adjacency: str
    sums: int
    sums_per_user: int
    rho: float
    clip: int
    share: int
    honest_clients: int
    budget: float
    amplification: str
    not_covered: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Everything a run released.

    Attributes:
        differential_privacy: whether sums carried noise that promises it.
        statements: what follows from the releases, for people to read.
        guarantee: the promise in numbers; None without one.
    """

    format: str
    differential_privacy: bool
    statements: tuple[str, ...]
    protection: str
    releases: tuple[Release, ...]
    guarantee: Guarantee | None = None


def ledger_of(
    plan: Plan,
    rounds: Sequence[RoundReport],
    *,
    simulated: bool,
    n_items: int = 0,
    n_charged: int = 0,
) -> Ledger:
    """Return the ledger of the rounds that were published under a plan.

    Args:
        n_items: size of the catalogue; 0 where nobody knows.
        n_charged: noisy sums that were made; more than those published where rounds were
            abandoned after their sum.
    """
    kinds: tuple[RoundKind, ...] = ("count", "train", "evaluate")
    grouped = ((kind, [report.round for report in rounds if report.kind == kind]) for kind in kinds)
    releases = tuple(
        Release(
            kind=kind,
            first_round=min(numbers),
            last_round=max(numbers),
            n_releases=len(numbers),
            clip=plan.update.clip if kind == "train" else None,
            minimum_item_users=plan.federation.minimum_item_users,
        )
        for kind, numbers in grouped
        if numbers
    )
    where = _SIMULATED if simulated else trust_statement(plan)
    if not simulated and plan.update.indices == "clear":
        where += f" It also sees, in every round, {exposure_of(plan)}."
    n_trained = sum(report.kind == "train" for report in rounds)
    mechanism = mechanism_of(plan)
    promised: tuple[str, ...] = (NO_DIFFERENTIAL_PRIVACY,)
    if mechanism is not None:
        promised = privacy_statements(plan, max(n_trained, n_charged), n_items)
    return Ledger(
        format=_FORMAT,
        differential_privacy=mechanism is not None,
        statements=(*promised, where),
        protection=plan.protection.name,
        releases=releases,
        guarantee=_guarantee(mechanism, max(n_trained, n_charged)),
    )


def trust_statement(plan: Plan) -> str:
    """Return who can read what under a plan's protection, and who is taken to be honest."""
    kind = PROTECTIONS[plan.protection.name]
    if not plan.authority_opens:
        return kind.statement()
    return " ".join((_AUTHORITY.format(name=kind.name), *honesty_statements(plan)))


def honesty_statements(plan: Plan) -> tuple[str, ...]:
    """Return what follows where the authority opens sums without tags; else ()."""
    kind = PROTECTIONS[plan.protection.name]
    if not plan.authority_opens or kind.can_tag:
        return ()
    return (_HONEST_MEMBERS.format(name=kind.name),)


def privacy_statements(plan: Plan, n_sums: int, n_items: int = 0) -> tuple[str, ...]:
    """Return what so many noisy sums of a plan promise, and what they do not; () without noise."""
    mechanism = mechanism_of(plan)
    if mechanism is None:
        return ()
    rounds = min(n_sums, mechanism.rounds_per_user)
    said = {"epsilon": mechanism.epsilon_after(n_sums), "delta": mechanism.delta, "rounds": rounds}
    if mechanism.kind == "gaussian":
        who = _WHO_ADDED.format(
            deviation=mechanism.deviation / mechanism.bound, noisy=mechanism.noisy
        )
        return (_GAUSSIAN.format(**said), who, *NOT_COVERED)
    length = Layout.of(plan, max(1, n_items)).change_slice.stop
    nominal = mechanism.bound / mechanism.share
    pure = math.sqrt(length) * nominal
    text = _LAPLACE.format(**said, nominal=nominal, length=length, pure=pure)
    return (text, _LAPLACE_WHO, *NOT_COVERED)


def _guarantee(mechanism: Mechanism | None, n_sums: int) -> Guarantee | None:
    if mechanism is None:
        return None
    cost = mechanism.cost
    return Guarantee(
        mechanism=mechanism.kind,
        epsilon=mechanism.epsilon_after(n_sums),
        delta=mechanism.delta,
        unit="user",
        adjacency="one user's whole data, present or absent",
        sums=n_sums,
        sums_per_user=min(n_sums, mechanism.rounds_per_user),
        rho=cost.gaussian + cost.laplace,
        clip=mechanism.bound,
        share=mechanism.share,
        honest_clients=mechanism.noisy,
        budget=mechanism.epsilon,
        amplification="none",
        not_covered=NOT_COVERED,
    )
