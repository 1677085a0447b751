"""What a round under masks costs besides the vectors, and how many may drop out of it."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.config.schema import Plan
from fedrec.protection.masks import GraphParameters, parameters_for
from fedrec.wire.mask_terms import tolerance_of

__all__ = ["MaskPrice", "mask_price", "mask_warnings"]

KEYS_BYTES = 160
"""Two X25519 keys, the digest of the model and an Ed25519 signature."""
LISTED_BYTES = 192
"""The same of another client, with its id in place of the digest."""
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
        f"Masks are taken off a single update where {graph.threshold} of its client's "
        f"{graph.degree} neighbours collude with the coordinator.",
    ]
    if not _may_drop_out(plan, graph):
        found.append(
            f"With {n_clients} clients in a round a single drop-out abandons the round. Raise "
            "rounds.minimum_clients, or have everybody stay online for a round."
        )
    return found


def _may_drop_out(plan: Plan, graph: GraphParameters) -> int:
    n_clients = graph.n_clients
    needed = max(plan.rounds.minimum_summands, plan.rounds.minimum_clients)
    if graph.complete:
        return max(0, min(n_clients - graph.threshold, n_clients - needed))
    by_plan = int(plan.protection.dropout_share * n_clients + 1e-9)
    return max(0, min(by_plan, n_clients - graph.quorum, n_clients - needed))
