"""What a plan promises and who has to be honest for it, in sentences."""

from __future__ import annotations

import math

from fedrec.config.layout import Layout
from fedrec.config.noise import mechanism_of
from fedrec.config.schema import Plan
from fedrec.protection import PROTECTIONS

NO_DIFFERENTIAL_PRIVACY = (
    "No differential privacy: no noise was added, so there is no epsilon. What was released are "
    "exact sums over all participating users. A user's values are clipped to a public range, "
    "which bounds an influence but hides nothing. Somebody who knows everybody else's data can "
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
    "It holds against every reader of sums: each has noise of standard deviation {deviation:.4g} "
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
