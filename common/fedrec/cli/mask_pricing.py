"""What a round under masks costs besides the vectors, and how many may drop out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedrec.config.layout import Layout
from fedrec.config.schema import Plan
from fedrec.errors import SettingsError
from fedrec.protection import PROTECTIONS
from fedrec.protection.masks import GraphParameters, parameters_for
from fedrec.wire.mask_terms import tolerance_of

__all__ = ["MaskPrice", "mask_price", "mask_warnings"]

KEYS_BYTES = 160
"""Two X25519 keys, the digest of the model and an Ed25519 signature."""
LISTED_BYTES = 192
"""The same of another client, with its id in place of the digest."""
FEWEST_BITS = 4
"""Of `update.fraction_bits`."""
SEALED_BYTES, SHARE_BYTES, SIGNATURE_BYTES, POSITION_BYTES = 82, 33, 64, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPrice:
    """One client's part in a round, framing left out; others' choices may differ by a little.

    Attributes:
        n_neighbours: clients that hold shares of this one's secrets.
        threshold: of them, who must stay for the round to be published.
        quorum: clients that must sign the same list of survivors.
        may_drop_out: clients of the round that may vanish between their keys and their answers.
        up_bytes: keys, shares, a signature and an answer.
        down_bytes: the list of keys, others' shares, the survivors and their signatures.
    """

    n_neighbours: int
    threshold: int
    quorum: int
    may_drop_out: int
    up_bytes: int
    down_bytes: int


def mask_price(plan: Plan, n_clients: int) -> MaskPrice:
    """Return what a client of a round of so many pays.

    Raises:
        SettingsError: where no graph of so many clients withstands what the plan says.
    """
    graph = parameters_for(n_clients, tolerance_of(plan.protection))
    signed_by = graph.degree if plan.protection.coordinator == "semi-honest" else n_clients
    held = graph.degree + graph.complete
    bits = -(-n_clients // 8)
    sealed = graph.degree * (SEALED_BYTES + POSITION_BYTES)
    return MaskPrice(
        n_neighbours=graph.degree,
        threshold=graph.threshold,
        quorum=graph.quorum,
        may_drop_out=_may_drop_out(plan, graph),
        up_bytes=KEYS_BYTES + sealed + SIGNATURE_BYTES + held * (SHARE_BYTES + POSITION_BYTES),
        down_bytes=n_clients * LISTED_BYTES
        + sealed
        + 2 * bits
        + signed_by * (SIGNATURE_BYTES + POSITION_BYTES),
    )


def mask_warnings(plan: Plan, n_clients: int) -> list[str]:
    """Return what follows from masks in rounds of so many clients."""
    graph = parameters_for(n_clients, tolerance_of(plan.protection))
    found = [
        "The coordinator reads every round's sum, and all clients of a round but one can compute "
        f"the last one's update from it: with {n_clients} clients, {n_clients - 1} must collude. "
        f"{_who_takes_masks_off(graph)}",
        *_wide_values(plan),
    ]
    if not _may_drop_out(plan, graph):
        found.append(
            f"With {n_clients} clients in a round a single drop-out abandons the round. Raise "
            "rounds.minimum_clients, or have everybody stay online for a round."
        )
    return found


def _who_takes_masks_off(graph: GraphParameters) -> str:
    if graph.threshold > graph.degree:
        # One share stays with the client itself, and it never gives that of its mask key.
        return (
            f"Masks are not taken off a single update by others: that takes {graph.threshold} "
            f"shares of its client's secrets, and the {graph.degree} others hold {graph.degree}."
        )
    return (
        f"Masks are taken off a single update where {graph.threshold} of its client's "
        f"{graph.degree} neighbours collude with the coordinator."
    )


def _wide_values(plan: Plan) -> list[str]:
    """Say what would keep four bytes a value, where the sums of changes need eight."""
    users, bits = plan.federation.maximum_users, plan.update.fraction_bits
    if _in_one_word(plan, users, bits):
        return []
    coarser = _largest(FEWEST_BITS, bits, lambda each: _in_one_word(plan, users, each))
    fewer = _largest(1, users, lambda each: _in_one_word(plan, each, bits))
    keeping = [
        f"{name} = {number}"
        for name, number in (
            ("update.fraction_bits", coarser),
            ("federation.maximum_users", fewer),
        )
        if number
    ]
    advice = f" {' or '.join(keeping)} would keep four." if keeping else ""
    return [
        f"Sums of {users} users (federation.maximum_users) at update.fraction_bits = {bits} need "
        f"more than 31 bits, so that values take eight bytes under masks.{advice}"
    ]


def _in_one_word(plan: Plan, users: int, fraction_bits: int) -> bool:
    """Tell whether a plan's changes take one word a value with other numbers of these two."""
    changed = plan.model_copy(
        update={
            "federation": plan.federation.model_copy(update={"maximum_users": users}),
            "update": plan.update.model_copy(update={"fraction_bits": fraction_bits}),
        }
    )
    layout = Layout.of(changed, 1)
    try:
        chosen = PROTECTIONS["masks"].plan(layout.vector_spec)
    except SettingsError:
        return False
    return all(count == 1 for count in chosen.limbs[: len(layout.tensors)])


def _largest(lowest: int, above: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from `lowest` and below `above` that fits; 0 where none does.

    Whatever is smaller than one that fits does, too.
    """
    low, high = lowest - 1, above
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low if low >= lowest else 0


def _may_drop_out(plan: Plan, graph: GraphParameters) -> int:
    n_clients = graph.n_clients
    needed = max(plan.rounds.minimum_summands, plan.rounds.minimum_clients)
    if graph.complete:
        return max(0, min(n_clients - graph.threshold, n_clients - needed))
    by_plan = int(plan.protection.dropout_share * n_clients + 1e-9)
    return max(0, min(by_plan, n_clients - graph.quorum, n_clients - needed))
