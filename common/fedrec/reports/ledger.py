"""The privacy ledger: what a run released, and what that does and does not protect.

An event is a claim that was true when it was written; whatever is computed from the events
can be computed again years later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrec.config.schema import Plan
from fedrec.protection import PROTECTIONS
from fedrec.reports.round_report import RoundReport
from fedrec.wire.messages import RoundKind

__all__ = ["NO_DIFFERENTIAL_PRIVACY", "Ledger", "Release", "ledger_of"]

_FORMAT = "fedrec privacy ledger 1.0"

NO_DIFFERENTIAL_PRIVACY = (
    "No differential privacy: no noise was added, so there is no epsilon. What was released are "
    "exact sums over all participating users. A user's values are clipped to a public range, "
    "which bounds an influence but hides nothing. Whoever knows everybody else's data can "
    "compute the last user's from a sum."
)
_SIMULATED = (
    "This was a simulation: one process held the data of all users, so nothing was hidden from it."
)

_APPROXIMATE = (
    "Under approximate ckks the coordinator sees ciphertexts and is told nothing that was "
    "decrypted: the members' sums are off by noise from which the secret key can be computed, so "
    "they stay among the members, who share that key: one who colludes with the coordinator opens "
    "every message."
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
class Ledger:
    """Everything a run released.

    Attributes:
        differential_privacy: always False for now; there is no mechanism to claim it.
        statements: what follows from the releases, for people to read.
    """

    format: str
    differential_privacy: bool
    statements: tuple[str, ...]
    protection: str
    releases: tuple[Release, ...]


def ledger_of(plan: Plan, rounds: Sequence[RoundReport], *, simulated: bool) -> Ledger:
    """Return the ledger of the rounds that were published under a plan."""
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
    where = _SIMULATED if simulated else PROTECTIONS[plan.protection.name].statement()
    if not simulated and plan.protection.preset == "approximate":
        where = _APPROXIMATE
    return Ledger(
        format=_FORMAT,
        differential_privacy=False,
        statements=(NO_DIFFERENTIAL_PRIVACY, where),
        protection=plan.protection.name,
        releases=releases,
    )
