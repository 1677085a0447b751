"""Plans that show a coordinator more than anybody should read unasked, and who accepted that.

Acceptance is no setting: a plan's author cannot accept for the coordinator's operator, nor either
of them for a client. The user of a command says so on that command.
"""

from __future__ import annotations

from fedrec.config.algorithm import about_algorithm
from fedrec.config.schema import Plan
from fedrec.errors import RefusedError
from fedrec.updates import UPDATES

__all__ = ["check_exposure", "check_sampling", "check_users", "exposure_of"]


def exposure_of(plan: Plan) -> str:
    """Return what the coordinator would read of each client; nothing where that is covered."""
    if plan.update.indices == "clear":
        return UPDATES[plan.update.structure].clear_indices
    if plan.protection.name != "none":
        return ""
    return about_algorithm(plan).exposed_in_the_clear


def check_users(plan: Plan, n_users: int) -> None:
    """Refuse a client with more users than its messages can be of.

    Raises:
        RefusedError: indices are clear, so that a message has the values of one user.
    """
    if plan.update.indices == "clear" and n_users > 1:
        raise RefusedError(
            f'This client has {n_users} users, but under update.indices = "clear" a client is one '
            "user: a message has as many values as one user's change.",
            remedy='Start a client for each user, or set update.indices = "hidden".',
        )


def check_sampling(plan: Plan) -> None:
    """Refuse a plan whose users only one process could draw.

    Raises:
        RefusedError: the plan samples a fixed number of all clients' users.
    """
    if plan.rounds.user_sampling == "count":
        raise RefusedError(
            'rounds.user_sampling = "count" draws a fixed number among the users of all clients, '
            "whom no party of a federation knows.",
            remedy="Use it with `fedrec simulate`. Where each client is one user, set "
            "rounds.clients_per_round; else leave rounds.user_sampling out.",
        )


def check_exposure(plan: Plan, *, accepted: bool) -> None:
    """Refuse a plan that exposes clients, unless the command's user accepted it.

    Raises:
        RefusedError: saying what would be exposed.
    """
    exposed = exposure_of(plan)
    if not exposed or accepted:
        return
    reason, instead = (
        f'protection.name = "none" with {plan.algorithm.name}',
        'Set protection.name = "bfv"',
    )
    if plan.update.indices == "clear":
        reason, instead = 'update.indices = "clear"', 'Set update.indices = "hidden"'
    raise RefusedError(
        f"{reason}: the coordinator would read {exposed}.",
        remedy=f"{instead}, or give --accept-exposure to this command. "
        "Coordinator and clients each accept for themselves.",
    )
