"""What has to stand beside figures: the protocol, and what flatters all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrec.data.splits import UserSplit
from fedrec.evaluation.chance import chance_of
from fedrec.evaluation.metrics import N_CANDIDATES, Protocol, Rates
from fedrec.plan.schema import Plan

_UNKNOWN = (
    "whether this flatters every method is not known: only the last round measures the references, "
    "and the run has not come to it. Compare under full."
)


def marked(protocol: str, caution: str | None) -> str:
    """Return a protocol's name as it stands over figures: "(!)" flatters, "(?)" is not known.

    Args:
        caution: what has to stand beside it; empty for nothing, None where nobody knows.
    """
    if not protocol or caution == "":
        return protocol
    return f"{protocol} (!)" if caution else f"{protocol} (?)"


def explained(protocol: str, caution: str | None) -> str:
    """Return the marked name with its caution behind it, if there is one."""
    heading = marked(protocol, caution)
    return heading if heading == protocol else f"{heading}: {caution or _UNKNOWN}"


FLATTERING = 2.0
"""A column is marked from so many times the HR of chance on, for a model that knows nothing."""


def protocol_cautions(
    plan: Plan, users: UserSplit, n_items: int, protocols: Sequence[Protocol]
) -> dict[Protocol, str]:
    """Return a sentence for each protocol whose candidates are mostly never trained.

    Args:
        users: everybody in the federation.
        n_items: size of the catalogue.
    """
    drawing = [protocol for protocol in protocols if protocol != "full"]
    if not drawing or plan.privacy.mechanism != "none":
        # Under noise nobody counts holders, and every item is trained.
        return {}
    holders = np.bincount(users.train_items, minlength=n_items)
    active = np.nonzero(holders >= plan.federation.minimum_item_users)[0].astype(np.int64)
    at = plan.evaluation.at
    chance = chance_of(users, active, n_items=n_items, at=at)
    if chance is None or chance.hr < FLATTERING * _uniform(at):
        return {}
    return dict.fromkeys(
        drawing,
        f"{chance.never_trained:.0%} of the {N_CANDIDATES} candidates are items that fewer than "
        f"{plan.federation.minimum_item_users} users hold: never trained, they rank below all "
        f"others. A model that knows nothing gets HR@{at} {chance.hr:.2f} here, not "
        f"{_uniform(at):.2f}: this flatters every method. Compare under full.",
    )


def measured_caution(plan: Plan, untrained: Rates | None) -> str | None:
    """Return the sentence where nobody knows all holders: by what the untrained model measured.

    It counts only where chance is an unlikely reason: two standard errors above.

    Args:
        untrained: its rates on test, which the last round measures; None where the run has not
            come to it.

    Returns:
        An empty text where nothing is to be said; None where nothing was measured to say it by.
    """
    if plan.evaluation.protocol == "full":
        return ""
    if untrained is None:
        return None
    at, hr = plan.evaluation.at, untrained.hr
    if hr - 2.0 * (hr * (1.0 - hr) / untrained.users) ** 0.5 < FLATTERING * _uniform(at):
        return ""
    return (
        f"The untrained model gets HR@{at} {hr:.2f}, not "
        f"{_uniform(at):.2f}, because most of the {N_CANDIDATES} candidates are never trained and "
        "rank below all others: this flatters every method. Compare under full."
    )


def _uniform(at: int) -> float:
    """Return the HR of random scores where all candidates are trained."""
    return min(1.0, at / (N_CANDIDATES + 1))
