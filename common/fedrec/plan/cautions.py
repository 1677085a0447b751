"""Cautions to print with figures: the protocol, and effects that flatter every method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrec.data.splits import UserSplit
from fedrec.evaluation.chance import chance_of
from fedrec.evaluation.metrics import N_CANDIDATES, Protocol, Rates
from fedrec.plan.schema import Plan

_UNKNOWN = (
    "whether this flatters every method is not known: only the last round measures "
    "the references. Compare under full."
)


def marked(protocol: str, caution: str | None) -> str:
    """Return a protocol's name for the head of figures: "(!)" flatters, "(?)" is unknown.

    Args:
        caution: its caution, empty for none, or None if unknown.
    """
    if not protocol or caution == "":
        return protocol
    return f"{protocol} (!)" if caution else f"{protocol} (?)"


def explained(protocol: str, caution: str | None) -> str:
    """Return the marked name, followed by its caution if there is one."""
    heading = marked(protocol, caution)
    return heading if heading == protocol else f"{heading}: {caution or _UNKNOWN}"


FLATTERING = 2.0
"""A column is marked if a model that knows nothing reaches this multiple of chance's HR."""


def protocol_cautions(
    plan: Plan, users: UserSplit, n_items: int, protocols: Sequence[Protocol]
) -> dict[Protocol, str]:
    """Return a caution for each protocol whose candidates are mostly never trained.

    Args:
        users: all users of the federation.
        n_items: size of the catalogue.
    """
    drawing = [protocol for protocol in protocols if protocol != "full"]
    if not drawing or plan.privacy.mechanism != "none":
        # Under noise holders are not counted, and every item is trained.
        return {}
    holders = users.item_counts(n_items)
    active = np.nonzero(holders >= plan.federation.minimum_item_users)[0].astype(np.int64)
    at = plan.evaluation.at
    chance = chance_of(users, active, n_items=n_items, at=at)
    if chance is None or chance.hr < FLATTERING * _uniform(at):
        return {}
    return dict.fromkeys(
        drawing,
        f"{chance.never_trained:.0%} of the {N_CANDIDATES} candidates are items with fewer than "
        f"{plan.federation.minimum_item_users} users. They are never trained and rank below all "
        f"others. A model that knows nothing gets HR@{at} {chance.hr:.2f} here, not "
        f"{_uniform(at):.2f}, which flatters every method. Compare under full.",
    )


def measured_caution(plan: Plan, untrained: Rates | None) -> str | None:
    """Return the caution that the untrained model's measurement shows, if the holders are unknown.

    It counts only if chance is an unlikely reason: two standard errors above.

    Args:
        untrained: its rates on test, which the last round measures, or None before that round.

    Returns:
        An empty string if there is no caution, or None if nothing was measured.
    """
    if plan.evaluation.protocol == "full":
        return ""
    if untrained is None:
        return None
    at, hr = plan.evaluation.at, untrained.hr
    if hr - 2.0 * (hr * (1.0 - hr) / untrained.users) ** 0.5 < FLATTERING * _uniform(at):
        return ""
    return (
        f"The untrained model gets HR@{at} {hr:.2f}, not {_uniform(at):.2f}, because most of the "
        f"{N_CANDIDATES} candidates are never trained and rank below all others. This flatters "
        "every method. Compare under full."
    )


def _uniform(at: int) -> float:
    """Return the HR of random scores if all candidates are trained."""
    return min(1.0, at / (N_CANDIDATES + 1))
