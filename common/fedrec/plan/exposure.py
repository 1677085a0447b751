"""Plans that show a coordinator more than anybody should read unasked, and who accepted that.

Acceptance is no setting: a plan's author cannot accept for the coordinator's operator, nor either
of them for a client. The user of a command says so on that command.
"""

from __future__ import annotations

from fedrec.errors import RefusedError
from fedrec.plan.algorithm import about_algorithm
from fedrec.plan.schema import Plan
from fedrec.updates import UPDATES

SAFE_FLOOR = 3
"""`client.minimum_own_item_users` from which on a raised count shows no single user."""


def exposure_of(plan: Plan) -> str:
    """Return what the coordinator would read of each client; nothing where that is covered."""
    if plan.update.indices == "clear":
        return UPDATES[plan.update.structure].clear_indices
    if plan.protection.name != "none":
        return ""
    return about_algorithm(plan).exposed_in_the_clear


def exposed_to_members(plan: Plan, n_cells: int) -> str:
    """Return what a member with changed software could read of others; empty if that is covered.

    It adds to its own count of an item that few users hold. Then all clients train the item's row,
    and the sum of that row is about those few. Only counts of several cells can be compared, by
    the party that opens each of them.

    Args:
        n_cells: cells of the roster.
    """
    counts = about_algorithm(plan).exact and plan.privacy.mechanism == "none"
    if not counts or (plan.authority_opens and n_cells > 1):
        return ""
    return about_algorithm(plan).exposed_to_members


def raised_counts(plan: Plan, n_cells: int) -> str:
    """Say, for people, what a member that raises counts can do; empty if cells are compared.

    Args:
        n_cells: cells of the roster.
    """
    if plan.privacy.mechanism != "none" or (plan.authority_opens and n_cells > 1):
        return ""
    exposed = exposed_to_members(plan, n_cells)
    return (
        "a member with changed software can raise the count of a rare item, and no party can tell: "
        "then all clients train the item's row." + f" It could read {exposed}." * bool(exposed)
    )


def exposing_sums(plan: Plan) -> str:
    """Return why no party can tell a raised count from an honest one."""
    if plan.authority_opens:
        return "all clients are in one cell, whose counts no other cell's can be compared with"
    return f"under {_protection_words(plan)} no party opens the sums of single cells"


def _protection_words(plan: Plan) -> str:
    name = f'protection.name = "{plan.protection.name}"'
    return (
        name
        if plan.has_cells or plan.protection.name == "none"
        else (f'{name} and protection.key_holder = "members"')
    )


def check_member_exposure(plan: Plan, *, n_cells: int, floor: int, accepted: bool) -> None:
    """Refuse a plan under which one member could read others' histories, unless accepted.

    Args:
        n_cells: cells of the roster.
        floor: `client.minimum_own_item_users`.

    Raises:
        RefusedError: saying what it could read.
    """
    exposed = exposed_to_members(plan, n_cells)
    if not exposed or floor >= SAFE_FLOOR or accepted:
        return
    raise RefusedError(
        f"{plan.algorithm.name}: a member with changed software could read {exposed}. It raises "
        f"the counts of rare items; {exposing_sums(plan)}.",
        remedy=f"Set client.minimum_own_item_users = {SAFE_FLOOR} or more, or accept it: give "
        "--accept-exposure to this command or set client.accept_member_exposure = true.",
    )


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


def check_own_floor(least: int, n_users: int) -> None:
    """Refuse a client of whose users no item can have enough.

    Args:
        least: `client.minimum_own_item_users`.

    Raises:
        RefusedError: the client would contribute nothing at all.
    """
    if least <= max(1, n_users):
        return
    if n_users == 1:
        raise RefusedError(
            f"client.minimum_own_item_users is {least}, but this client has one user, who would "
            "contribute nothing: no item is held by more than one of its users.",
            remedy="Set client.minimum_own_item_users = 1. Other clients' users hide a single one.",
        )
    raise RefusedError(
        f"client.minimum_own_item_users is {least}, but this client has {n_users} users, who would "
        f"contribute nothing: no item is held by {least} of them.",
        remedy=f"Set client.minimum_own_item_users = {n_users} or less.",
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
