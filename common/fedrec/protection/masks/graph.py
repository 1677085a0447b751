"""Who is whose neighbour: a regular graph that follows from a public seed, or own draws.

Bell et al. (CCS 2020) put the clients on a ring in random order and connect everybody with the
k / 2 next ones on either side, a Harary graph. That is safe where the coordinator follows the
protocol. One that does not would first look at the seed and then choose participants so that the
corrupt ones surround somebody; so under a malicious coordinator every client draws its own k
holders from the list of keys that it was given, with randomness that nobody else has.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache

from fedrec.errors import SettingsError
from fedrec.ids import ClientId, digest

__all__ = ["draw_holders", "ring_neighbours"]


def ring_neighbours(
    seed: bytes, participants: Sequence[ClientId], degree: int
) -> tuple[tuple[int, ...], ...]:
    """Return every participant's neighbours, as sorted positions in ``participants``.

    Args:
        seed: public; it decides the order of the ring.
        participants: without repetition; the graph does not depend on their order.
        degree: neighbours of each; even, or one less than the even number of participants.

    Raises:
        SettingsError: when no such graph exists.
    """
    return _ring_neighbours(seed, tuple(participants), degree)


@lru_cache(maxsize=2)
def _ring_neighbours(
    seed: bytes, participants: tuple[ClientId, ...], degree: int
) -> tuple[tuple[int, ...], ...]:
    """Make the graph once for all who ask in one process, such as a simulation's clients."""
    count = len(participants)
    if not 1 <= degree < count or (degree % 2 and count % 2):
        raise SettingsError(f"{count} clients cannot have {degree} neighbours each.")
    ring = sorted(range(count), key=lambda i: digest("fedrec mask graph v1", seed, participants[i]))
    distances = [*range(1, degree // 2 + 1), *range(-(degree // 2), 0)]
    if degree % 2:
        distances.append(count // 2)
    neighbours: list[tuple[int, ...]] = [()] * count
    for place, own in enumerate(ring):
        found = {ring[(place + distance) % count] for distance in distances}
        neighbours[own] = tuple(sorted(found))
    return tuple(neighbours)


def draw_holders(own: int, count: int, degree: int) -> tuple[int, ...]:
    """Return ``degree`` distinct positions below ``count`` other than ``own``, unpredictably."""
    others = [position for position in range(count) if position != own]
    return tuple(sorted(secrets.SystemRandom().sample(others, degree)))
