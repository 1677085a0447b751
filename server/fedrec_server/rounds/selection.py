"""Who is asked: an order drawn from hashes, so that equal inputs choose equal clients."""

from __future__ import annotations

from collections.abc import Iterable

from fedrec.ids import ClientId, RoundId, digest

__all__ = ["choose_clients", "choose_holder"]


def choose_clients(
    live: Iterable[ClientId], most: int | None, *, seed: int, round_id: RoundId
) -> frozenset[ClientId]:
    """Return at most `most` of the live clients, by a hash of seed, round and client."""
    clients = list(live)
    if most is None or len(clients) <= most:
        return frozenset(clients)
    clients.sort(key=lambda client: digest("fedrec selection v1", seed, round_id, client))
    return frozenset(clients[:most])


def choose_holder(
    candidates: Iterable[ClientId], *, run: str, round_id: RoundId, manifest: bytes, attempt: int
) -> ClientId | None:
    """Return the key holder of this attempt; None when there is no candidate."""
    return min(
        candidates,
        key=lambda client: digest("fedrec holder v1", run, round_id, manifest, attempt, client),
        default=None,
    )
