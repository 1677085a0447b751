"""Who is asked: an order drawn from hashes, so that equal inputs choose equal clients."""

from __future__ import annotations

from collections.abc import Iterable

from fedrec.ids import ClientId, RoundId, digest

__all__ = ["choose_clients"]


def choose_clients(
    live: Iterable[ClientId], most: int | None, *, seed: int, round_id: RoundId
) -> frozenset[ClientId]:
    """Return at most `most` of the live clients, by a hash of seed, round and client."""
    clients = list(live)
    if most is None or len(clients) <= most:
        return frozenset(clients)
    clients.sort(key=lambda client: digest("fedrec selection v1", seed, round_id, client))
    return frozenset(clients[:most])
