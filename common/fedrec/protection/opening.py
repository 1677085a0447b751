"""How long it takes to open a sum of entries: what waits for key holders follows from it.

A sum has an entry for every index that any of its messages had, so that it grows with the clients
of a round, and decrypting it takes from seconds to hours. The price is that of a slow
machine on a slow line and of the expected union of indices; see `ProtectionPlan.expected_blocks`.
"""

from __future__ import annotations

from fedrec.protection.plan import ProtectionPlan

__all__ = ["DECRYPTION_SECONDS", "opening_seconds"]

DECRYPTION_SECONDS = 0.03
"""Of one Paillier ciphertext, with room for a machine that does other things as well."""
MULTIPLICATION_SECONDS = 0.0001
FETCHED_BYTES_PER_SECOND = 100_000.0


def opening_seconds(plan: ProtectionPlan, n_summands: int, *, adds_up: bool) -> float:
    """Return what a key holder takes to fetch and open a sum of so many messages.

    Args:
        adds_up: whether it fetches the messages and adds them up itself, or the sum.
    """
    n_blocks = plan.expected_blocks(n_summands)
    fetched, seconds = plan.sum_bytes(n_blocks), DECRYPTION_SECONDS * n_blocks
    if adds_up:
        fetched = n_summands * plan.message_bytes
        seconds += MULTIPLICATION_SECONDS * n_summands * plan.n_blocks
    return seconds + fetched / FETCHED_BYTES_PER_SECOND
