"""Plans that let a coordinator or a member read other clients' data, and the consent to them.

Consent is not a setting: a plan's author cannot consent for the coordinator's operator, nor either
of them for a client. The user of a command gives consent with a flag.
"""

from __future__ import annotations

from fedrec.errors import RefusedError
from fedrec.plan.algorithm import about_algorithm, algorithm_of, divides_by_count
from fedrec.plan.schema import Plan
from fedrec.updates import UPDATES

SAFE_FLOOR = 3
"""The `client.minimum_own_item_users` from which a raised count reveals no single user."""


def exposure_of(plan: Plan) -> str:
    """Return the data that the coordinator could read from each client, or empty if protected."""
    if plan.update.indices == "clear":
        return UPDATES[plan.update.structure].clear_indices
    if plan.protection.name != "none":
        return ""
    return about_algorithm(plan).exposes.in_the_clear


def exposed_to_members(plan: Plan, n_cells: int) -> str:
    """Return the data that a member with changed software could read, or empty if there is none.

    It adds to its own count of an item with few holders. Then all clients train the item's row, and
    the sum of that row is about those few. Counts of several cells can be compared, by the party
    that opens each of them.

    Args:
        n_cells: number of cells in the roster.
    """
    if not divides_by_count(plan) or (plan.authority_opens and n_cells > 1):
        return ""
    return about_algorithm(plan).exposes.to_members


def raised_counts(plan: Plan, n_cells: int) -> str:
    """Describe what a member that raises counts can do, or return empty if cells are compared.

    Args:
        n_cells: number of cells in the roster.
    """
    if plan.privacy.mechanism != "none" or (plan.authority_opens and n_cells > 1):
        return ""
    exposed = exposed_to_members(plan, n_cells)
    return (
        "a member with changed software can raise the count of a rare item, which no party can "
        "detect. Then all clients train the item's row."
        + f" It could read {exposed}."
        * bool(exposed)
    )


def exposing_sums(plan: Plan) -> str:
    """Return why no party can distinguish a raised count from an honest one."""
    if plan.authority_opens:
        return "all clients are in one cell, so there is no other cell to compare its counts with"
    return f"under {_protection_words(plan)} no party opens the sums of single cells"


def _protection_words(plan: Plan) -> str:
    name = f'protection.name = "{plan.protection.name}"'
    return (
        name
        if plan.has_cells or plan.protection.name == "none"
        else (f'{name} and protection.key_holder = "members"')
    )


def check_member_exposure(plan: Plan, *, n_cells: int, floor: int, accepted: bool) -> None:
    """Refuse a plan under which one member could read others' histories, unless the user consents.

    Args:
        n_cells: number of cells in the roster.
        floor: `client.minimum_own_item_users`.

    Raises:
        RefusedError: a member could read them. The message has the details.
    """
    exposed = exposed_to_members(plan, n_cells)
    if not exposed or floor >= SAFE_FLOOR or accepted:
        return
    raise RefusedError(
        f"{plan.algorithm.name}: a member with changed software could read {exposed}. It raises "
        f"the counts of rare items. {exposing_sums(plan)}.",
        remedy=f"Set client.minimum_own_item_users = {SAFE_FLOOR} or more. To consent instead, "
        "give --accept-exposure to this command or set client.accept_member_exposure = "
        "true.",
    )


def check_users(plan: Plan, n_users: int) -> None:
    """Refuse a client with more users than its messages can represent.

    Raises:
        RefusedError: indices are clear, or the server makes a model for each user. Then a message
            is about one user.
    """
    if n_users > 1 and algorithm_of(plan, 1).derived.personalises:
        raise RefusedError(
            f"This client has {n_users} users, but with {plan.algorithm.name} a client is one "
            "user: the coordinator makes a model for each client from its update.",
            remedy="Start a client for each user, or use `fedrec simulate` without --protect for "
            "all of them.",
        )
    if plan.update.indices == "clear" and n_users > 1:
        raise RefusedError(
            f'This client has {n_users} users, but under update.indices = "clear" a client is one '
            "user: a message has as many values as one user's change.",
            remedy='Start a client for each user, or set update.indices = "hidden".',
        )


def check_own_floor(least: int, n_users: int) -> None:
    """Refuse a client if no item can have enough of its users.

    Args:
        least: `client.minimum_own_item_users`.

    Raises:
        RefusedError: the client could not contribute anything.
    """
    if least <= max(1, n_users):
        return
    if n_users == 1:
        raise RefusedError(
            f"client.minimum_own_item_users is {least}, but this client has one user, so no item "
            "can reach it and the client would contribute nothing.",
            remedy="Set client.minimum_own_item_users = 1. Other clients' users hide a single one.",
        )
    raise RefusedError(
        f"client.minimum_own_item_users is {least}, but this client has {n_users} users, so no "
        "item can reach it and the client would contribute nothing.",
        remedy=f"Set client.minimum_own_item_users = {n_users} or less.",
    )


def check_one_process(plan: Plan) -> None:
    """Refuse a plan that needs all users in one process.

    Raises:
        RefusedError: the plan samples a fixed number of all clients' users.
    """
    if plan.rounds.user_sampling == "count":
        raise RefusedError(
            'rounds.user_sampling = "count" draws a fixed number from the users of all clients, '
            "which no party of a federation knows.",
            remedy="Use it with `fedrec simulate`. If each client is one user, set "
            "rounds.clients_per_round. Otherwise omit rounds.user_sampling.",
        )


def check_exposure(plan: Plan, *, accepted: bool) -> None:
    """Refuse a plan that exposes clients, unless the command's user consents.

    Raises:
        RefusedError: clients would be exposed. The message has the details.
    """
    exposed = exposure_of(plan)
    if not exposed or accepted:
        return
    protections = about_algorithm(plan).supports.protections
    reason, instead = (
        f'protection.name = "none" with {plan.algorithm.name}',
        'Set protection.name = "bfv"'
        if not protections or "bfv" in protections
        else "Set algorithm.name to an algorithm whose updates are only summed",
    )
    if plan.update.indices == "clear":
        reason, instead = 'update.indices = "clear"', 'Set update.indices = "hidden"'
    raise RefusedError(
        f"{reason}: the coordinator would read {exposed}.",
        remedy=f"{instead}, or give --accept-exposure to this command. The coordinator and each "
        "client consent separately.",
    )
