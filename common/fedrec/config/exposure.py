"""Plans that show a coordinator more than anybody should read unasked, and who accepted that.

Acceptance is no setting: a plan's author cannot accept for the coordinator's operator, nor either
of them for a client. Whoever starts a command says so on that command.
"""

from __future__ import annotations

from fedrec.config.algorithm import about_algorithm
from fedrec.config.schema import Plan
from fedrec.errors import RefusedError

__all__ = ["check_exposure", "exposure_of"]


def exposure_of(plan: Plan) -> str:
    """Return what the coordinator would read of each client; nothing where that is covered."""
    if plan.protection.name != "none":
        return ""
    return about_algorithm(plan).exposed_in_the_clear


def check_exposure(plan: Plan, *, accepted: bool) -> None:
    """Refuse a plan that exposes clients, unless whoever runs the command accepted it.

    Raises:
        RefusedError: saying what would be exposed.
    """
    exposed = exposure_of(plan)
    if exposed and not accepted:
        raise RefusedError(
            f'protection.name = "none" with {plan.algorithm.name}: the coordinator would read '
            f"{exposed}.",
            remedy='Set protection.name = "bfv", or give --accept-exposure to this command. '
            "Coordinator and clients each accept for themselves.",
        )
