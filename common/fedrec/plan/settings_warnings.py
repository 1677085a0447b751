"""Warnings about a plan's settings, for a person that chooses them."""

from __future__ import annotations

from fedrec.errors import SettingsError
from fedrec.identity.cells import FEWEST_IN_CELL
from fedrec.plan.algorithm import algorithm_of, algorithm_warnings
from fedrec.plan.exposure import SAFE_FLOOR, exposure_of, raised_counts
from fedrec.plan.layout import (
    Layout,
    vector_spec,
)
from fedrec.plan.price import asked_clients, asked_round
from fedrec.plan.privacy import honesty_statements
from fedrec.plan.protections import (
    DECRYPTION_SECONDS,
    about_protection,
)
from fedrec.plan.schema import Plan, users_with_room
from fedrec.plan.travelling_rows import padded_rows
from fedrec.protection import (
    PROTECTIONS,
)
from fedrec.updates import UPDATES

_LEAST_SECURITY_BITS = 128


def warnings_for(
    plan: Plan, n_users: int = 0, n_items: int = 0, n_clients: int = 0, n_held: int = 0
) -> list[str]:
    """Return warnings for a person that is about to use these settings.

    Args:
        plan: the shared settings.
        n_users: users in this machine's data, or 0 if unknown.
        n_items: size of the catalogue, or 0 if unknown.
        n_clients: clients in each round, by default the number in the plan.
        n_held: items that enough users hold, or 0 if unknown.
    """
    exposed = exposure_of(plan)
    found = [
        *algorithm_warnings(plan, n_items, n_held),
        *UPDATES[plan.update.structure].warnings(plan.update),
        *_index_warnings(plan),
    ]
    if n_users > plan.federation.maximum_users:
        found.append(
            f"federation.maximum_users = {plan.federation.maximum_users}, but data.path has "
            f"{n_users} users: neither a simulation nor a client with this data can start. Set "
            f"it to {users_with_room(n_users)}."
        )
    kind = PROTECTIONS[plan.protection.name]
    found += about_protection(kind.name).warnings(
        asked_round(plan, n_clients or asked_clients(plan))
    )
    if kind.needs_reveal:
        found += _key_holder_warnings(plan)
    found += _key_warnings(plan, n_items)
    found += _row_warnings(plan, n_items)
    found += _member_warnings(plan)
    if exposed:
        who = "The coordinator" if plan.update.indices == "clear" else "It"
        found.append(
            f"{who} reads {exposed}. Every command for this plan is refused without "
            "--accept-exposure, for the coordinator and each client separately."
        )
    if algorithm_of(plan, 1).derived.personalises:
        found.append(
            f"{plan.algorithm.name} makes a model for each user from all updates, one by one. Over "
            "gRPC every client is one user. `fedrec simulate` takes all users in one process."
        )
    if plan.evaluation.protocol == "paper":
        found.append(
            'evaluation.protocol = "paper" leaks the held-out items through the negatives. A '
            "scorer that only counts the negatives of 30 rounds, without learning, reaches HR@10 "
            ".96 and NDCG@10 .80 on MovieLens-100K. Use it only to reproduce published tables, "
            'and "full" to measure.'
        )
    if plan.federation.minimum_item_users == 1:
        found.append(
            "federation.minimum_item_users = 1: the row of an item with one holder is that user's "
            "data, readable by every client. Set it to 10."
        )
    return found


def _member_warnings(plan: Plan) -> list[str]:
    """Describe what a member with changed software can do about rare items, and the remedy."""
    raised = raised_counts(plan, 1)
    if not raised:
        return []
    size = 2 * max(FEWEST_IN_CELL, plan.rounds.minimum_summands)
    where = f"With fewer than {size} clients, which are one cell, " * plan.authority_opens
    words = f"{where}{raised}"
    return [
        f"{words[0].upper()}{words[1:]} The only remedy is client.minimum_own_item_users = "
        f"{SAFE_FLOOR} or more at the other clients, which suits clients with many users."
    ]


def _row_warnings(plan: Plan, n_items: int) -> list[str]:
    """Warn that the count may leave too many items for the algorithm."""
    if not n_items or plan.privacy.mechanism != "none":
        return []
    try:
        Layout.of(plan, padded_rows(n_items))
    except SettingsError as error:
        return [
            f"If enough users hold every item, the run is refused after the count: {error.message} "
            f"{error.remedy} The price assumes as many rows as are supported."
        ]
    return []


def _key_holder_warnings(plan: Plan) -> list[str]:
    """Describe the trust that the holder of the key requires."""
    if not plan.authority_opens:
        return [
            'protection.key_holder = "members", the '
            "papers' protocol: all clients hold the same secret key and are assumed to be honest "
            "but curious, like the coordinator. One client that colludes with it can open every "
            "update. The coordinator's sums are not checked, and the sums of two rounds may "
            "differ by one client's update. If that is not enough, set protection.key_holder = "
            '"authority".'
        ]
    return [
        "The key authority alone holds the secret key. It reads every sum, and every update if it "
        "colludes with the coordinator. Clients cannot open anything. Every closed round waits for "
        "`fedrec keys authority run`, as long as it takes.",
        *honesty_statements(plan),
    ]


def _key_warnings(plan: Plan, n_items: int) -> list[str]:
    """Warn about weak or slow keys whose modulus must not be factored."""
    kind, preset = PROTECTIONS[plan.protection.name], plan.protection.preset
    try:
        chosen = kind.plan(vector_spec(plan, max(1, n_items)), preset=preset)
    except SettingsError:
        # A caller that needs the price gets the reason for its absence.
        return []
    found = []
    if chosen.key_bits and chosen.security_bits < _LEAST_SECURITY_BITS:
        found.append(
            f'protection.preset = "{chosen.preset}": a key of {chosen.key_bits} bits has '
            f"{chosen.security_bits} bits of security, and every other set at least "
            f'{_LEAST_SECURITY_BITS}. Use "{kind.presets[0]}" for anything but experiments.'
        )
    seconds = chosen.n_blocks * DECRYPTION_SECONDS
    if (
        n_items
        and chosen.key_bits
        and not chosen.entries
        and not plan.authority_opens
        and seconds > plan.rounds.report_seconds
    ):
        found.append(
            f"Every client decrypts {chosen.n_blocks} ciphertexts in a round, which takes a slow "
            f"machine {seconds:.0f} seconds. rounds.report_seconds is "
            f"{plan.rounds.report_seconds:g}, after which the round is shown without its metrics. "
            "Set it higher."
        )
    return found


def _index_warnings(plan: Plan) -> list[str]:
    """Describe what the paper's structure reveals by indices, and whether this plan sends them."""
    clear = UPDATES[plan.update.structure].clear_indices
    if not clear:
        return []
    if plan.update.indices == "clear":
        return [
            'update.indices = "clear": values are encrypted, indices are not. `fedrec audit '
            "--only indices` measures on your data how much of a history they reveal."
        ]
    return [
        f'update.structure = "{plan.update.structure}": its paper sends {clear}, in the clear. '
        "fedrec sends no index: zeros travel with the rest of the vector. `fedrec audit "
        "--only indices` measures on your data what indices would reveal."
    ]
