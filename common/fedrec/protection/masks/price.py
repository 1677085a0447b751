"""What a round under masks costs besides the vectors, and how many may drop out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedrec.errors import SettingsError
from fedrec.protection.asked_round import AskedRound, StepsPrice
from fedrec.protection.masks.parameters import GraphParameters, parameters_for
from fedrec.protection.masks.words import plan_masks

__all__ = ["MaskPrice", "mask_price", "mask_warnings"]

KEYS_BYTES = 160
"""Two X25519 keys, the digest of the model and an Ed25519 signature."""
LISTED_BYTES = 192
"""The same of another client, with its id in place of the digest."""
FEWEST_BITS = 4
"""Of `update.fraction_bits`."""
SEALED_BYTES, SHARE_BYTES, SIGNATURE_BYTES, POSITION_BYTES = 82, 33, 64, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPrice(StepsPrice):
    """One client's part in a round, framing left out; others' choices may differ by a little.

    Attributes:
        n_neighbours: clients that hold shares of this one's secrets.
        threshold: of them, who must stay for the round to be published.
        quorum: clients that must sign the same list of survivors.
        may_drop_out: clients of the round that may vanish between their keys and their answers.
        up_bytes: keys, shares, a signature and an answer.
        down_bytes: the list of keys, others' shares, the survivors and their signatures.
    """

    travels: ClassVar[str] = "keys and shares"
    n_neighbours: int
    threshold: int
    quorum: int
    may_drop_out: int

    def rows(self) -> list[tuple[str, str]]:
        """Return who has to stay, and who may go."""
        return [
            ("neighbours", f"{self.n_neighbours} hold shares of a client's secrets"),
            ("shares", f"{self.threshold} of them put a secret together again"),
            ("quorum", f"{self.quorum} clients sign the same survivors before anybody answers"),
            ("drop-outs", f"{self.may_drop_out} clients of a round at most"),
        ]


def mask_price(asked: AskedRound) -> MaskPrice:
    """Return what a client of a round pays.

    Raises:
        SettingsError: where no graph of so many clients withstands what the settings say.
    """
    n_clients = asked.n_clients
    graph = parameters_for(n_clients, asked.settings.tolerance)
    signed_by = n_clients if asked.settings.tolerance.malicious else graph.degree
    held = graph.degree + graph.complete
    bits = -(-n_clients // 8)
    sealed = graph.degree * (SEALED_BYTES + POSITION_BYTES)
    return MaskPrice(
        n_neighbours=graph.degree,
        threshold=graph.threshold,
        quorum=graph.quorum,
        may_drop_out=_may_drop_out(asked, graph),
        up_bytes=KEYS_BYTES + sealed + SIGNATURE_BYTES + held * (SHARE_BYTES + POSITION_BYTES),
        down_bytes=n_clients * LISTED_BYTES
        + sealed
        + 2 * bits
        + signed_by * (SIGNATURE_BYTES + POSITION_BYTES),
    )


def mask_warnings(asked: AskedRound) -> list[str]:
    """Return what follows from masks in such a round."""
    n_clients = asked.n_clients
    graph = parameters_for(n_clients, asked.settings.tolerance)
    found = [
        "The coordinator reads every round's sum, and all clients of a round but one can compute "
        f"the last one's update from it: with {n_clients} clients, {n_clients - 1} must collude. "
        f"{_who_takes_masks_off(graph)}",
        *_wide_values(asked),
    ]
    if not _may_drop_out(asked, graph):
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


def _wide_values(asked: AskedRound) -> list[str]:
    """Say what would keep four bytes a value, where the sums of changes need eight."""
    users, bits = asked.maximum_users, asked.fraction_bits
    if _in_one_word(asked, users, bits):
        return []
    coarser = _largest(FEWEST_BITS, bits, lambda each: _in_one_word(asked, users, each))
    fewer = _largest(1, users, lambda each: _in_one_word(asked, each, bits))
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


def _in_one_word(asked: AskedRound, users: int, fraction_bits: int) -> bool:
    """Tell whether changes take one word a value with other numbers of these two."""
    try:
        words = plan_masks(asked.changes(users, fraction_bits)).limbs
    except SettingsError:
        return False
    return all(count == 1 for count in words)


def _largest(lowest: int, above: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from `lowest` and below `above` that fits; 0 where none does.

    Whatever is smaller than one that fits does, too.
    """
    low, high = lowest - 1, above
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low if low >= lowest else 0


def _may_drop_out(asked: AskedRound, graph: GraphParameters) -> int:
    n_clients, needed = graph.n_clients, asked.needed
    if graph.complete:
        return max(0, min(n_clients - graph.threshold, n_clients - needed))
    tolerated = asked.settings.tolerance.dropped_among(n_clients)
    return max(0, min(tolerated, n_clients - graph.quorum, n_clients - needed))
