"""The privacy ledger: what a run released, and what is protected.

An event is a claim that was true when it was written. Everything computed from the events can be
computed again years later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrec.plan.exposure import exposure_of
from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.privacy import (
    NO_DIFFERENTIAL_PRIVACY,
    NOT_COVERED,
    privacy_statements,
    trust_statement,
)
from fedrec.plan.schema import Plan
from fedrec.privacy import Mechanism
from fedrec.wire.messages import RoundKind
from fedrec_lab.reports.round_report import RoundReport

_FORMAT = "fedrec privacy ledger 1.1"

_SIMULATED = (
    "This was a simulation: one process held the data of all users, so nothing was hidden from it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One kind of released sum, and its rounds.

    Attributes:
        first_round, last_round: the rounds of this kind, both inclusive.
        n_releases: the number of releases.
        clip: largest absolute value of a user in any slot of the change, or None if the vector has
            no change.
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
    """The differential privacy of all releases together, and its assumptions.

    Attributes:
        unit: the unit whose presence is hidden.
        adjacency: how neighbouring federations differ.
        sums: the number of noisy sums, published or not.
        sums_per_user: the most of them that one user took part in.
        rho: cost of one sum, or of the release whose parts sums are (zero-concentrated differential
            privacy).
        clip: largest L2 norm of a user's contribution, in grid steps.
        share: deviation (gaussian) or scale (laplace) of one client's noise, in grid steps.
        honest_clients: the least number of honest noise shares in a sum.
        budget: the epsilon that must not be exceeded.
        amplification: the amplification claimed for sampling.
        not_covered: what the guarantee does not cover.
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
    """All releases of a run.

    Attributes:
        differential_privacy: whether the noise of sums guarantees it.
        statements: the consequences of the releases, as text.
        guarantee: the guarantee in numbers, or None.
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
    """Return the ledger of a plan's published rounds.

    Args:
        n_items: size of the catalogue, or 0 if it is unknown.
        n_charged: the number of noisy sums. It exceeds the published ones if rounds were abandoned
            after their sum.
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
    n_sums, mechanism = max(n_trained, n_charged), mechanism_of(plan)
    promised: tuple[str, ...] = (NO_DIFFERENTIAL_PRIVACY,)
    if mechanism is not None:
        promised = privacy_statements(plan, mechanism.releases(n_sums, n_trained), n_items)
    return Ledger(
        format=_FORMAT,
        differential_privacy=mechanism is not None,
        statements=(*promised, where),
        protection=plan.protection.name,
        releases=releases,
        guarantee=_guarantee(mechanism, n_sums, n_trained),
    )


def _guarantee(mechanism: Mechanism | None, n_sums: int, n_published: int) -> Guarantee | None:
    if mechanism is None:
        return None
    cost, releases = mechanism.cost, mechanism.releases(n_sums, n_published)
    return Guarantee(
        mechanism=mechanism.kind,
        epsilon=mechanism.epsilon_after(releases),
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
